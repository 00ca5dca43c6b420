#include "binary_file.h"

#include <bit>
#include <cmath>
#include <fstream>
#include <limits>
#include <sstream>
#include <system_error>

namespace tinystories {

static_assert(std::endian::native == std::endian::little && std::numeric_limits<float>::is_iec559 && sizeof(float) == 4,
              "floats are copied from the file without conversion");

BinaryFile::BinaryFile(const std::filesystem::path& path) : name_(path.string()) {
  std::error_code error;
  const auto status = std::filesystem::status(path, error);
  if (status.type() == std::filesystem::file_type::not_found) fail("there is no such file");
  if (error) fail("cannot be opened: " + error.message());
  if (!std::filesystem::is_regular_file(status)) fail("not a regular file");
  size_ = std::filesystem::file_size(path, error);
  in_ = std::make_unique<std::ifstream>(path, std::ios::binary);
  if (error || !*in_) fail("cannot be opened");
  if (size_ == 0) fail("the file is empty");
}

BinaryFile::BinaryFile(const std::string& bytes, const std::string& name)
    : name_(name), in_(std::make_unique<std::istringstream>(bytes)), size_(bytes.size()) {
  if (size_ == 0) fail("the file is empty");
}

std::uint32_t BinaryFile::u32(const std::string& what) {
  unsigned char raw[4] = {};
  take(reinterpret_cast<char*>(raw), sizeof raw, what);
  return raw[0] | std::uint32_t{raw[1]} << 8 | std::uint32_t{raw[2]} << 16 | std::uint32_t{raw[3]} << 24;
}

std::int32_t BinaryFile::i32(const std::string& what) { return std::bit_cast<std::int32_t>(u32(what)); }

float BinaryFile::f32(const std::string& what) { return std::bit_cast<float>(u32(what)); }

std::string BinaryFile::bytes(std::uint32_t count, const std::string& what) {
  require_left(count, what);
  std::string read(count, '\0');
  take(read.data(), count, what);
  return read;
}

void BinaryFile::finite_floats(std::span<float> to, const std::string& what) {
  take(reinterpret_cast<char*>(to.data()), to.size_bytes(), what);
  for (std::size_t i = 0; i < to.size(); ++i)
    if (!std::isfinite(to[i]))
      fail("number " + std::to_string(i + 1) + " of " + std::to_string(to.size()) + " in " + what + " is not finite");
}

void BinaryFile::skip(std::uint64_t count, const std::string& what) {
  require_left(count, what);
  if (!in_->seekg(static_cast<std::streamoff>(count), std::ios::cur)) fail("cannot be read to its end");
  position_ += count;
}

void BinaryFile::require_left(std::uint64_t count, const std::string& what) const {
  if (count > left())
    fail("truncated: " + what + " needs " + std::to_string(count) + " bytes at offset " + std::to_string(position_) +
         ", but only " + std::to_string(left()) + " are left");
}

void BinaryFile::take(char* to, std::uint64_t count, const std::string& what) {
  require_left(count, what);
  if (!in_->read(to, static_cast<std::streamsize>(count))) fail("cannot be read to its end");
  position_ += count;
}

}  // namespace tinystories
