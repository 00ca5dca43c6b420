// Text files, in and out, and which files a program may write.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace training {

/// The text of a file. @throws nn::FileError if it cannot be read, or is larger than `most` bytes.
std::string read_file(const std::filesystem::path& file, std::uintmax_t most = std::uintmax_t{1} << 30);

/// The text without the byte order mark that some editors put before it.
std::string_view without_byte_order_mark(std::string_view text);

/// Writes a text to a nn::NewFile. @throws nn::FileError
void write_file(const std::filesystem::path& file, std::string_view text);

/// A file that was named on the command line.
struct NamedFile {
  std::string option;  ///< the option that named it: "--save"
  std::filesystem::path file;
};

/// Requires that each file that is to be written can be, is not among those that are read or written under another
/// option, and is missing, empty, or of the format of its option. So a long run does not find out at its end that it
/// cannot write, and writes over nothing that is not its own. The format is "format" in a file of safetensors for
/// --save, and the beginning of pictures and pages. Empty names are left out.
/// @throws nn::FileError
void require_writable(const std::vector<NamedFile>& written, const std::vector<NamedFile>& read,
                      const std::string& format);

}  // namespace training
