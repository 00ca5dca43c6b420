#include "support/cases.h"

#include <limits>

#include <gtest/gtest.h>

namespace {

namespace fs = std::filesystem;
using attn::test::Case;
using attn::test::DType;
using attn::test::read_case;

/// A case folder in the temporary directory, removed after the test.
class CaseFolder : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
    folder_ = fs::path(::testing::TempDir()) / (std::string("attn_cases_") + test->name());
    fs::remove_all(folder_);
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }

  void write(const std::string& name, const std::string& content) const {
    std::ofstream(folder_ / name, std::ios::binary) << content;
  }
  void manifest(const std::string& lines) const { write("manifest.txt", "onnx_case 1\nname n\nop O\n" + lines); }

  /// A .npy file written by hand: magic, version 1.0, length of the header, header, payload.
  static std::string npy(const std::string& payload) {
    const std::string header = "{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }\n";
    return std::string("\x93NUMPY\x01\x00", 8) + static_cast<char>(header.size()) + '\0' + header + payload;
  }
  template <class T>
  static std::string raw(std::initializer_list<T> values) {
    return {reinterpret_cast<const char*>(values.begin()), values.size() * sizeof(T)};
  }

  /// Expects reading to fail with a message that contains all of `parts`.
  void expect_error(std::initializer_list<const char*> parts) const {
    try {
      read_case(folder_);
      FAIL() << "nothing was thrown";
    } catch (const std::runtime_error& e) {
      for (const char* part : parts) EXPECT_NE(std::string(e.what()).find(part), std::string::npos) << e.what();
    }
  }

  fs::path folder_;
};

TEST_F(CaseFolder, ReadsWhatTheManifestDescribes) {
  manifest(
      "opset 23\norigin hand\nattr is_causal i 1\nattr scale f 0.25\n"
      "input x f32 2 1 2 x.npy\ninput n i64 1 2 n.npy\noutput y f64 0 y.npy\n"
      "tol 1e-5 2e-5\nfeatures a b=0\nend\n");
  write("x.npy", npy(raw({1.5f, -2.0f})));
  write("n.npy", npy(raw<std::int64_t>({7, -1})));
  write("y.npy", npy(raw({0.1})));
  const Case c = read_case(folder_);
  EXPECT_EQ(c.name, "n");
  EXPECT_EQ(c.op, "O");
  EXPECT_EQ(c.opset, 23);
  EXPECT_EQ(c.origin, "hand");
  EXPECT_EQ(c.attr("is_causal", 0), 1);
  EXPECT_EQ(c.attr("scale", 1), 0.25);
  EXPECT_EQ(c.attr("softcap", 3), 3);
  EXPECT_FALSE(c.has_attr("softcap"));
  EXPECT_TRUE(c.has("x"));
  EXPECT_FALSE(c.has("y"));
  EXPECT_EQ(c.input("x").shape, (std::vector<attn::Index>{1, 2}));
  EXPECT_EQ(c.input("x").as<double>(), (std::vector<double>{1.5, -2.0}));
  EXPECT_EQ(c.input("n").as<attn::Index>(), (std::vector<attn::Index>{7, -1}));
  EXPECT_EQ(c.output("y").as<double>(), std::vector<double>{0.1});
  EXPECT_EQ(c.atol, 1e-5);
  EXPECT_EQ(c.rtol, 2e-5);
  EXPECT_EQ(c.features, (std::vector<std::string>{"a", "b=0"}));
  const auto t = c.input("x").tensor<float, 2>();
  EXPECT_EQ(t(0, 1), -2.0f);
  EXPECT_THROW((c.input("x").tensor<float, 3>()), std::runtime_error);
  EXPECT_THROW(c.input("z"), std::runtime_error);
}

