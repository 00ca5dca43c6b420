// Every invalid call throws std::invalid_argument with the mismatched numbers in its message, and writes nothing.
#include <limits>
#include <memory>

#include "support/refused.h"

namespace attn::test {
namespace {

TEST(BadInput, SizesThatDisagree) {
  expect_all_refuse("batch of key", {"2", "5"}, kQ, {5, 3, 17, 13}, {5, 3, 17, 19});
  expect_all_refuse("batch of value", {"2", "5"}, kQ, kK, {5, 3, 17, 19});
  expect_all_refuse("heads of value", {"3", "7"}, kQ, kK, {2, 7, 17, 19});
  expect_all_refuse("kv_len", {"17", "23"}, kQ, kK, {2, 3, 23, 19});
  expect_all_refuse("head_dim", {"13", "29"}, kQ, {2, 3, 17, 29}, kV);
}

TEST(BadInput, KvHeadsThatDoNotDivideHeads) {
  expect_all_refuse("not a multiple", {"6", "4"}, kQ, {2, 4, 17, 13}, {2, 4, 17, 19});
  expect_all_refuse("more key heads than query heads", {"6", "12"}, kQ, {2, 12, 17, 13}, {2, 12, 17, 19});
  expect_all_refuse("no query heads", {"0", "3"}, {2, 0, 11, 13}, kK, kV);
  expect_all_refuse("no key heads", {"6", "0"}, kQ, {2, 0, 17, 13}, {2, 0, 17, 19});
  expect_all_refuse("no heads at all", {"0"}, {2, 0, 11, 13}, {2, 0, 17, 13}, {2, 0, 17, 19});
}

TEST(BadInput, HeadDimOfZero) { expect_all_refuse("head_dim 0", {"0"}, {2, 6, 11, 0}, {2, 3, 17, 0}, kV); }

TEST(BadInput, Matrices) {
  const Eigen::MatrixXf q(5, 8), k(7, 8), v(7, 3);
  expect_refused("head_dim", {"8", "9"}, [&] { attention(q, Eigen::MatrixXf(7, 9), v); });
  expect_refused("kv_len", {"7", "6"}, [&] { attention(q, k, Eigen::MatrixXf(6, 3)); });
  expect_refused("naive head_dim", {"8", "9"}, [&] { naive_attention(q, Eigen::MatrixXf(7, 9), v); });
  Eigen::MatrixXf out = Eigen::MatrixXf::Constant(3, 5, kUntouched);
  expect_refused("transposed output", {"(1, 1, 3, 5)", "(1, 1, 5, 3)"}, [&] { attention_into(out, q, k, v); });
  EXPECT_TRUE((out.array() == kUntouched).all());
}

TEST(BadInput, Outputs) {
  const auto q = tensor(kQ), k = tensor(kK), v = tensor(kV);
  for (const Shape<4>& shape :
       {Shape<4>{1, 6, 11, 19}, Shape<4>{2, 3, 11, 19}, Shape<4>{2, 6, 17, 19}, Shape<4>{2, 6, 11, 13}}) {
    auto out = tensor(shape);
    std::fill_n(out.data(), out.size(), kUntouched);
    const Said numbers{shown(shape), "(2, 6, 11, 19)"};
    expect_refused("out", numbers, [&] { attention_into(out, q, k, v); });
    expect_refused("out", numbers, [&] { naive_attention_into(out, q, k, v); });
    for (Index i = 0; i < out.size(); ++i) ASSERT_EQ(out.data()[i], kUntouched);
  }
  auto out = tensor({2, 6, 11, 19});
  std::fill_n(out.data(), out.size(), kUntouched);
  for (const Shape<3>& shape : {Shape<3>{1, 6, 11}, Shape<3>{2, 3, 11}, Shape<3>{2, 6, 17}}) {
    Tensor<float, 3> lse(shape);
    expect_refused("lse", {shown(shape), "(2, 6, 11)"}, [&] { attention_into(out, lse, q, k, v); });
  }
  for (Index i = 0; i < out.size(); ++i) ASSERT_EQ(out.data()[i], kUntouched);
}

TEST(BadInput, LseThatIsNotAVector) {
  const Eigen::MatrixXf q(6, 8), k(7, 8), v(7, 3);
  Eigen::MatrixXf out = Eigen::MatrixXf::Constant(6, 3, kUntouched), lse = Eigen::MatrixXf::Constant(3, 2, kUntouched);
  expect_refused("six elements, not a vector", {"3 rows", "2 columns"}, [&] { attention_into(out, lse, q, k, v); });
  expect_refused("values in place of lse", {"lse", "7 rows", "3 columns"}, [&] { attention_mass(q, k, v); });
  expect_refused("a tensor of rank 2", {"2 rows", "3 columns"}, [&] { entropy(q, k, Tensor<float, 2>({2, 3})); });
  expect_refused("lse to merge", {"3 rows", "2 columns"}, [&] { merge_into(out, lse, out, Eigen::VectorXf(6)); });
  expect_refused("lse of the other part", {"3 rows", "2 columns"},
                 [&] { merge_into(out, Eigen::VectorXf(6), out, lse); });
  EXPECT_TRUE((out.array() == kUntouched).all());
  EXPECT_TRUE((lse.array() == kUntouched).all());
}

TEST(BadInput, LseOfEveryRankThatFits) {
  // Each views a vector of 6, followed by an element that must stay untouched.
  const auto q = Eigen::MatrixXf::Random(6, 8).eval(), k = Eigen::MatrixXf::Random(7, 8).eval();
  const Eigen::VectorXf expected = attention(q, k, k).lse;
  Eigen::MatrixXf out(6, 8);
  const auto expect_written = [&](const char* what, const auto& view_of) {
    Tensor<float, 1> memory({7});
    memory(6) = kUntouched;
    attention_into(out, view_of(memory.data()), q, k, k);
    EXPECT_EQ(Eigen::Map<const Eigen::VectorXf>(memory.data(), 6), expected) << what;
    EXPECT_EQ(memory(6), kUntouched);
  };
  expect_written("rank 1", [](float* to) { return TensorView<float, 1>(to, {6}); });
  expect_written("rank 2, a column", [](float* to) { return TensorView<float, 2>(to, {6, 1}); });
  expect_written("rank 2, a row", [](float* to) { return TensorView<float, 2>(to, {1, 6}); });
  expect_written("rank 3", [](float* to) { return TensorView<float, 3>(to, {1, 1, 6}); });
  expect_written("an Eigen vector", [](float* to) { return Eigen::Map<Eigen::VectorXf>(to, 6); });
  expect_written("an Eigen row", [](float* to) { return Eigen::Map<Eigen::RowVectorXf>(to, 6); });
}

TEST(BadInput, OutputsThatShareElements) {
  const auto q = tensor(kQ), k = tensor(kK), v = tensor(kV);
  auto memory = tensor({2, 6, 11, 19});
  std::fill_n(memory.data(), memory.size(), kUntouched);
  const TensorView<float, 3> lse(memory.data(), {2, 6, 11});
  for (std::size_t i = 0; i < 4; ++i) {
    Shape<4> strides = memory.view().strides();
    strides[i] = 0;
    const TensorView<float, 4> out(memory.data(), {2, 6, 11, 19}, strides);
    expect_refused("out", {"(2, 6, 11, 19)"}, [&] { attention_into(out, q, k, v); });
    expect_refused("out with lse", {"(2, 6, 11, 19)"}, [&] { attention_into(out, lse, q, k, v); });
    expect_refused("naive out", {"(2, 6, 11, 19)"}, [&] { naive_attention_into(out, q, k, v); });
  }
  auto out = tensor({2, 6, 11, 19});
  for (std::size_t i = 0; i < 3; ++i) {
    Shape<3> strides = lse.strides();
    strides[i] = 0;
    const TensorView<float, 3> shared(memory.data(), {2, 6, 11}, strides);
    expect_refused("lse", {"(2, 6, 11)"}, [&] { attention_into(out, shared, q, k, v); });
  }
  for (Index i = 0; i < memory.size(); ++i) ASSERT_EQ(memory.data()[i], kUntouched);

  // A stride of 0 along a dimension of size 0 or 1 shares no elements.
  const TensorView<float, 4> one_batch(out.data(), {1, 6, 11, 19}, {0, 11 * 19, 19, 1});
  EXPECT_NO_THROW(attention_into(one_batch, tensor({1, 6, 11, 13}), tensor({1, 3, 17, 13}), tensor({1, 3, 17, 19})));
  const TensorView<float, 4> nothing(out.data(), {2, 6, 0, 19}, {0, 0, 0, 0});
  EXPECT_NO_THROW(attention_into(nothing, tensor({2, 6, 0, 13}), k, v));
}

TEST(BadInput, OffsetsThatOverflow) {
  constexpr Index kFarthest = Index(1) << 60;
  expect_all_refuse("far", {"1152921504606846977"}, kQ, kK, kV, causal(), {.q_offset = kFarthest + 1});
  expect_all_refuse("far before", {"-1152921504606846977"}, kQ, kK, kV, full(), {.q_offset = -kFarthest - 1});
  const Index most = std::numeric_limits<Index>::max();
  expect_all_refuse("largest", {std::to_string(most)}, kQ, kK, kV, sliding_window(3), {.q_offset = most});
  expect_all_refuse("least", {std::to_string(-most - 1)}, kQ, kK, kV, full(), {.q_offset = -most - 1});
  const auto q = tensor(kQ), k = tensor(kK), v = tensor(kV);
  for (const Index farthest : {kFarthest, -kFarthest}) {
    const auto mods = causal() | sliding_window(std::numeric_limits<Index>::max()) | alibi(alibi_slopes(6));
    EXPECT_NO_THROW(attention(q, k, v, mods, {.q_offset = farthest}));
    EXPECT_NO_THROW(naive_attention(q, k, v, mods, {.q_offset = farthest}));
  }
}

TEST(BadInput, OffsetsOfBatchElements) {
  constexpr Index kFarthest = Index(1) << 60;
  expect_all_refuse("too few", {"1 q_offsets", "batch of 2"}, kQ, kK, kV, causal(), {.q_offsets = {6}});
  expect_all_refuse("too many", {"3 q_offsets", "batch of 2"}, kQ, kK, kV, causal(), {.q_offsets = {6, 6, 6}});
  expect_all_refuse("both", {"q_offset 7", "2 q_offsets"}, kQ, kK, kV, full(), {.q_offset = 7, .q_offsets = {6, 6}});
  expect_all_refuse("far", {"q_offsets[1]", std::to_string(kFarthest + 1)}, kQ, kK, kV, full(),
                    {.q_offsets = {0, kFarthest + 1}});
  expect_all_refuse("of documents", {"-1", "9", "16"}, kQ, kK, kV, documents(std::vector<int>(17)),
                    {.q_offsets = {0, -1}});
  EXPECT_NO_THROW(
      attention(tensor(kQ), tensor(kK), tensor(kV), documents(std::vector<int>(17)), {.q_offsets = {0, 6}}));
}

TEST(BadInput, Workers) {
  expect_refused("none", {"0"}, [] { threads(0); });
  expect_refused("fewer than none", {"-1"}, [] { threads(-1); });
  expect_refused("a negative time", {"threads(2)", "-5"}, [] { threads(2, {.spin_microseconds = -5}); });
  expect_refused("a time without end", {"inf"},
                 [] { threads(2, {.spin_microseconds = std::numeric_limits<double>::infinity()}); });
  expect_refused("no time", {"nan"},
                 [] { threads(2, {.spin_microseconds = std::numeric_limits<double>::quiet_NaN()}); });
}

TEST(BadInput, AnExecutorWithoutWorkers) {
  struct NoWorkers final : Executor::Backend {
    int concurrency() const override { return 0; }
    void run(Index, TaskRef) const override {}
  };
  const auto q = tensor(kQ), k = tensor(kK), v = tensor(kV);
  const Options options{.executor = Executor(std::make_shared<NoWorkers>())};
  expect_refused("no workers", {"0 workers"}, [&] { attention(q, k, v, full(), options); });
}

TEST(BadInput, Scale) {
  constexpr double kInf = std::numeric_limits<double>::infinity();
  expect_all_refuse("infinite", {"inf"}, kQ, kK, kV, full(), {.scale = kInf});
  expect_all_refuse("minus infinite", {"-inf"}, kQ, kK, kV, full(), {.scale = -kInf});
  expect_all_refuse("not a number", {"nan"}, kQ, kK, kV, full(), {.scale = std::numeric_limits<double>::quiet_NaN()});
  expect_all_refuse("no float", {"1e+300"}, kQ, kK, kV, full(), {.scale = 1e300});
  const Tensor<double, 2> x({2, 3});
  EXPECT_NO_THROW(attention(x, x, x, full(), {.scale = 1e300}));
}

TEST(BadInput, Views) {
  float* const null = nullptr;
  float one = 0;
  expect_refused("null", {"30"}, [&] { TensorView<float, 2>(null, {5, 6}); });
  expect_refused("null bhsd", {"2310"}, [&] { bhsd(null, 2, 3, 5, 77); });
  expect_refused("null bshd", {"2310"}, [&] { bshd(null, 2, 5, 3, 77); });
  expect_refused("negative size", {"-4"}, [&] { TensorView<float, 3>(&one, {1, -4, 0}); });
  expect_refused("negative bhsd", {"-3"}, [&] { bhsd(&one, 1, 1, -3, 1); });
  expect_refused("negative bshd", {"-7"}, [&] { bshd(&one, -7, 1, 1, 1); });
  expect_refused("negative tensor", {"-9"}, [&] { Tensor<float, 2>({3, -9}); });
  constexpr Index kHuge = Index(1) << 32, kBytes = Index(1) << 62;  // their product, or size in bytes, exceeds 2^63
  const Said huge{"(4294967296, 4294967296)"};
  expect_refused("huge tensor", huge, [] { Tensor<float, 2>({kHuge, kHuge}); });
  expect_refused("huge uninitialised tensor", huge, [] { Tensor<float, 2>::uninitialized({kHuge, kHuge}); });
  expect_refused("huge view", huge, [&] { TensorView<float, 2>(&one, {kHuge, kHuge}); });
  expect_refused("huge view of null", huge, [&] { TensorView<float, 2>(null, {kHuge, kHuge}); });
  expect_refused("huge bytes", {"4611686018427387904"}, [] { Tensor<float, 1>::uninitialized({kBytes}); });
  EXPECT_NO_THROW((Tensor<float, 2>({kBytes, 0})));
  EXPECT_NO_THROW((TensorView<float, 2>(null, {5, 0})));
  EXPECT_NO_THROW((Tensor<float, 2>({0, 7})));
}

TEST(BadInput, PartsOfDifferentShapesDoNotMerge) {
  Tensor<float, 4> out({1, 2, 3, 4});
  Tensor<float, 3> lse({1, 2, 3});
  expect_refused("out", {"(1, 2, 3, 4)", "(1, 2, 3, 5)"}, [&] {
    merge_into(out, lse, Tensor<float, 4>({1, 2, 3, 5}), lse);
  });
  expect_refused("lse", {"(1, 2, 4)", "(1, 2, 3, 4)"}, [&] { merge_into(out, Tensor<float, 3>({1, 2, 4}), out, lse); });
  expect_refused("other lse", {"(1, 2, 4)", "(1, 2, 3, 4)"}, [&] {
    merge_into(out, lse, out, Tensor<float, 3>({1, 2, 4}));
  });
}

TEST(BadInput, UnknownEnumValues) {
  for (const int number : {-1, static_cast<int>(std::size(kIsas)), 99}) {
    const auto isa = static_cast<Isa>(number);
    EXPECT_EQ(to_string(isa), "unknown");
    EXPECT_FALSE(available(isa)) << number;
    Options options;
    options.isa = isa;
    expect_refused("isa", {"unknown", std::to_string(number)},
                   [&] { attention(tensor(kQ), tensor(kK), tensor(kV), full(), options); });
  }
  for (const int number : {-1, 5, 99}) EXPECT_EQ(to_string(static_cast<Amx>(number)), "unknown");
}

TEST(BadInput, InstructionSets) {
  for (Isa isa : kIsas)
    if (!available(isa)) {
      Options options;
      options.isa = isa;
      expect_refused("isa", {std::string(to_string(isa))},
                     [&] { attention(tensor(kQ), tensor(kK), tensor(kV), full(), options); });
    }
  Options best;
  best.isa = best_isa();
  EXPECT_NO_THROW(attention(tensor(kQ), tensor(kK), tensor(kV), full(), best));
}

TEST(BadInput, CallsWithMatchingSizesAreAccepted) {
  const auto q = tensor(kQ), k = tensor(kK), v = tensor(kV);
  auto out = tensor({2, 6, 11, 19});
  Tensor<float, 3> lse({2, 6, 11});
  EXPECT_NO_THROW(attention_into(out, lse, q, k, v, key_lengths({17, 0}) | alibi(alibi_slopes(6)) | sliding_window(0)));
  EXPECT_NO_THROW(naive_attention_into(out, q, k, v, keep(Tensor<bool, 3>({6, 11, 1}))));
}

}  // namespace
}  // namespace attn::test
