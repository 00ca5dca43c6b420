// Files that are written completely or not at all.
#pragma once

#include <cstddef>
#include <filesystem>
#include <stdexcept>

namespace nn {

/// A file that cannot be read or written. The message names it.
struct FileError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// A file that is written under the name of its target with ".part" appended, and then replaces the target. If an error
/// occurs or the program ends before that, the target stays as it was. If the target is a symbolic link, the file that
/// it points to is replaced.
class NewFile {
 public:
  /// Opens the file. An existing target must be a regular file: renaming over a device would replace the device.
  /// @throws FileError, as do the other functions, with the reason that the system gives.
  explicit NewFile(const std::filesystem::path& file);
  /// Removes the file, unless it has replaced its target.
  ~NewFile();
  NewFile(const NewFile&) = delete;
  NewFile& operator=(const NewFile&) = delete;

  void write(const void* bytes, std::size_t count);

  /// Replaces the target only after the bytes have reached the disk: otherwise a power failure could leave an empty
  /// file under its name.
  void put_in_place();

 private:
  [[noreturn]] void fail(int error) const;

  std::filesystem::path file_, target_, part_;
  int descriptor_ = -1;
};

/// Removes the unfinished file of a NewFile, if one exists. Call it from a signal handler that is about to end the
/// program.
void remove_unfinished() noexcept;

}  // namespace nn
