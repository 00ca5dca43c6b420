#include "files.h"

#include <algorithm>
#include <fstream>

#include "safetensors.h"

namespace training {

std::string read_file(const std::filesystem::path& file, std::uintmax_t most) {
  const auto fail = [&](const std::string& what) { throw nn::FileError(file.string() + ": " + what); };
  std::error_code error;
  const auto status = std::filesystem::status(file, error);
  if (!std::filesystem::exists(status)) fail("there is no such file");
  if (!std::filesystem::is_regular_file(status)) fail("is no file");
  const std::uintmax_t size = std::filesystem::file_size(file, error);
  std::ifstream in(file, std::ios::binary);
  if (error || !in) fail("cannot be opened");
  if (size > most) fail("has " + std::to_string(size) + " bytes, more than " + std::to_string(most));
  std::string text(static_cast<std::size_t>(size), '\0');
  if (!in.read(text.data(), static_cast<std::streamsize>(size))) fail("cannot be read");
  return text;
}

namespace {

/// What is written first, and then renamed.
std::filesystem::path part_of(const std::filesystem::path& file) {
  std::filesystem::path part = file;
  part += ".part";
  return part;
}

[[noreturn]] void fail_to_write(const std::filesystem::path& file, const std::error_code& error = {}) {
  throw nn::FileError(file.string() + ": cannot be written" + (error ? ": " + error.message() : ""));
}

/// The new file. Only a regular one may be replaced: a renamed file in the place of a device would be no device.
std::ofstream begin_part(const std::filesystem::path& file) {
  std::error_code ignored;
  const auto status = std::filesystem::status(file, ignored);
  std::ofstream out;
  if (!std::filesystem::exists(status) || std::filesystem::is_regular_file(status))
    out.open(part_of(file), std::ios::binary);
  if (!out.is_open()) fail_to_write(file);
  return out;
}

}  // namespace

void require_writable(const std::filesystem::path& file) {
  begin_part(file).close();
  std::filesystem::remove(part_of(file));
}

void write_file(const std::filesystem::path& file, std::string_view text) {
  std::ofstream out = begin_part(file);
  out << text;
  out.close();
  std::error_code error, ignored;
  if (out) std::filesystem::rename(part_of(file), file, error);
  if (out && !error) return;
  std::filesystem::remove(part_of(file), ignored);
  fail_to_write(file, error);
}

std::string one_line(std::string_view text) {
  constexpr std::size_t kMost = 40;
  std::size_t end = std::min(text.size(), kMost);
  while (end < text.size() && end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;  // of UTF-8
  std::string result = "\"";
  for (const char c : text.substr(0, end)) result += static_cast<unsigned char>(c) < 0x20 || c == 0x7F ? '?' : c;
  return result + (end < text.size() ? "\u2026\"" : "\"");
}

}  // namespace training
