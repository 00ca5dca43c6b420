// Files of little-endian numbers that are not trusted.
#pragma once

#include <cstdint>
#include <filesystem>
#include <istream>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>

namespace tinystories {

/// A file that cannot be used. The message is one line: the file's name, then what is wrong with it.
class FileError : public std::runtime_error {
 public:
  FileError(const std::string& file, const std::string& what_is_wrong)
      : std::runtime_error(file + ": " + what_is_wrong) {}
};

/// Hands out a file from front to back, and knows how many bytes are left: no size that the file claims is believed
/// before it has been compared with what the file can still hold. `what` names what is being read, for messages.
class BinaryFile {
 public:
  /// @throws FileError if it is missing, no regular file, empty, or cannot be opened.
  explicit BinaryFile(const std::filesystem::path& path);

  /// As above, from bytes in memory; `name` is for messages.
  BinaryFile(const std::string& bytes, const std::string& name);

  const std::string& name() const { return name_; }
  std::uint64_t size() const { return size_; }
  std::uint64_t left() const { return size_ - position_; }

  /// @throws FileError if less is left than is asked for.
  std::int32_t i32(const std::string& what);
  std::uint32_t u32(const std::string& what);
  float f32(const std::string& what);
  std::string bytes(std::uint32_t count, const std::string& what);

  /// Fills `to`. @throws FileError also if one of the numbers is not finite: it would turn all text that it reaches
  /// into noise, and no trained weight is.
  void finite_floats(std::span<float> to, const std::string& what);

  /// Passes over bytes that nobody needs.
  void skip(std::uint64_t count, const std::string& what);

  [[noreturn]] void fail(const std::string& what_is_wrong) const { throw FileError(name_, what_is_wrong); }

 private:
  void require_left(std::uint64_t count, const std::string& what) const;
  void take(char* to, std::uint64_t count, const std::string& what);

  std::string name_;
  std::unique_ptr<std::istream> in_;
  std::uint64_t size_ = 0;
  std::uint64_t position_ = 0;
};

}  // namespace tinystories
