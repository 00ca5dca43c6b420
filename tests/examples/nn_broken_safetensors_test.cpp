// Broken or forged parameter files: an error that names the file, never a crash, and never more memory than the file's
// size justifies.
#include <cstdint>
#include <iterator>
#include <sstream>

#include "nn_safetensors_files.h"

namespace nn::test {
namespace {

class NnBrokenSafeTensors : public NnSafeTensors {};

TEST_F(NnBrokenSafeTensors, TruncatedAnywhere) {
  write(kHeader, kData);
  ASSERT_EQ(error(path()), "");
  const std::string whole = read();
  for (std::size_t size = 0; size < whole.size(); ++size) {
    write(whole.substr(0, size));
    EXPECT_NE(error(path()), "") << size;
  }
  write(whole + '\0');
  expect_error("belong to no tensor");
}

TEST_F(NnBrokenSafeTensors, HeaderLengths) {
  for (const std::uint64_t length :
       {std::uint64_t(0), std::uint64_t(kHeader.size() + 9), std::uint64_t(100'000'000), std::uint64_t(100'000'001),
        std::uint64_t(1) << 31, std::uint64_t(1) << 63, ~std::uint64_t(0), ~std::uint64_t(0) - 7}) {
    write(bytes_of_length(length) + kHeader + kData);
    EXPECT_NE(error(path()), "") << length;
  }
}

/// Invalid headers, each followed by the 8 bytes of kData.
TEST_F(NnBrokenSafeTensors, InvalidHeaders) {
  const std::string a = R"({"dtype":"F32","shape":[2],"data_offsets":[0,8]})";
  for (const std::string& header : std::vector<std::string>{"",
                                                            " ",
                                                            "null",
                                                            "true",
                                                            "7",
                                                            "\"a\"",
                                                            "[]",
                                                            "[" + a + "]",
                                                            "{",
                                                            kHeader + kHeader,
                                                            kHeader + "x",
                                                            "{\"a\":" + a + ",}",
                                                            "{\"\xff\":" + a + "}",
                                                            "{\"a\":null}",
                                                            "{\"a\":[]}",
                                                            "{\"a\":7}",
                                                            "{\"a\":{}}",
                                                            std::string(kHeader.size(), '\0'),
                                                            std::string(200000, '['),
                                                            std::string(200000, '{')}) {
    write(header, kData);
    EXPECT_NE(error(path()), "") << header.substr(0, 80);
  }
}

/// Deeply nested values, properly closed: reading them must not recurse.
TEST_F(NnBrokenSafeTensors, NestedDeeply) {
  const auto repeated = [](const std::string& part, std::size_t count) {
    std::string all;
    for (std::size_t i = 0; i < count; ++i) all += part;
    return all;
  };
  for (const std::size_t levels : {2u, 3u, 1000u, 200000u}) {
    const std::string arrays = std::string(levels, '[') + std::string(levels, ']');
    const std::string objects = repeated("{\"a\":", levels) + "0" + std::string(levels, '}');
    for (const std::string& value : {arrays, objects})
      for (const std::string& header :
           {value, "{\"__metadata__\":" + value + "," + kHeader.substr(1), "{\"b\":" + value + "," + kHeader.substr(1),
            R"({"a":{"dtype":"F32","shape":)" + value + R"(,"data_offsets":[0,8]}})"}) {
        write(header, kData);
        EXPECT_NE(error(path()), "") << levels << " levels, " << header.substr(0, 40);
      }
  }
  // Unknown members are not descended into either.
  const std::string begin = R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8],"more":)";
  write(begin + "[0]}}", kData);
  EXPECT_EQ(error(path()), "");
  for (const char* deeper : {"[[0]]", R"([{"x":0}])", R"({"x":[]})", R"({"x":{}})"}) {
    write(begin + deeper + "}}", kData);
    EXPECT_NE(error(path()), "") << deeper;
  }
}

