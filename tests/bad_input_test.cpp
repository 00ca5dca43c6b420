// Every wrong call throws std::invalid_argument, says the numbers that do not fit, and has written nothing.
#include <gtest/gtest.h>

#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "attn/attn.h"

namespace {

using namespace attn;
using Numbers = std::vector<std::string>;

constexpr float kUntouched = -77;

template <class Call>
void expect_refused(const char* what, const Numbers& numbers, const Call& call) {
  try {
    call();
    ADD_FAILURE() << what << ": nothing was thrown";
  } catch (const std::invalid_argument& e) {
    const std::string message = e.what();
    EXPECT_EQ(message.substr(0, 6), "attn: ") << what;
    for (const std::string& number : numbers)
      EXPECT_NE(message.find(number), std::string::npos) << what << ": no " << number << " in: " << message;
  } catch (...) {
    ADD_FAILURE() << what << ": threw something else";
  }
}

Tensor<float, 4> tensor(const Shape<4>& shape) { return Tensor<float, 4>(shape); }

/// All entry points refuse the call; `out` and `lse` of the caller's stay as they were.
template <class M = Mods<>>
void expect_all_refuse(const char* what, const Numbers& numbers, const Shape<4>& q_shape, const Shape<4>& k_shape,
                       const Shape<4>& v_shape, const M& mods = {}, const Options& options = {}) {
  const auto q = tensor(q_shape), k = tensor(k_shape), v = tensor(v_shape);
  auto out = tensor({q_shape[0], q_shape[1], q_shape[2], v_shape[3]});
  Tensor<float, 3> lse({q_shape[0], q_shape[1], q_shape[2]});
  std::fill_n(out.data(), out.size(), kUntouched);
  std::fill_n(lse.data(), lse.size(), kUntouched);
  expect_refused(what, numbers, [&] { attention(q, k, v, mods, options); });
  expect_refused(what, numbers, [&] { naive_attention(q, k, v, mods, options); });
  expect_refused(what, numbers, [&] { attention_into(out, q, k, v, mods, options); });
  expect_refused(what, numbers, [&] { attention_into(out, lse, q, k, v, mods, options); });
  expect_refused(what, numbers, [&] { naive_attention_into(out, q, k, v, mods, options); });
  for (Index i = 0; i < out.size(); ++i) ASSERT_EQ(out.data()[i], kUntouched) << what;
  for (Index i = 0; i < lse.size(); ++i) ASSERT_EQ(lse.data()[i], kUntouched) << what;
}

// Sizes that occur nowhere else, so that a number in a message is that number.
constexpr Shape<4> kQ{2, 6, 11, 13}, kK{2, 3, 17, 13}, kV{2, 3, 17, 19};

TEST(BadInput, SizesThatDisagree) {
  expect_all_refuse("batch of key", {"2", "5"}, kQ, {5, 3, 17, 13}, {5, 3, 17, 19});
  expect_all_refuse("batch of value", {"2", "5"}, kQ, kK, {5, 3, 17, 19});
  expect_all_refuse("heads of value", {"3", "7"}, kQ, kK, {2, 7, 17, 19});
  expect_all_refuse("kv_len", {"17", "23"}, kQ, kK, {2, 3, 23, 19});
  expect_all_refuse("head_dim", {"13", "29"}, kQ, {2, 3, 17, 29}, kV);
}

TEST(BadInput, HeadsThatDoNotDivide) {
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
    const Numbers numbers{detail::joined({shape}), "(2, 6, 11, 19)"};
    expect_refused("out", numbers, [&] { attention_into(out, q, k, v); });
    expect_refused("out", numbers, [&] { naive_attention_into(out, q, k, v); });
    for (Index i = 0; i < out.size(); ++i) ASSERT_EQ(out.data()[i], kUntouched);
  }
  auto out = tensor({2, 6, 11, 19});
  std::fill_n(out.data(), out.size(), kUntouched);
  for (const Shape<3>& shape : {Shape<3>{1, 6, 11}, Shape<3>{2, 3, 11}, Shape<3>{2, 6, 17}}) {
    Tensor<float, 3> lse(shape);
    expect_refused("lse", {detail::joined({shape}), "(2, 6, 11)"}, [&] { attention_into(out, lse, q, k, v); });
  }
  for (Index i = 0; i < out.size(); ++i) ASSERT_EQ(out.data()[i], kUntouched);
}

