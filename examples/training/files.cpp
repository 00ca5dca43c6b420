#include "files.h"

#include <fstream>

#include "new_file.h"
#include "safetensors.h"

namespace training {

namespace {

/// Whether two names refer to the same file, which need not exist.
bool same(const std::filesystem::path& a, const std::filesystem::path& b) {
  std::error_code none, also_none;
  if (std::filesystem::equivalent(a, b, none)) return true;
  return std::filesystem::weakly_canonical(a, none) == std::filesystem::weakly_canonical(b, also_none) && !none &&
         !also_none;
}

bool begins_as(const std::filesystem::path& file, std::string_view text) {
  std::string begin(text.size(), '\0');
  std::ifstream in(file, std::ios::binary);
  return in.read(begin.data(), static_cast<std::streamsize>(begin.size())) && begin == text;
}

/// Whether a file may be overwritten: it is missing, empty, or of the format that the option writes.
bool is_own(const NamedFile& named, const std::string& format) {
  std::error_code none;
  if (!std::filesystem::exists(named.file, none) || std::filesystem::is_empty(named.file, none)) return true;
  if (named.option == "--save") return nn::format_of(named.file) == format;
  if (named.option == "--report") return begins_as(named.file, "<!DOCTYPE html>");
  return begins_as(named.file, "<svg") || begins_as(named.file, "<?xml");
}

}  // namespace

std::string read_file(const std::filesystem::path& file, std::uintmax_t most) {
  const auto fail = [&](const std::string& what) { throw nn::FileError(file.string() + ": " + what); };
  std::error_code error;
  const auto status = std::filesystem::status(file, error);
  if (!std::filesystem::exists(status)) fail("there is no such file");
  if (!std::filesystem::is_regular_file(status)) fail("is not a file");
  const std::uintmax_t size = std::filesystem::file_size(file, error);
  std::ifstream in(file, std::ios::binary);
  if (error || !in) fail("cannot be opened");
  if (size > most) fail("has " + std::to_string(size) + " bytes, more than " + std::to_string(most));
  std::string text(static_cast<std::size_t>(size), '\0');
  if (!in.read(text.data(), static_cast<std::streamsize>(size))) fail("cannot be read");
  return text;
}

std::string_view without_byte_order_mark(std::string_view text) {
  constexpr std::string_view kMark = "\xEF\xBB\xBF";
  return text.starts_with(kMark) ? text.substr(kMark.size()) : text;
}

void write_file(const std::filesystem::path& file, std::string_view text) {
  nn::NewFile out(file);
  out.write(text.data(), text.size());
  out.put_in_place();
}

void require_writable(const std::vector<NamedFile>& written, const std::vector<NamedFile>& read,
                      const std::string& format) {
  for (std::size_t i = 0; i < written.size(); ++i) {
    const NamedFile& named = written[i];
    if (named.file.empty()) continue;
    const auto refuse = [&](const std::string& what) { throw nn::FileError(named.file.string() + ": " + what); };
    std::vector<NamedFile> others = read;
    others.insert(others.end(), written.begin(), written.begin() + static_cast<std::ptrdiff_t>(i));
    for (const NamedFile& other : others)
      if (!other.file.empty() && same(named.file, other.file))
        refuse("is named by " + other.option + " and " + named.option + ", and " + named.option +
               " would overwrite it");
    const nn::NewFile can_be_written(named.file);
    if (!is_own(named, format)) refuse("is not a file that " + named.option + " writes, so it is not overwritten");
  }
}

}  // namespace training