/// A sparse file of a terabyte: no data is read before the shapes are compared with the model's.
TEST_F(NnBrokenSafeTensors, SparseFileOfATerabyte) {
  constexpr std::uint64_t kBytes = std::uint64_t(1) << 40;
  write(R"({"a":{"dtype":"F32","shape":[)" + std::to_string(kBytes / 4) + R"(],"data_offsets":[0,)" +
            std::to_string(kBytes) + "]}}",
        "");
  std::error_code none;
  fs::resize_file(path(), fs::file_size(path()) + kBytes, none);
  if (none) GTEST_SKIP() << "no sparse files on this file system: " << none.message();
  const auto taken = attn::test::allocations_of([&] {
    try {
      const SafeTensors opened(path());
      opened.load(parameters_of(wanted_));
      ADD_FAILURE() << "the file was loaded";
    } catch (const FileError& e) {
      EXPECT_NE(std::string(e.what()).find("the model needs [2]"), std::string::npos) << e.what();
    }
  });
  EXPECT_LT(taken.peak, 1 << 20);
}

std::vector<std::string> words(const std::string& text) {
  std::istringstream in(text);
  return {std::istream_iterator<std::string>(in), {}};
}

/// One tensor with a wrong dtype, shape or offsets.
TEST_F(NnBrokenSafeTensors, InvalidDescriptions) {
  const auto refused = [&](const std::string& dtype, const std::string& shape, const std::string& offsets) {
    const std::string header =
        R"({"a":{"dtype":)" + dtype + R"(,"shape":)" + shape + R"(,"data_offsets":)" + offsets + "}}";
    write(header, kData);
    EXPECT_NE(error(path()), "") << header;
  };
  write(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", kData);
  ASSERT_EQ(error(path()), "");
  for (const std::string& dtype : words(R"("F16" "BF16" "I32" "F64" "f32" "" 32 null ["F32"])"))
    refused(dtype, "[2]", "[0,8]");
  for (const std::string& shape :
       words(R"([3] [1] [] [-2] [-1,-2] [2,1] [2.0] [2.9] [true,2] ["2"] 2 null {} [[2]] [0] [0,2] [1e300] [1e400])"
             " [4611686018427387906] [4294967296,4294967296,2] [9223372036854775807,2] [18446744073709551615]"
             " [9223372036854775809,2] [2,4611686018427387905]"))
    refused("\"F32\"", shape, "[0,8]");
  for (const std::string& offsets :
       words(R"([0,7] [0,9] [1,9] [4,8] [8,0] [8,16] [-8,0] [0,-8] [0] [] [0,8,8] [0,8.5] [0,1e300] [0.5,8] [false,8])"
             R"( ["0","8"] null 8 {} [18446744073709551608,0] [18446744073709551615,18446744073709551623])"))
    refused("\"F32\"", "[2]", offsets);
  for (const char* description : {R"("shape":[2],"data_offsets":[0,8])", R"("dtype":"F32","data_offsets":[0,8])",
                                  R"("dtype":"F32","shape":[2])"}) {
    write("{\"a\":{" + std::string(description) + "}}", kData);
    EXPECT_NE(error(path()), "") << description;
  }
}

/// Two tensors, of 4 bytes or other sizes, that must fill 8 bytes without overlap.
TEST_F(NnBrokenSafeTensors, TensorsThatOverlapOrLeaveGaps) {
  wanted_ = {{"a", {1}, {0}}, {"b", {1}, {0}}};
  const auto file_of = [&](const std::string& first, const std::string& second) {
    write(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":)" + first +
              R"(},"b":{"dtype":"F32","shape":[1],"data_offsets":)" + second + "}}",
          kData);
  };
  file_of("[4,8]", "[0,4]");
  ASSERT_EQ(error(path()), "");
  EXPECT_EQ(wanted_[0].values[0], -2);
  for (const auto& [first, second] : std::vector<std::pair<const char*, const char*>>{
           {"[0,4]", "[0,4]"}, {"[4,8]", "[4,8]"}, {"[0,4]", "[2,6]"}, {"[2,6]", "[4,8]"}}) {
    file_of(first, second);
    EXPECT_NE(error(path()), "") << first << second;
  }
  write(
      R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"b":{"dtype":"F32","shape":[1],"data_offsets":[8,12]}})",
      kData + "1234");
  expect_error("gaps");
  // Empty tensors must be within the file too.
  wanted_ = {{"a", {2}, {0, 0}}, {"e", {0}, {}}};
  write(R"({"e":{"dtype":"F32","shape":[0],"data_offsets":[99,99]},)" + kHeader.substr(1), kData);
  EXPECT_NE(error(path()), "");
}

