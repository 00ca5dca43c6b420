// Parameter files: the written bytes, round trips, and that a failed save destroys nothing.
#include "gpt.h"
#include "nn_safetensors_files.h"

namespace nn::test {
namespace {

TEST_F(NnSafeTensors, BytesByHand) {
  std::vector<Stored<float>> stored{{"a", {2}, {1, -2}}};
  save_safetensors(path(), parameters_of(stored), {{"k", "v"}});
  const std::string header = R"({"__metadata__":{"k":"v"},"a":{"data_offsets":[0,8],"dtype":"F32","shape":[2]}})";
  ASSERT_EQ(header.size(), 79u);
  EXPECT_EQ(read(), bytes_of_length(80) + header + " " + kData);
  EXPECT_FALSE(fs::exists(path("model.safetensors.part")));
}

TEST_F(NnSafeTensors, ReadsFilesOfOtherWriters) {
  // Names in a different order than the data, blanks, an empty tensor and a scalar without dimensions.
  write(R"( { "b" : {"dtype":"F32","shape":[],"data_offsets":[8,12]}, "e":{"dtype":"F64","shape":[3,0],)"
        R"("data_offsets":[12,12]}, "a":{"dtype":"F32","shape":[1,2],"data_offsets":[0,8]}}  )",
        kData + std::string("\x00\x00\x40\x40", 4));
  std::vector<Stored<float>> stored{{"a", {1, 2}, {0, 0}}, {"b", {}, {0}}, {"e", {3, 0}, {}}};
  const SafeTensors file(path());
  file.load(parameters_of(stored));
  EXPECT_EQ(stored[0].values, (std::vector<float>{1, -2}));
  EXPECT_EQ(stored[1].values, (std::vector<float>{3}));
  EXPECT_TRUE(file.metadata().empty());
}

template <class T>
class NnSafeTensorsOf : public NnSafeTensors {};
using Scalars = ::testing::Types<float, double>;
TYPED_TEST_SUITE(NnSafeTensorsOf, Scalars);

TYPED_TEST(NnSafeTensorsOf, RoundTrip) {
  using T = TypeParam;
  const T smallest = std::numeric_limits<T>::denorm_min(), largest = std::numeric_limits<T>::max();
  std::vector<Stored<T>> stored{{"z.weight", {2, 3}, {1, T(-0.0), smallest, largest, -largest, T(0.1)}},
                                {"layers.0.\"x\"\n", {1}, {T(7)}},
                                {"none", {0, 4}, {}}};
  const Metadata metadata{{"format", "1"}, {"text", "好久不见 \"\\\n"}, {"", ""}};
  save_safetensors(this->path(), parameters_of(stored), metadata);
  auto loaded = stored;
  for (auto& s : loaded) std::fill(s.values.begin(), s.values.end(), T(9));
  const SafeTensors file(this->path());
  file.load(parameters_of(loaded));
  for (std::size_t i = 0; i < stored.size(); ++i)
    EXPECT_EQ(std::memcmp(loaded[i].values.data(), stored[i].values.data(), stored[i].values.size() * sizeof(T)), 0);
  EXPECT_EQ(file.metadata(), metadata);
}

TEST_F(NnSafeTensors, ConvertsBetweenFloatAndDouble) {
  std::vector<Stored<double>> doubles{{"a", {2}, {0.1, -3}}};
  save_safetensors(path(), parameters_of(doubles), {});
  SafeTensors(path()).load(parameters_of(wanted_));
  EXPECT_EQ(wanted_[0].values, (std::vector<float>{0.1f, -3}));
  save_safetensors(path(), parameters_of(wanted_), {});
  SafeTensors(path()).load(parameters_of(doubles));
  EXPECT_EQ(doubles[0].values, (std::vector<double>{0.1f, -3}));
  doubles[0].values[1] = 1e300;
  save_safetensors(path(), parameters_of(doubles), {});
  expect_error("a has a value that is not finite");
}

TEST_F(NnSafeTensors, AModel) {
  Gpt<float> model({.tokens = 9, .context = 8, .layers = 2, .features = 16, .bias = true}, 1);
  Gpt<float> other({.tokens = 9, .context = 8, .layers = 2, .features = 16, .bias = true}, 2);
  save_safetensors(path(), nn::parameters_of<float>(model), {});
  SafeTensors(path()).load(nn::parameters_of<float>(other));
  EXPECT_EQ(all_values<float>(model), all_values<float>(other));
  const Tokens tokens = tokens_of({{1, 5, 8}});
  EXPECT_TRUE(same_bits(model(tokens), other(tokens)));
  Gpt<float> larger({.tokens = 9, .context = 9, .layers = 2, .features = 16, .bias = true}, 3);
  EXPECT_THROW(SafeTensors(path()).load(nn::parameters_of<float>(larger)), FileError);
}

TEST_F(NnSafeTensors, MetadataHasTextAndNumbers) {
  std::vector<Stored<float>> none;
  save_safetensors(path(), parameters_of(none),
                   {{"n", "-12"}, {"word", "7x"}, {"empty", ""}, {"huge", "99999999999999999999"}});
  const SafeTensors file(path());
  EXPECT_EQ(file.text("word"), "7x");
  EXPECT_EQ(file.number("n", -12, 5), -12);
  EXPECT_THROW(file.text("missing"), FileError);
  EXPECT_THROW(file.number("n", -11, 5), FileError);
  EXPECT_THROW(file.number("n", -20, -13), FileError);
  for (const char* key : {"word", "empty", "huge", "missing"}) EXPECT_THROW(file.number(key, -100, 100), FileError);
}

/// Saves that fail and must keep the last good file.
class NnFailedSave : public NnSafeTensors {
 protected:
  NnFailedSave() {
    std::vector<Stored<float>> good{{"a", {2}, {1, -2}}};
    save_safetensors(path(), parameters_of(good), {});
    good_ = read();
  }
  void expect_failure(const fs::path& file, const Metadata& metadata = {}) {
    std::vector<Stored<float>> stored{{"b", {100000}, std::vector<float>(100000, 1)}};
    try {
      save_safetensors(file, parameters_of(stored), metadata);
      ADD_FAILURE() << "the file was saved";
    } catch (const FileError& e) {
      EXPECT_EQ(std::string(e.what()).find(file.string() + ": "), 0u) << e.what();
    }
    EXPECT_EQ(read(), good_);
  }
  std::string good_;
};

TEST_F(NnFailedSave, IntoAMissingFolder) { expect_failure(path("missing/model")); }

TEST_F(NnFailedSave, OntoAFolder) {
  fs::create_directories(path("folder/inside"));
  expect_failure(path("folder"));
  EXPECT_TRUE(fs::exists(path("folder/inside")));
  EXPECT_FALSE(fs::exists(path("folder.part")));
}

TEST_F(NnFailedSave, OntoAFullDevice) {
  std::error_code error;
  if (!fs::is_character_file("/dev/full", error)) GTEST_SKIP() << "this system has no /dev/full";
  fs::create_symlink("/dev/full", path("model.safetensors.part"));
  expect_failure(path());
  EXPECT_TRUE(fs::is_character_file("/dev/full"));
}

/// The header can only hold UTF-8.
TEST_F(NnFailedSave, OfInvalidUtf8) { expect_failure(path(), {{"text", "\xff\xfe"}}); }

TEST_F(NnFailedSave, TheNextSaveSucceeds) {
  expect_failure(path("missing/model"));
  std::vector<Stored<float>> stored{{"a", {2}, {5, 6}}};
  save_safetensors(path(), parameters_of(stored), {});
  SafeTensors(path()).load(parameters_of(wanted_));
  EXPECT_EQ(wanted_[0].values, (std::vector<float>{5, 6}));
}

}  // namespace
}  // namespace nn::test
