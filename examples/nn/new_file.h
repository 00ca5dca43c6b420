// Files that are written: whole, or not at all.
#pragma once

#include <cstddef>
#include <filesystem>
#include <stdexcept>

namespace nn {

/// A file that is not as it should be. The message names it.
struct FileError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// A file that is written beside the one that it replaces, under its name and ".part", and then put in its place. If
/// anything fails before, or ends the program, the last file stays as it is. A symbolic link is kept, and what it
/// points to is replaced.
class NewFile {
 public:
  /// Begins a file. Only a regular file may be replaced: a renamed file in place of a device would be no device.
  /// @throws FileError, as all others, with the reason that the system gives.
  explicit NewFile(const std::filesystem::path& file);
  /// Removes what was written, unless it was put in its place.
  ~NewFile();
  NewFile(const NewFile&) = delete;
  NewFile& operator=(const NewFile&) = delete;

  void write(const void* bytes, std::size_t count);

  /// Replaces the file, once the bytes have reached the disk: otherwise a power failure could leave an empty file under
  /// the name.
  void put_in_place();

 private:
  [[noreturn]] void fail(int error) const;

  std::filesystem::path file_, target_, part_;
  int descriptor_ = -1;
};

/// Removes what a NewFile is writing, if there is one: for a handler of signals that is about to end the program.
void remove_unfinished() noexcept;

}  // namespace nn