TEST_F(CaseFolder, DecodesEveryDtype) {
  manifest(
      "input h f16 1 4 h.npy\ninput b bf16 1 3 b.npy\ninput t bool 1 3 t.npy\ninput d f64 1 1 d.npy\n"
      "input none f32 2 3 0 none.npy\nend\n");
  // f16: 1 sign, 5 exponent, 10 fraction bits: 1, -2, 65504, -inf. bf16: the upper half of a float: 1, -2, 3.140625.
  write("h.npy", npy(raw<std::uint16_t>({0x3c00, 0xc000, 0x7bff, 0xfc00})));
  write("b.npy", npy(raw<std::uint16_t>({0x3f80, 0xc000, 0x4049})));
  write("t.npy", npy(std::string("\x01\x00\x01", 3)));
  write("d.npy", npy(raw({0.1})));
  write("none.npy", npy(""));
  const Case c = read_case(folder_);
  constexpr double kInf = std::numeric_limits<double>::infinity();
  EXPECT_EQ(c.input("h").dtype, DType::f16);
  EXPECT_EQ(c.input("h").as<double>(), (std::vector<double>{1, -2, 65504, -kInf}));
  EXPECT_EQ(c.input("b").dtype, DType::bf16);
  EXPECT_EQ(c.input("b").as<float>(), (std::vector<float>{1, -2, 3.140625f}));
  EXPECT_EQ(c.input("t").as<bool>(), (std::vector<bool>{true, false, true}));
  EXPECT_EQ(c.input("d").as<float>(), std::vector<float>{0.1f});
  EXPECT_EQ(c.input("none").size(), 0);
}

TEST_F(CaseFolder, ReportsABadManifest) {
  expect_error({"manifest.txt", "cannot be opened"});
  write("manifest.txt", "something else\n");
  expect_error({"manifest.txt", "not a case manifest"});
  write("manifest.txt", "onnx_case 2\n");
  expect_error({"manifest.txt", "format version 2"});
  write("manifest.txt", "");
  expect_error({"manifest.txt", "truncated"});
  manifest("opset 23\n");
  expect_error({"manifest.txt", "truncated"});
  manifest("colour blue\nend\n");
  expect_error({"manifest.txt", "line 4", "unknown keyword 'colour'"});
  manifest("opset many\nend\n");
  expect_error({"manifest.txt", "line 4", "opset"});
  manifest("origin by hand\nend\n");
  expect_error({"manifest.txt", "line 4", "unexpected 'hand'"});
  manifest("attr a s hello\nend\n");
  expect_error({"manifest.txt", "line 4", "attribute value"});
  manifest("attr a s 1\nend\n");
  expect_error({"manifest.txt", "line 4", "unknown attribute type 's'"});
  manifest("attr a i 1\nattr a i 2\nend\n");
  expect_error({"manifest.txt", "line 5", "second attribute 'a'"});
  manifest("input x f31 1 2 x.npy\nend\n");
  expect_error({"manifest.txt", "line 4", "unknown dtype 'f31'"});
  manifest("input x f32 3 1 2 x.npy\nend\n");
  expect_error({"manifest.txt", "line 4", "dimension"});
  manifest("input x f32 1 -2 x.npy\nend\n");
  expect_error({"manifest.txt", "line 4", "-2", "negative"});
  manifest("input x f32 2 2147483648 2147483648 x.npy\nend\n");
  expect_error({"manifest.txt", "line 4", "not plausible"});
  manifest("input x f32 99 1\nend\n");
  expect_error({"manifest.txt", "line 4", "rank 99"});
  manifest("input x f32 1 2\nend\n");
  expect_error({"manifest.txt", "line 4", "file name"});
}

TEST_F(CaseFolder, ReportsABadArray) {
  manifest("input x f32 1 2 x.npy\nend\n");
  const std::string good = npy(raw({1.0f, 2.0f}));

  expect_error({"x.npy", "cannot be opened"});
  write("x.npy", "");
  expect_error({"x.npy", "magic"});
  write("x.npy", "PK\x03\x04 an archive");
  expect_error({"x.npy", "magic"});
  write("x.npy", good.substr(0, 8));
  expect_error({"x.npy", "ends inside the header"});
  write("x.npy", good.substr(0, 20));
  expect_error({"x.npy", "ends inside the header"});
  write("x.npy", good.substr(0, good.size() - 1));
  expect_error({"x.npy", "holds 7 bytes", "expects 8"});
  write("x.npy", good + "more");
  expect_error({"x.npy", "holds 12 bytes", "expects 8"});
  std::string other = good;
  other[6] = 2;
  write("x.npy", other);
  expect_error({"x.npy", "version 2.0"});
  other = good;
  other.replace(other.find("False"), 5, "True ");
  write("x.npy", other);
  expect_error({"x.npy", "C order"});

  write("x.npy", good);
  EXPECT_EQ(read_case(folder_).input("x").as<float>(), (std::vector<float>{1, 2}));
  manifest("input x f32 1 2 x.npy\ninput x f32 1 2 x.npy\nend\n");
  expect_error({"manifest.txt", "line 5", "second input 'x'"});
}

}  // namespace