TEST_F(NnBrokenSafeTensors, DuplicateNames) {
  const std::string a = R"("a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]})";
  const std::string half = R"("a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]})";
  for (const std::string& header :
       std::vector<std::string>{"{" + a + "," + a + "}", "{" + half + "," + a + "}", "{" + a + "," + half + "}",
                                R"({"__metadata__":{"k":"1"},"__metadata__":{"k":"2"},)" + a + "}",
                                R"({"__metadata__":{"k":"1","k":"2"},)" + a + "}",
                                R"({"a":{"dtype":"F32","shape":[9],"shape":[2],"data_offsets":[0,8]}})"}) {
    write(header, kData);
    EXPECT_NE(error(path()), "") << header;
  }
}

/// Text from a file is printed on one line and shortened.
TEST_F(NnBrokenSafeTensors, StrangeNames) {
  const std::string name = R"("\n\u001b[31m)" + std::string(1000, 'x') + "\":";
  for (const std::string& description :
       words(R"("dtype":"F32","shape":[2],"data_offsets":[0,8] "dtype":"F\n","shape":[2],"data_offsets":[0,8])"
             R"( "dtype":"F32","shape":[3],"data_offsets":[0,8] "dtype":"F32","shape":[2],"data_offsets":[0])"
             R"( "dtype":"F32","shape":[2],"data_offsets":[0,7])")) {
    wanted_ = {};
    write("{" + name + "{" + description + "}}", kData);
    const std::string message = error(path());
    EXPECT_NE(message, "") << description;
    EXPECT_EQ(message.find('\x1b'), std::string::npos) << description;
    EXPECT_LT(message.size(), path().string().size() + 300) << description;
  }
}

TEST_F(NnBrokenSafeTensors, MetadataThatIsNotText) {
  for (const char* metadata :
       {"7", "null", "[]", "\"text\"", R"({"k":7})", R"({"k":null})", R"({"k":{}})", R"([["k","v"]])"}) {
    write(R"({"__metadata__":)" + std::string(metadata) + "," + kHeader.substr(1), kData);
    EXPECT_NE(error(path()), "") << metadata;
  }
}

TEST_F(NnBrokenSafeTensors, ParametersThatDifferFromTheModels) {
  write(kHeader, kData);
  wanted_ = {{"b", {2}, {0, 0}}};
  expect_error("b is missing");
  wanted_ = {{"a", {1, 2}, {0, 0}}};
  expect_error("a has shape [2], but the model needs [1,2]");
  wanted_ = {};
  expect_error("a is not a parameter of the model");
}

TEST_F(NnBrokenSafeTensors, NonFiniteValues) {
  for (const char* number : {"\x00\x00\xc0\x7f", "\x00\x00\x80\x7f", "\x00\x00\x80\xff", "\x01\x00\x80\xff"}) {
    write(kHeader, kData.substr(0, 4) + std::string(number, 4));
    expect_error("a has a value that is not finite");
  }
}

TEST_F(NnBrokenSafeTensors, PathsThatAreNotFiles) {
  EXPECT_NE(error(folder_), "");
  EXPECT_NE(error(path("missing")), "");
  EXPECT_NE(error(path("missing/below")), "");
  EXPECT_NE(error("/dev/zero"), "") << "reading it would never end";
  EXPECT_NE(error(""), "");
}

/// Flipped bits and inserted or erased bytes: an error that names the file, or a loaded tensor.
TEST_F(NnBrokenSafeTensors, Damaged) {
  write(kHeader, kData);
  const std::string whole = read();
  Random random(7);
  const auto below = [&](std::size_t n) { return static_cast<std::size_t>(random.below(static_cast<Index>(n))); };
  int refused = 0;
  for (int trial = 0; trial < 600 && !HasFailure(); ++trial) {
    SCOPED_TRACE(trial);
    std::string bytes = whole;
    for (std::size_t changes = 1 + below(3); changes > 0; --changes) switch (below(4)) {
        case 0:
          bytes[below(bytes.size())] ^= static_cast<char>(1 << below(8));
          break;
        case 1:
          bytes[below(bytes.size())] = "0123456789-,:[]{}\"eE. "[below(22)];
          break;
        case 2:
          bytes.erase(below(bytes.size()), 1 + below(4));
          break;
        default:
          bytes.insert(below(bytes.size()), 1 + below(4), "0123456789-,:[]{}\"eE. "[below(22)]);
      }
    write(bytes);
    refused += error(path()).empty() ? 0 : 1;
  }
  EXPECT_GT(refused, 400);
  EXPECT_LT(refused, 600) << "some trials damage only values";
}

}  // namespace
}  // namespace nn::test
