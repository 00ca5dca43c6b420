// Products in bf16, by the matrix unit or by vectors: when they are used, and cases where their results could differ
// from the other kernels'.
#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <stdexcept>
#include <utility>

#include "support/paths.h"

namespace attn::test {
namespace {

using Matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
template <class S>
using MatrixOf = Eigen::Matrix<S, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

TEST(MatrixUnit, OverflowsOnlyWhereOtherKernelsDo) {
  using Eigen::bfloat16;
  const auto expect_right = [](const char* what, float q, float first, float second, float v, const Options& options) {
    // 64 keys with one score, then 64 with another, so that the running maximum lags behind.
    Tensor<bfloat16, 4> k({1, 1, 128, 32}), values({1, 1, 128, 32});
    for (Index j = 0; j < 128; ++j) k.matrix(0, 0).row(j).setConstant(bfloat16(j < 64 ? first : second));
    values.matrix(0, 0).setConstant(bfloat16(v));
    for (const Index heads : {1, 40}) {  // tiles of queries, and single queries of many heads
      Tensor<bfloat16, 4> x({1, heads, 40 / heads, 32});
      std::fill_n(x.data(), x.size(), bfloat16(q));
      const auto want = naive_attention(x, k, values, Mods<>(), options);
      const Index last = want.out.size() - 1;
      ASSERT_TRUE(std::isfinite(float(want.out.data()[0])) && std::isfinite(want.lse.data()[39])) << what;
      for (Isa isa : all_instruction_sets()) {
        SCOPED_TRACE(std::string(what) + ", " + std::to_string(heads) + " heads, " + std::string(to_string(isa)));
        Options with_isa = options;
        with_isa.isa = isa;
        const auto got = attention(x, k, values, Mods<>(), with_isa);
        EXPECT_NEAR(float(got.out.data()[last]) / float(want.out.data()[last]), 1, 0x1p-7);
        EXPECT_NEAR(got.lse.data()[39], want.lse.data()[39], 1e-4f * std::abs(want.lse.data()[39]));
      }
    }
  };
  expect_right("large values", 1, 0, 0.125f, 1e36f, {.scale = 1});
  expect_right("large products", 1e19f, 1e19f, 1e19f, 1, {.scale = 1e-38});
  expect_right("products that are large and negative", 1e19f, -1e19f, -1e19f, 1, {.scale = 1e-15});
  expect_right("negative products beside others", 1e19f, -1e19f, 0, 1, {.scale = 1e-38});
  expect_right("negative products whose weights are not zero", 1e19f, -1.1e18f, 0, 1, {.scale = 1.2e-38});
  expect_right("scales that underflow in float", 1, 1, 1, 1, {.scale = 1e-300});
  expect_right("denormal scales", 1, 1, 1, 1, {.scale = 1e-40});
  expect_right("large scales", 1e-20f, 1e-10f, 2e-10f, 1, {.scale = 3e38});
}

TEST(MatrixUnit, OverflowWithoutValuesShowsInTheLogSumExp) {
  using Eigen::bfloat16;
  for (const Index heads : {1, 8}) {
    Tensor<bfloat16, 4> q({1, heads, 8 / heads, 32}), k({1, 1, 64, 32});
    std::fill_n(q.data(), q.size(), bfloat16(1e19f));
    std::fill_n(k.data(), k.size(), bfloat16(1e19f));
    const Tensor<bfloat16, 4> no_values({1, 1, 64, 0});
    const auto got = attention(q, k, no_values, Mods<>(), {.scale = 1e-15});
    EXPECT_NEAR(got.lse.data()[7] / 3.2e24f, 1, 0.01);
  }
}

TEST(MatrixUnit, AKeptNaNValueSpreadsDespiteAnInfiniteScore) {
  // The weight is 0, but the key is kept: 0 * NaN is NaN.
  using Eigen::bfloat16;
  for (const Index heads : {1, 8}) {
    Tensor<bfloat16, 4> q({1, heads, 8 / heads, 32}), k({1, 1, 64, 32}), v({1, 1, 64, 32});
    std::fill_n(q.data(), q.size(), bfloat16(1.0f));
    k(0, 0, 5, 0) = bfloat16(-std::numeric_limits<float>::infinity());
    v(0, 0, 5, 3) = bfloat16(std::numeric_limits<float>::quiet_NaN());
    const auto got = attention(q, k, v);
    EXPECT_TRUE(std::isnan(float(got.out(0, heads - 1, 0, 3))) && float(got.out(0, heads - 1, 0, 4)) == 0) << heads;
  }
}

TEST(MatrixUnit, TheWorkspaceDoesNotDependOnAddresses) {
  using Eigen::bfloat16;
  std::vector<bfloat16> memory(64 * 32 + 1);
  const Tensor<bfloat16, 4> q({1, 8, 1, 32});
  const auto at = [&](std::size_t first) { return bhsd(std::as_const(memory).data() + first, 1, 1, 64, 32); };
  EXPECT_EQ(workspace_bytes(q, at(0), at(0)), workspace_bytes(q, at(1), at(1)));
}

TEST(MatrixUnit, AModMayCallAttention) {
  // The inner call runs between two kernels of the outer call, on the same thread.
  using Eigen::bfloat16;
  const MatrixOf<bfloat16> x = Matrix::Random(70, 32).cast<bfloat16>();
  const auto plain = attention(x, x, x, Mods<>(), {.executor = serial()});
  // In a std::function: mods are fully inlined, so each instruction set would otherwise have a copy of attention().
  const std::function<float()> zero = [&] { return attention(x, x, x, Mods<>(), {.executor = serial()}).lse(0) * 0; };
  const auto nested =
      score_mod([&](auto score, const Position& p) { return score + (p.q == 5 && p.kv == 7 ? zero() : 0.0f); });
  const auto got = attention(x, x, x, nested, {.executor = serial()});
  EXPECT_LE((got.out.cast<float>() - plain.out.cast<float>()).cwiseAbs().maxCoeff(), 0x1p-7f);
  const auto throwing = score_mod([](auto score, const Position& p) {
    if (p.q == 5) throw std::runtime_error("from a mod");
    return score;
  });
  EXPECT_THROW(attention(x, x, x, throwing, {.executor = serial()}), std::runtime_error);
  EXPECT_TRUE((attention(x, x, x, Mods<>(), {.executor = serial()}).out.array() == plain.out.array()).all());
}

TEST(MatrixUnit, AcceptsAnyAddress) {
  // Two bytes off from where pairs of values would be aligned.
  using Eigen::bfloat16;
  Random random(6);
  const Sizes s{1, 2, 1, 40, 70, 32, 32};
  Inputs in(s, random);
  in.round_to<bfloat16>();
  Arguments<bfloat16> a(in);
  const auto want = flash(a);
  const auto moved = [](Strided<bfloat16>& t, Index heads, Index len, std::vector<bfloat16>& memory) {
    const auto numbers = t.read();
    memory.assign(numbers.size() + 1, bfloat16(0.0f));
    std::copy(numbers.begin(), numbers.end(), memory.begin() + 1);
    return TensorView<const bfloat16, 4>(memory.data() + 1, {1, heads, len, 32});
  };
  std::vector<bfloat16> q, k, v;
  const auto got = attention(moved(a.q, 2, 40, q), moved(a.k, 1, 70, k), moved(a.v, 1, 70, v));
  EXPECT_TRUE(std::equal(want.out.begin(), want.out.end(), got.out.data()));
}

TEST(MatrixUnit, FloatsAreRoundedOnlyOnRequest) {
  Random random(4);
  const Sizes s{1, 2, 1, 100, 300, 40, 24};
  const Inputs in(s, random);
  Arguments<float> a(in);
  const auto plain = flash(a, causal());
  std::vector<Isa> without = instruction_sets();
  if (available(Isa::avx512_bf16) && !emulates_matrix_unit()) without.push_back(Isa::avx512_bf16);
  for (Isa isa : without)
    EXPECT_TRUE(same_bits(flash(a, causal(), {.isa = isa}), flash(a, causal(), {.compute = Compute::bf16, .isa = isa})))
        << to_string(isa) << " has no matrix unit";
  const auto e = explain(a.q.cview(), a.k.cview(), a.v.cview(), causal(), {.compute = Compute::bf16});
  if (e.amx != Amx::used) GTEST_SKIP() << "matrix unit: " << to_string(e.amx);
  EXPECT_EQ(explain(a.q.cview(), a.k.cview(), a.v.cview()).amx, Amx::unsupported);

  // The same kernels on the same values, rounded here or by the call, in any layout.
  Inputs rounded = in;
  rounded.round_to<Eigen::bfloat16>();
  for (Layout layout : kInputLayouts) {
    if (is_repeated(layout)) continue;
    Arguments<float> floats(in, layout, layout, layout), exact(rounded);
    Arguments<Eigen::half> halves(rounded, layout, layout, layout);
    Arguments<Eigen::bfloat16> bf16(rounded, layout, layout, layout);
    const auto on_request = flash(floats, causal(), {.compute = Compute::bf16});
    EXPECT_FALSE(same_bits(on_request.out, plain.out));
    Tensor<float, 4> out({1, 2, 100, 24});
    attention_into(out, bf16.q.cview(), bf16.k.cview(), bf16.v.cview(), causal());
    EXPECT_TRUE(std::equal(on_request.out.begin(), on_request.out.end(), out.data()));
    Tensor<float, 4> from_half({1, 2, 100, 24});
    attention_into(from_half, halves.q.cview(), halves.k.cview(), halves.v.cview(), causal(),
                   {.compute = Compute::bf16});
    // Small values differ slightly: bf16 represents some that binary16 rounds.
    EXPECT_LE((from_half.matrix(0, 0) - out.matrix(0, 0)).cwiseAbs().maxCoeff(), 1e-2f);
  }
}

TEST(MatrixUnit, DoublesAreNotRounded) {
  const Eigen::MatrixXd x = Eigen::MatrixXd::Ones(3, 4);
  EXPECT_THROW(attention(x, x, x, Mods<>(), {.compute = Compute::bf16}), std::invalid_argument);
}

}  // namespace
}  // namespace attn::test
