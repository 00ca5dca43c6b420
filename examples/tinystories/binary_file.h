// Reading untrusted files of little-endian numbers.
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

/// Reads a file from front to back and tracks how many bytes are left, so that every size that the file claims is
/// checked against its actual length first. `what` names the item being read, for messages.
class BinaryFile {
 public:
  /// Opens a file. @throws FileError if it is missing, not a regular file, empty, or cannot be opened.
  explicit BinaryFile(const std::filesystem::path& path);

  /// Reads from bytes in memory; `name` is for messages.
  BinaryFile(const std::string& bytes, const std::string& name);

  const std::string& name() const { return name_; }
  std::uint64_t size() const { return size_; }
  std::uint64_t left() const { return size_ - position_; }

  /// Reads one item. @throws FileError if fewer bytes are left than it needs.
  std::int32_t i32(const std::string& what);
  std::uint32_t u32(const std::string& what);
  float f32(const std::string& what);
  std::string bytes(std::uint32_t count, const std::string& what);

  /// Fills `to`. @throws FileError also if a value is not finite: trained weights always are, and a single one that is
  /// not would turn the generated text into noise.
  void finite_floats(std::span<float> to, const std::string& what);

  /// Skips unused bytes.
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
