// 16-bit floats, and the smaller types of caches: conversions, and mixed types of a call's tensors.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "support/paths.h"

namespace attn::test {
namespace {

using detail::DType;
using Matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
template <class S>
using MatrixOf = Eigen::Matrix<S, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

std::uint32_t bits(float x) { return Eigen::numext::bit_cast<std::uint32_t>(x); }

/// Eigen's own conversions, which the kernels do not use.
float wide(DType dtype, std::uint16_t x) {
  return dtype == DType::f16 ? float(Eigen::numext::bit_cast<Eigen::half>(x))
                             : float(Eigen::numext::bit_cast<Eigen::bfloat16>(x));
}
std::uint16_t narrow(DType dtype, float x) {
  return dtype == DType::f16 ? Eigen::numext::bit_cast<std::uint16_t>(Eigen::half(x))
                             : Eigen::numext::bit_cast<std::uint16_t>(Eigen::bfloat16(x));
}

TEST(Half, EveryValueIsReadExactly) {
  constexpr Index kCount = 65536, kColumns = 67;  // whole vectors and a remainder
  std::vector<std::uint16_t> all(kCount + kColumns);
  for (Index i = 0; i < kCount; ++i) all[static_cast<std::size_t>(i)] = static_cast<std::uint16_t>(i);
  for (Isa isa : instruction_sets())
    for (DType dtype : {DType::f16, DType::bf16}) {
      const auto& family = detail::kernel_family<float>(detail::vectors_of(isa));
      const auto* data = reinterpret_cast<const std::byte*>(all.data());
      std::vector<float> got(kCount + kColumns);
      const Index rows = kCount / kColumns + 1;
      // Row-major, and column-major, which is transposed.
      for (const bool in_columns : {false, true}) {
        const detail::RowsToRead from{data, dtype, in_columns ? 1 : kColumns, in_columns ? rows : 1};
        family.pack_rows(from, in_columns ? rows - 1 : rows, in_columns ? kColumns - 1 : kColumns, got.data());
        const Index columns = in_columns ? kColumns - 1 : kColumns;
        for (Index i = 0; i < (rows - 1) * columns; ++i) {
          const Index at = in_columns ? i / columns + i % columns * rows : i;
          const float want = wide(dtype, all[static_cast<std::size_t>(at)]);
          const float x = got[static_cast<std::size_t>(i)];
          ASSERT_TRUE(bits(want) == bits(x) || (std::isnan(want) && std::isnan(x)))
              << to_string(isa) << " " << at << " is " << x << " instead of " << want;
        }
      }
    }
}

/// Converts rows of 67 elements, whole vectors and a remainder, with the vectors of each instruction set.
template <DType kDType>
void expect_converted(const std::vector<std::uint8_t>& bytes, Index rows, const std::vector<float>& wanted) {
  constexpr Index kColumns = 67, kBlock = detail::elements_of_block(kDType);
  const Index stride = (kColumns + kBlock - 1) / kBlock * kBlock;
  const detail::RowsToRead from{reinterpret_cast<const std::byte*>(bytes.data()), kDType, stride, 1};
  for (Isa isa : instruction_sets()) {
    std::vector<float> got(static_cast<std::size_t>(rows * kColumns));
    detail::cached_family<kDType>(detail::vectors_of(isa)).pack_rows(from, rows, kColumns, got.data());
    for (std::size_t i = 0; i < got.size(); ++i)
      ASSERT_TRUE(bits(got[i]) == bits(wanted[i]) || (std::isnan(got[i]) && std::isnan(wanted[i])))
          << to_string(isa) << " " << i << " is " << got[i] << " instead of " << wanted[i];
  }
}

TEST(SmallTypes, VectorsOf8BitFloatsEqualSingleOnes) {
  std::vector<std::uint8_t> codes;
  std::vector<float> e4m3, e5m2;
  for (int i = 0; i < 4 * 67; ++i) {
    codes.push_back(static_cast<std::uint8_t>(i * 37));  // all codes, in another order
    e4m3.push_back(detail::from_float8(codes.back(), 3));
    e5m2.push_back(detail::from_float8(codes.back(), 2));
  }
  expect_converted<DType::f8_e4m3>(codes, 4, e4m3);
  expect_converted<DType::f8_e5m2>(codes, 4, e5m2);
}

template <class Block, DType kDType>
void check_blocks() {
  Random random(3);
  constexpr Index kRows = 40, kBlocks = 3;
  std::vector<std::uint8_t> bytes(kRows * kBlocks * sizeof(Block));
  std::vector<float> wanted;
  for (Index row = 0; row < kRows; ++row)
    for (Index b = 0; b < kBlocks; ++b) {
      std::vector<float> numbers(32);
      for (float& x : numbers) x = static_cast<float>(random.uniform(-3, 5));
      if (row == 7 && b == 1) numbers[5] = std::numeric_limits<float>::infinity();
      const Block block(numbers.data());
      std::memcpy(bytes.data() + static_cast<std::size_t>(row * kBlocks + b) * sizeof(Block), &block, sizeof(Block));
      for (Index i = 0; i < 32 && b * 32 + i < 67; ++i) wanted.push_back(block[i]);
    }
  expect_converted<kDType>(bytes, kRows, wanted);
}

TEST(SmallTypes, VectorsOf4BitIntegersEqualSingleOnes) {
  check_blocks<Int4, DType::i4>();
  check_blocks<Int4Asymmetric, DType::i4_asymmetric>();
}

TEST(Half, ValuesAreRoundedToTheNearestTiesToEven) {
  for (DType dtype : {DType::f16, DType::bf16}) {
    // Each value, the midpoint between it and the next, and the floats just below and above the midpoint.
    std::vector<float> inputs;
    for (std::uint32_t i = 0; i < 65536; ++i) {
      const float x = wide(dtype, static_cast<std::uint16_t>(i)), next = wide(dtype, static_cast<std::uint16_t>(i + 1));
      inputs.push_back(x);
      const float middle = static_cast<float>((double(x) + double(next)) / 2);
      for (float y : {middle, std::nextafter(middle, 1e38f), std::nextafter(middle, -1e38f)}) inputs.push_back(y);
    }
    for (float x : {65519.0f, 65520.0f, -65520.0f, 1e30f, 3.4e38f, 3e-8f, 1e-40f}) inputs.push_back(x);
    for (Isa isa : instruction_sets()) {
      std::vector<std::uint16_t> got(inputs.size());
      detail::kernel_family<float>(detail::vectors_of(isa))
          .unpack_rows(inputs.data(), 1, static_cast<Index>(inputs.size()),
                       {reinterpret_cast<std::byte*>(got.data()), dtype, static_cast<Index>(inputs.size()), 1});
      for (std::size_t i = 0; i < inputs.size(); ++i) {
        const std::uint16_t want = narrow(dtype, inputs[i]);
        if (std::isnan(inputs[i]))
          ASSERT_TRUE(std::isnan(wide(dtype, got[i]))) << to_string(isa);
        else
          ASSERT_EQ(want, got[i]) << to_string(isa) << " " << inputs[i];
      }
    }
  }
}

/// Expects results close to those of attention in float over the same values.
template <class Q, class K, class V, class Out>
void expect_mixed() {
  Random random(1);
  const auto draw = [&]<class S>(S, Index rows, Index cols) {
    const std::vector<double> x = random.values(rows * cols);
    return MatrixOf<S>(
        Eigen::Map<const MatrixOf<double>>(x.data(), rows, cols).template cast<float>().template cast<S>());
  };
  for (Index q_len : {1, 3, 50}) {
    const MatrixOf<Q> q = draw(Q(), q_len, 24);
    const MatrixOf<K> k = draw(K(), 70, 24);
    const MatrixOf<V> v = draw(V(), 70, 20);
    const Matrix qf = q.template cast<float>(), kf = k.template cast<float>(), vf = v.template cast<float>();
    const auto want = naive_attention(qf, kf, vf, causal());
    // Rounding weights and results to bf16 has a relative error of at most 2^-9; values are below 2.
    const float allowed = std::is_same_v<Out, float> && std::is_same_v<Q, float> ? 1e-5f : 2 * 2 * 0x1p-9f;
    for (Isa isa : all_instruction_sets()) {
      MatrixOf<Out> out(q_len, 20);
      Eigen::VectorXf lse(q_len);
      attention_into(out, lse, q, k, v, causal(), {.isa = isa});
      EXPECT_LE((out.template cast<float>() - want.out).cwiseAbs().maxCoeff(), allowed) << to_string(isa);
      EXPECT_LE((lse - want.lse).cwiseAbs().maxCoeff(), 1e-4f) << to_string(isa);
      const auto made = attention(q, k, v, causal(), {.isa = isa});
      static_assert(std::is_same_v<typename decltype(made.out)::Scalar, Q>, "the output has the query's scalar type");
      static_assert(std::is_same_v<typename decltype(made.lse)::Scalar, float>);
    }
    MatrixOf<Out> out(q_len, 20);
    naive_attention_into(out, q, k, v, causal());
    EXPECT_LE((out.template cast<float>() - want.out).cwiseAbs().maxCoeff(), allowed);
    const auto naive = naive_attention(q, k, v, causal());
    static_assert(std::is_same_v<typename decltype(naive.weights)::Scalar, Q>);
    EXPECT_LE((naive.weights.template cast<float>() - want.weights).cwiseAbs().maxCoeff(), 0x1p-9f);
    EXPECT_LE((attention_mass(q, k, want.lse, causal()).matrix(0).row(0) - want.weights.colwise().sum())
                  .cwiseAbs()
                  .maxCoeff(),
              1e-4f);
  }
}

TEST(Half, TypesMayBeMixed) {
  using Eigen::bfloat16;
  using Eigen::half;
  expect_mixed<float, half, half, float>();
  expect_mixed<float, bfloat16, bfloat16, bfloat16>();
  expect_mixed<bfloat16, bfloat16, bfloat16, float>();
  expect_mixed<half, half, half, half>();
  expect_mixed<half, float, bfloat16, half>();
}

/// Attention over the compiler's own 16-bit type equals that over Eigen's, bit for bit.
template <class Compilers>
void expect_eigens() {
  Random random(2);
  const Sizes s{2, 4, 2, 37, 70, 16, 8};
  Inputs in(s, random);
  in.round_to<Eigen::half>();
  Arguments<Eigen::half> a(in);
  Arguments<Compilers> b(in);
  const auto eigens = attention(a.q.cview(), a.k.cview(), a.v.cview(), causal());
  const auto compilers = attention(b.q.cview(), b.k.cview(), b.v.cview(), causal());
  static_assert(std::is_same_v<typename decltype(compilers.out)::Scalar, Compilers>);
  EXPECT_EQ(std::memcmp(eigens.out.data(), compilers.out.data(), static_cast<std::size_t>(eigens.out.size()) * 2), 0);
  EXPECT_TRUE(std::equal(eigens.lse.data(), eigens.lse.data() + eigens.lse.size(), compilers.lse.data()));
}

TEST(Half, CompilerTypesGiveTheSameBitsAsEigenTypes) {
#if defined(ATTN_HAS_FLOAT16)
  expect_eigens<detail::Float16>();
#endif
#if defined(ATTN_HAS_FP16)
  expect_eigens<detail::Fp16>();
#endif
#if !defined(ATTN_HAS_FLOAT16) && !defined(ATTN_HAS_FP16)
  GTEST_SKIP() << "this compiler has no native 16-bit float";
#endif
}

/// Typical and extreme scores and values: errors against the truth are at most twice the naive path's.
template <class T>
void expect_accurate(const char* what, const Inputs& in, const Numbers& numbers) {
  SCOPED_TRACE(what);
  const Truth truth = oracle(in, {}, numbers);
  Arguments<T> a(in);
  const Options options = options_of(numbers);
  const Computed<T> by_definition = naive(a, Mods<>(), options);
  for (Isa isa : sets_for<T>()) {
    SCOPED_TRACE(to_string(isa));
    Options with_isa = options;
    with_isa.isa = isa;
    const Errors<T> naive_error(truth, by_definition), error(truth, flash(a, Mods<>(), with_isa));
    EXPECT_LE(error.out, 2 * naive_error.out);
    EXPECT_LE(error.lse, 2 * naive_error.lse + lse_error<T>(isa) + 4 * Errors<T>::kEps * (1 + truth.largest_score));
  }
}

template <class T>
void expect_accurate_for_all() {
  Random random(3);
  const Sizes s{1, 2, 1, 150, 700, 64, 64};
  Inputs normal(s, random);
  // The sum of several uniform values is close enough to a normal distribution.
  for (auto* values : {&normal.q, &normal.k, &normal.v})
    for (double& x : *values)
      for (int i = 0; i < 5; ++i) x += random.uniform(-2, 2);
  for (auto* values : {&normal.q, &normal.k, &normal.v})
    for (double& x : *values) x /= 2.83;
  Inputs rounded = normal;
  rounded.round_to<T>();
  expect_accurate<T>("normal", rounded, {});
  expect_accurate<T>("scores up to 1e4", rounded, {300, {}});
  Inputs outliers = normal;  // some channels are a hundred times larger, as in trained models
  for (Index i = 0; i < static_cast<Index>(outliers.q.size()); ++i)
    if (i % 64 == 3) outliers.q[static_cast<std::size_t>(i)] *= 100;
  for (Index i = 0; i < static_cast<Index>(outliers.v.size()); ++i)
    if (i % 64 == 7) outliers.v[static_cast<std::size_t>(i)] *= 100;
  outliers.round_to<T>();
  expect_accurate<T>("outlier channels", outliers, {});
  Inputs flat = normal;  // all weights are equal: their errors do not average out
  for (double& x : flat.q) x = 0;
  flat.round_to<T>();
  expect_accurate<T>("equal scores", flat, {});
}

TEST(Half, ErrorsAreAtMostTwiceThoseOfTheDefinitionBfloat16) { expect_accurate_for_all<Eigen::bfloat16>(); }
TEST(Half, ErrorsAreAtMostTwiceThoseOfTheDefinitionHalf) { expect_accurate_for_all<Eigen::half>(); }

TEST(Half, DenormalsAreKeptUnlessBf16ProductsFlushThem) {
  using Eigen::half;
  // binary16 values below 2^-14 are exact everywhere.
  const half tiny = Eigen::numext::bit_cast<half>(std::uint16_t(3));
  for (Index n : {1, 40}) {
    const MatrixOf<half> x = MatrixOf<half>::Constant(n, 8, half(1.0f)), v = MatrixOf<half>::Constant(n, 8, tiny);
    for (Isa isa : instruction_sets()) EXPECT_EQ(attention(x, x, v, Mods<>(), {.isa = isa}).out(0, 0), tiny);
  }
  // bf16 values below 2^-126 may be flushed to 0.
  using Eigen::bfloat16;
  const bfloat16 small = Eigen::numext::bit_cast<bfloat16>(std::uint16_t(3));
  const MatrixOf<bfloat16> x = MatrixOf<bfloat16>::Constant(40, 8, bfloat16(1.0f)),
                           v = MatrixOf<bfloat16>::Constant(40, 8, small);
  for (Isa isa : all_instruction_sets()) {
    const float out = float(attention(x, x, v, Mods<>(), {.isa = isa}).out(0, 0));
    EXPECT_TRUE(out == float(small) || (isa >= Isa::avx512_bf16 && out == 0)) << to_string(isa) << " " << out;
  }
}

TEST(Half, LargeNumbersOverflowOnlyInTheResult) {
  // Products of the largest binary16 values are 4e9, and their sums stay finite; a value of 65504 is returned
  // unchanged.
  using Eigen::half;
  const half largest = Eigen::numext::bit_cast<half>(std::uint16_t(0x7bff));
  for (Index n : {1, 3, 70}) {
    const MatrixOf<half> x = MatrixOf<half>::Constant(n, 16, largest);
    for (Isa isa : instruction_sets()) {
      const auto r = attention(x, x, x, Mods<>(), {.isa = isa});
      EXPECT_EQ(r.out(n - 1, 15), largest);
      EXPECT_TRUE(std::isfinite(r.lse(0)));
    }
    // Beyond the output type's range: infinite there, correct in float.
    const Matrix wide = Matrix::Constant(n, 16, 1e5f);
    MatrixOf<half> narrow(n, 16);
    attention_into(narrow, wide, wide, wide);
    EXPECT_TRUE(std::isinf(float(narrow(0, 0))));
    Matrix out(n, 16);
    attention_into(out, x, x, wide);
    EXPECT_EQ(out(0, 0), 1e5f);
  }
}

TEST(Half, GroupedTokensAreNotRoundedBetweenPasses) {
  // Dozens of passes continue from each other's results; storing them in bf16 would round each time.
  Random random(5);
  const Sizes s{1, 2, 1, 300, 300, 16, 16};
  Inputs in(s, random);
  in.round_to<Eigen::bfloat16>();
  Arguments<Eigen::bfloat16> a(in);
  auto grouped = fixed_sparse(20, 15);
  grouped.grouping.always = true;
  const auto meaning = [&](const Pair& p) { return grouped.keep(Position{p.batch, p.head, p.q, p.kv}); };
  const Truth truth = oracle(in, {meaning, {}});
  const auto by_definition = naive(a, grouped);
  for (Isa isa : all_instruction_sets())
    for (Layout out : {Layout::bhsd, Layout::gaps})
      expect_close(truth, by_definition, flash(a, grouped, {.isa = isa}, out), lse_error<Eigen::bfloat16>(isa));
}

TEST(Half, MergedPartsGiveTheWholeResult) {
  using Eigen::bfloat16;
  const MatrixOf<bfloat16> q = Matrix::Random(20, 16).cast<bfloat16>(), k = Matrix::Random(90, 16).cast<bfloat16>(),
                           v = Matrix::Random(90, 8).cast<bfloat16>();
  const auto part = [&](Index first, Index count) {
    return attention(q, k.middleRows(first, count), v.middleRows(first, count));
  };
  const auto whole = part(0, 90), merged = merge(part(0, 30), part(30, 40), part(70, 20));
  EXPECT_LE((whole.out.cast<float>() - merged.out.cast<float>()).cwiseAbs().maxCoeff(), 3 * 0x1p-8f);
  EXPECT_LE((whole.lse - merged.lse).cwiseAbs().maxCoeff(), 2e-4f);
}

TEST(Half, MultiHeadAttentionRoundsBetweenItsSteps) {
  using Eigen::bfloat16;
  const MultiHeadConfig config{.embed_dim = 96, .heads = 6, .kv_heads = 3, .seed = 7};
  const MultiHeadAttention<bfloat16> layer(config);
  MultiHeadAttention<float> reference(config);
  for (const std::string& name : layer.parameter_names()) {
    if (name.find("bias") != std::string::npos)
      reference.load(name, layer.bias(name));
    else
      reference.load(name, layer.weight(name));
  }
  for (Index len : {1, 4, 50}) {
    const MatrixOf<bfloat16> x = Matrix::Random(len, 96).cast<bfloat16>();
    const Matrix xf = x.cast<float>();
    const Matrix want = reference(xf, xf, xf, causal()).out;
    for (Isa isa : all_instruction_sets()) {
      const Options options{.isa = isa};
      const auto got = layer(x, x, x, causal(), options);
      static_assert(std::is_same_v<decltype(got.out)::Scalar, bfloat16>);
      EXPECT_LE((got.out.cast<float>() - want).cwiseAbs().maxCoeff(), 4 * 0x1p-8f) << to_string(isa) << " " << len;
      const Matrix naive =
          layer(x, x, x, causal(), MultiHeadOptions{.path = Path::naive, .attention = options}).out.cast<float>();
      EXPECT_LE((naive - want).cwiseAbs().maxCoeff(), 4 * 0x1p-8f) << to_string(isa) << " " << len;
    }
  }
}

}  // namespace
}  // namespace attn::test
