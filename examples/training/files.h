// Text files, in and out.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

namespace training {

/// All of a file. @throws nn::FileError if it cannot be read, or is larger than `most` bytes.
std::string read_file(const std::filesystem::path& file, std::uintmax_t most = std::uintmax_t{1} << 30);

/// So that a long run does not find out at its end that it cannot write. @throws nn::FileError
void require_writable(const std::filesystem::path& file);

/// Writes the text beside the file, and then puts that in its place. @throws nn::FileError
void write_file(const std::filesystem::path& file, std::string_view text);

/// Text of a file as messages show it, in quotes: on one line, and not too long for one.
std::string one_line(std::string_view text);

}  // namespace training
