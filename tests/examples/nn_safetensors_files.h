// Parameter files for tests, and the errors that broken ones cause.
#pragma once

#include <filesystem>
#include <fstream>

#include <unistd.h>

#include "nn_numbers.h"
#include "safetensors.h"
#include "support/allocations.h"

namespace nn::test {

namespace fs = std::filesystem;

/// Parameters without a model.
template <class T>
struct Stored {
  std::string name;
  std::vector<Index> shape;
  std::vector<T> values;
};
template <class T>
std::vector<Parameter<T>> parameters_of(std::vector<Stored<T>>& stored) {
  std::vector<Parameter<T>> all;
  for (Stored<T>& s : stored) all.push_back({s.name, s.shape, s.values, {}});
  return all;
}

inline std::string bytes_of_length(std::uint64_t length) {
  std::string bytes(8, '\0');
  for (std::size_t i = 0; i < 8; ++i) bytes[i] = static_cast<char>(length >> (8 * i) & 0xff);
  return bytes;
}

class NnSafeTensors : public ::testing::Test {
 protected:
  NnSafeTensors() : folder_(fs::path(::testing::TempDir()) / ("attn_nn_" + std::to_string(::getpid()))) {
    fs::create_directories(folder_);
  }
  ~NnSafeTensors() override { fs::remove_all(folder_); }

  fs::path path(const std::string& name = "model.safetensors") const { return folder_ / name; }

  void write(const std::string& bytes) const {
    std::ofstream(path(), std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  }
  /// Writes a file with this header, unpadded, followed by these bytes.
  void write(const std::string& header, const std::string& data) const {
    write(bytes_of_length(header.size()) + header + data);
  }
  std::string read() const {
    std::ifstream in(path(), std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }

  /// Opens and loads a file and returns the error message, empty if there is none. Checks that the message is one line
  /// that begins with the file, and that the peak memory is at most a few times the file's size.
  std::string error(const fs::path& file) {
    std::string message;
    std::error_code none;
    const auto size = fs::is_regular_file(file, none) ? fs::file_size(file) : 0;
    const auto taken = attn::test::allocations_of([&] {
      try {
        const SafeTensors opened(file);
        opened.load(parameters_of(wanted_));
      } catch (const FileError& e) {
        message = e.what();
      }
    });
    EXPECT_LE(taken.peak, static_cast<std::ptrdiff_t>(64 * size + 65536));
    if (message.empty()) return message;
    EXPECT_EQ(message.find(file.string() + ": "), 0u) << message;
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
    return message;
  }
  void expect_error(const std::string& said) {
    const std::string message = error(path());
    EXPECT_NE(message.find(said), std::string::npos) << "\"" << message << "\" should say: " << said;
  }

  std::vector<Stored<float>> wanted_{{"a", {2}, {0, 0}}};
  fs::path folder_;
};

inline const std::string kHeader = R"({"a":{"data_offsets":[0,8],"dtype":"F32","shape":[2]}})";
/// 1 and -2 as little-endian floats.
inline const std::string kData("\x00\x00\x80\x3f\x00\x00\x00\xc0", 8);

}  // namespace nn::test