TEST(BadInput, LseThatIsNoVector) {
  const Eigen::MatrixXf q(6, 8), k(7, 8), v(7, 3);
  Eigen::MatrixXf out = Eigen::MatrixXf::Constant(6, 3, kUntouched), lse = Eigen::MatrixXf::Constant(3, 2, kUntouched);
  expect_refused("six numbers, not in a row", {"(3, 2)"}, [&] { attention_into(out, lse, q, k, v); });
  EXPECT_TRUE((out.array() == kUntouched).all());
  EXPECT_TRUE((lse.array() == kUntouched).all());
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

  // A stride of 0 where there is one element, or none, shares nothing.
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

TEST(BadInput, Workers) {
  expect_refused("none", {"0"}, [] { threads(0); });
  expect_refused("fewer than none", {"-1"}, [] { threads(-1); });
}

TEST(BadInput, AnExecutorWithoutWorkers) {
  struct Nobody final : Executor::Backend {
    int concurrency() const override { return 0; }
    void run(Index, TaskRef) const override {}
  };
  const auto q = tensor(kQ), k = tensor(kK), v = tensor(kV);
  const Options options{.executor = Executor(std::make_shared<Nobody>())};
  expect_refused("nobody", {"0 workers"}, [&] { attention(q, k, v, full(), options); });
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
  constexpr Index kHuge = Index(1) << 32, kBytes = Index(1) << 62;  // whose product, or bytes, are more than 2^63
  const Numbers huge{"(4294967296, 4294967296)"};
  expect_refused("huge tensor", huge, [] { Tensor<float, 2>({kHuge, kHuge}); });
  expect_refused("huge uninitialised tensor", huge, [] { Tensor<float, 2>::uninitialized({kHuge, kHuge}); });
  expect_refused("huge view", huge, [&] { TensorView<float, 2>(&one, {kHuge, kHuge}); });
  expect_refused("huge view of null", huge, [&] { TensorView<float, 2>(null, {kHuge, kHuge}); });
  expect_refused("huge bytes", {"4611686018427387904"}, [] { Tensor<float, 1>::uninitialized({kBytes}); });
  EXPECT_NO_THROW((Tensor<float, 2>({kBytes, 0})));
  EXPECT_NO_THROW((TensorView<float, 2>(null, {5, 0})));
  EXPECT_NO_THROW((Tensor<float, 2>({0, 7})));
}

TEST(BadInput, KeyLengths) {
  expect_all_refuse("too few", {"1", "2"}, kQ, kK, kV, key_lengths({3}));
  expect_all_refuse("too many", {"3", "2"}, kQ, kK, kV, key_lengths({3, 3, 3}));
  expect_all_refuse("none", {"0", "2"}, kQ, kK, kV, key_lengths(std::vector<int>{}));
  expect_all_refuse("negative", {"-1", "17"}, kQ, kK, kV, key_lengths({3, -1}));
  expect_all_refuse("too long", {"18", "17"}, kQ, kK, kV, key_lengths({18, 3}));
  expect_all_refuse("behind another mod", {"18", "17"}, kQ, kK, kV, causal() | softcap(3) | key_lengths({18, 3}));
}

TEST(BadInput, TensorsThatDoNotBroadcast) {
  const char* want = "(2, 6, 11, 17)";
  const auto refuse = [&](const auto& shape) {
    constexpr int Rank = static_cast<int>(std::tuple_size_v<std::remove_cvref_t<decltype(shape)>>);
    const Tensor<bool, Rank> mask(shape);
    const Tensor<float, Rank> added(shape);
    const Numbers numbers{detail::joined({shape}), want};
    expect_all_refuse("keep", numbers, kQ, kK, kV, keep(mask));
    expect_all_refuse("drop", numbers, kQ, kK, kV, drop(mask));
    expect_all_refuse("bias", numbers, kQ, kK, kV, bias(added));
  };
  refuse(Shape<1>{11});
  refuse(Shape<2>{17, 11});
  refuse(Shape<2>{2, 17});
  refuse(Shape<3>{2, 11, 17});
  refuse(Shape<3>{3, 11, 17});
  refuse(Shape<4>{6, 2, 11, 17});
  refuse(Shape<4>{2, 3, 11, 17});
  refuse(Shape<4>{2, 6, 11, 0});
  refuse(Shape<4>{2, 6, 11, 16});
}

TEST(BadInput, NumbersOfMods) {
  expect_refused("window", {"-1", "5"}, [] { sliding_window(-1, 5); });
  expect_refused("window", {"5", "-2"}, [] { sliding_window(5, -2); });
  expect_refused("softcap 0", {"0"}, [] { softcap(0); });
  expect_refused("softcap -3", {"-3"}, [] { softcap(-3); });
  expect_refused("softcap -1e-9", {"-1e-09"}, [] { softcap(-1e-9); });
  expect_refused("softcap inf", {"inf"}, [] { softcap(std::numeric_limits<double>::infinity()); });
  expect_refused("softcap 1e39", {"1e+39"}, [] { softcap(1e39); });
  expect_refused("softcap 1e-50", {"1e-50"}, [] { softcap(1e-50); });
  expect_refused("softcap NaN", {"nan"}, [] { softcap(std::numeric_limits<double>::quiet_NaN()); });
  expect_refused("alibi_slopes", {"0"}, [] { alibi_slopes(0); });
  expect_refused("alibi_slopes", {"-2"}, [] { alibi_slopes(-2); });
  expect_all_refuse("too few slopes", {"5", "6"}, kQ, kK, kV, alibi(std::vector<double>(5)));
  expect_all_refuse("too many slopes", {"7", "6"}, kQ, kK, kV, alibi(std::vector<double>(7)));
}

TEST(BadInput, LengthsOfMasks) {
  expect_all_refuse("prefix", {"1", "2"}, kQ, kK, kV, prefix_lm({3}));
  expect_all_refuse("prefix", {"18", "17"}, kQ, kK, kV, prefix_lm({3, 18}));
  expect_all_refuse("prefix", {"-1", "17"}, kQ, kK, kV, prefix_lm({-1, 3}));
  expect_all_refuse("queries", {"3", "2"}, kQ, kK, kV, query_lengths({3, 3, 3}));
  expect_all_refuse("queries", {"12", "11"}, kQ, kK, kV, query_lengths({3, 12}));
}

TEST(BadInput, Documents) {
  expect_all_refuse("too few ids", {"16", "17"}, kQ, kK, kV, documents(std::vector<int>(16)));
  expect_all_refuse("queries before", {"-1", "9", "16"}, kQ, kK, kV, documents(std::vector<int>(17)), {.q_offset = -1});
  expect_all_refuse("queries after", {"7", "17", "16"}, kQ, kK, kV, documents(std::vector<int>(17)), {.q_offset = 7});
  expect_all_refuse("offsets end early", {"12", "17"}, kQ, kK, kV, documents_at({0, 5, 12}));
  expect_refused("no offsets", {"none"}, [] { documents_at(std::vector<int>{}); });
  expect_refused("not from 0", {"2"}, [] { documents_at({2, 5}); });
  expect_refused("equal", {"5 after 5"}, [] { documents_at({0, 5, 5, 9}); });
  expect_refused("decreasing", {"4 after 5"}, [] { documents_at({0, 5, 4}); });
  expect_refused("negative", {"-3"}, [] { documents_at({-3, 5}); });
}

TEST(BadInput, NumbersOfSparseMasks) {
  expect_refused("stride", {"0"}, [] { strided_sparse(0); });
  expect_refused("block", {"0", "1"}, [] { fixed_sparse(0, 1); });
  expect_refused("summary", {"4", "5"}, [] { fixed_sparse(4, 5); });
  expect_refused("summary", {"4", "-1"}, [] { fixed_sparse(4, -1); });
  expect_refused("dilated", {"-1", "2"}, [] { dilated(-1, 2); });
  expect_refused("dilated", {"1", "-2"}, [] { dilated(1, 2, -2); });
  expect_refused("dilation", {"1", "0"}, [] { dilated(1, 0); });
  expect_refused("global", {"-2"}, [] { global_tokens({3, -2}); });
  const Tensor<bool, 2> map({3, 3});
  expect_refused("block size", {"0", "4"}, [&] { block_sparse(map, 0, 4); });
  expect_refused("block size", {"4", "-1"}, [&] { block_sparse(map, 4, -1); });
  expect_all_refuse("map", {"(3, 3)", "(2, 6, 3, 5)"}, kQ, kK, kV, block_sparse(map, 4, 4));
  expect_refused("parent after", {"parents[1]", "= 1"}, [] { tree({-1, 1}); });
  expect_refused("parent far before", {"parents[0]", "-2"}, [] { tree({-2}); });
  expect_all_refuse("tree", {"3", "11"}, kQ, kK, kV, tree({-1, 0, 1}));
  expect_all_refuse("tree of more nodes than keys", {"11", "7"}, kQ, {2, 3, 7, 7}, {2, 3, 7, 19},
                    tree(std::vector<int>(11, -1)));
}

TEST(BadInput, BlockMasks) {
  expect_refused("negative", {"-1", "17"}, [] { block_mask(causal(), -1, 17); });
  expect_refused("no batch", {"0"}, [] { block_mask(causal(), 11, 17, {}, 0); });
  expect_all_refuse("q_len", {"12", "11"}, kQ, kK, kV, block_mask(causal(), 12, 17));
  expect_all_refuse("kv_len", {"18", "17"}, kQ, kK, kV, block_mask(causal(), 11, 18));
  expect_all_refuse("q_offset", {"5", "6"}, kQ, kK, kV, block_mask(causal(), 11, 17, {.q_offset = 5}));
  expect_all_refuse("batch", {"3", "2"}, kQ, kK, kV, block_mask(causal(), 11, 17, {}, 3));
  expect_all_refuse("heads", {"3", "6"}, kQ, kK, kV, block_mask(causal(), 11, 17, {}, 1, 3));
}

TEST(BadInput, PartsThatDoNotMerge) {
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

TEST(BadInput, NumbersOfScores) {
  expect_refused("temperature", {"0"}, [] { temperature({1, 0}); });
  expect_refused("temperature", {"-1"}, [] { temperature({-1}); });
  expect_refused("temperature", {"inf"}, [] { temperature({std::numeric_limits<double>::infinity()}); });
  expect_refused("temperature", {"nan"}, [] { temperature({std::numeric_limits<double>::quiet_NaN()}); });
  expect_refused("temperature", {"1e+300"}, [] { temperature({1e300}); });
  expect_refused("temperature", {"1e+39"}, [] { temperature({1e39}); });
  expect_refused("slope", {"slope 1", "inf"}, [] { alibi({1, std::numeric_limits<double>::infinity()}); });
  expect_all_refuse("temperature", {"2", "6"}, kQ, kK, kV, temperature({1, 1}));
  expect_refused("sink", {"sinks[1]", "inf"}, [] { sinks({0, std::numeric_limits<double>::infinity()}); });
  expect_refused("sink", {"nan"}, [] { sinks({std::numeric_limits<double>::quiet_NaN()}); });
  expect_refused("sink", {"1e+300"}, [] { sinks({1e300}); });
  expect_all_refuse("sinks", {"5", "6"}, kQ, kK, kV, sinks(std::vector<double>(5)));
  expect_refused("even columns", {"4"}, [] { relative_bias(Tensor<float, 2>({6, 4})); });
  expect_all_refuse("table", {"(5, 7)", "(1, 1, 6, 7)"}, kQ, kK, kV, relative_bias(Tensor<float, 2>({5, 7})));
  expect_all_refuse("table", {"(6, 31)", "(1, 1, 6, 32)"}, kQ, kK, kV,
                    relative_bias(Tensor<float, 2>({6, 31}), T5Buckets()));
  expect_refused("buckets", {"2", "128"}, [] { T5Buckets(2); });
  expect_refused("odd buckets", {"33"}, [] { T5Buckets(33); });
  expect_refused("distance", {"32", "8"}, [] { T5Buckets(32, 8); });
  expect_refused("distance", {"1099511627776"}, [] { T5Buckets(32, Index(1) << 40); });
}

TEST(BadInput, InstructionSets) {
  for (Isa isa : {Isa::generic, Isa::avx2, Isa::avx512})
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

TEST(BadInput, TheSameCallsWithRightSizesAreTaken) {
  const auto q = tensor(kQ), k = tensor(kK), v = tensor(kV);
  auto out = tensor({2, 6, 11, 19});
  Tensor<float, 3> lse({2, 6, 11});
  EXPECT_NO_THROW(attention_into(out, lse, q, k, v, key_lengths({17, 0}) | alibi(alibi_slopes(6)) | sliding_window(0)));
  EXPECT_NO_THROW(naive_attention_into(out, q, k, v, keep(Tensor<bool, 3>({6, 11, 1}))));
}

}  // namespace
