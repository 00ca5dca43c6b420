// Reading and writing text files, and checking which files a program may write.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace training {

/// Returns the contents of a file. @throws nn::FileError if it cannot be read, or is larger than `most` bytes.
std::string read_file(const std::filesystem::path& file, std::uintmax_t most = std::uintmax_t{1} << 30);

/// Returns the text without the byte order mark that some editors write at its start.
std::string_view without_byte_order_mark(std::string_view text);

/// Writes a text through a nn::NewFile. @throws nn::FileError
void write_file(const std::filesystem::path& file, std::string_view text);

/// A file that was named on the command line.
struct NamedFile {
  std::string option;  ///< the option that named it: "--save"
  std::filesystem::path file;
};

/// Checks that each output file can be written, is not also an input file or the output of another option, and is
/// missing, empty, or of the format that its option writes. So a long run does not fail at its end because it cannot
/// write, and overwrites only files of its own kind. The format is the metadata entry "format" of safetensors files for
/// --save, and the first bytes of pictures and pages. Empty names are skipped.
/// @throws nn::FileError
void require_writable(const std::vector<NamedFile>& written, const std::vector<NamedFile>& read,
                      const std::string& format);

}  // namespace training
