// Sums over very many keys with few large weights; an attention sink is one large weight at the beginning. A plain
// running sum would lose the small weights. All weights are known, so the reference is a sum in long double.
#include <array>
#include <numeric>

#include "support/paths.h"

namespace attn::test {
namespace {

constexpr Real kLarge = 17;  // e^-17 is 0.35 eps of float

struct Family {
  const char* name;
  std::function<bool(Index key, Index kv_len)> is_large;
};
const std::array<Family, 4> kFamilies = {{{"first", [](Index j, Index) { return j == 0; }},
                                          {"last", [](Index j, Index n) { return j == n - 1; }},
                                          {"one per tile", [](Index j, Index) { return j % 64 == 17; }},
                                          {"none", [](Index, Index) { return false; }}}};

/// One head with equal queries: a large key scores kLarge, any other key 0. Values have two columns: the first is 1 for
/// small keys and 0 for large ones, so it sums the small weights; the second is 1 for large keys and a small fraction
/// for the others. All are exact in 16 bits. The last page of 64 keys has at least one unused key, whose value is NaN.
template <class T>
struct Keys {
  Index n, pages = n / 64 + 1;
  Tensor<T, 4> k = Tensor<T, 4>({pages, 1, 64, 1}), v = Tensor<T, 4>({pages, 1, 64, 2});
  Real lse;
  std::array<Real, 2> out;

  Keys(const Family& family, Index count) : n(count) {
    std::fill_n(v.data(), v.size(), static_cast<T>(std::numeric_limits<Wide<T>>::quiet_NaN()));
    Real sum = 0, sums[2] = {};
    for (Index j = 0; j < n; ++j) {
      const bool large = family.is_large(j, n);
      const Real score = large ? kLarge : 0, values[2] = {large ? 0.0L : 1.0L, large ? 1.0L : Real(j % 8) / 1024};
      k.data()[j] = static_cast<T>(static_cast<Wide<T>>(score));
      const Real weight = std::exp(score - kLarge);
      sum += weight;
      for (Index c = 0; c < 2; ++c) {
        v.data()[2 * j + c] = static_cast<T>(static_cast<Wide<T>>(values[c]));
        sums[c] += weight * values[c];
      }
    }
    lse = kLarge + std::log(sum);
    out = {sums[0] / sum, sums[1] / sum};
  }

  /// The first `count` keys or values, shared by `heads` heads.
  TensorView<const T, 4> keys(Index count, Index heads = 1) const {
    return {k.data(), {1, heads, count, 1}, {0, 0, 1, 1}};
  }
  TensorView<const T, 4> values(Index count, Index heads = 1) const {
    return {v.data(), {1, heads, count, 2}, {0, 0, 2, 1}};
  }
};

/// The largest errors over all queries.
struct Errors {
  Real lse = 0;
  std::array<Real, 2> out{};
};
template <class Out, class Lse, class T>
Errors errors(const Out& out, const Lse& lse, const Keys<T>& keys) {
  Errors e;
  const auto raise = [](Real& most, Real error) { most = error <= most ? most : error; };  // passes NaN on
  for (Index h = 0; h < lse.dim(1); ++h)
    for (Index i = 0; i < lse.dim(2); ++i) {
      raise(e.lse, std::abs(lse(0, h, i) - keys.lse));
      for (Index c = 0; c < 2; ++c)
        raise(e.out[static_cast<std::size_t>(c)],
              std::abs(static_cast<Wide<T>>(out(0, h, i, c)) - keys.out[static_cast<std::size_t>(c)]));
    }
  return e;
}

/// Errors of attend(out, lse, q, options) for queries of ones.
template <class T, class Attend>
Errors errors_of(const Keys<T>& keys, Index heads, Index q_len, Isa isa, const Attend& attend) {
  using W = Wide<T>;
  Tensor<T, 4> q({1, heads, q_len, 1});
  std::fill_n(q.data(), q.size(), static_cast<T>(W(1)));
  Tensor<W, 4> out({1, heads, q_len, 2});
  Tensor<W, 3> lse({1, heads, q_len});
  const Options options{.scale = 1, .isa = isa};
  attend(out, lse, q, options);
  return errors(out, lse, keys);
}

/// Expects errors no larger than the naive path's or, if that is larger, than an allowance for the rounding of lse and
/// of sums over one tile, which does not grow with kv_len except through |lse|.
template <class T>
void expect_no_worse(const Errors& flash, const Errors& naive, const Keys<T>& keys, bool rounds,
                     const std::string& what) {
  constexpr Real kEps = std::numeric_limits<Wide<T>>::epsilon();
  // With products in bf16, exponentials have an error of 1e-4, weighted by the small keys' share of the sum, and
  // weights are rounded to bfloat16.
  const Real small = rounds ? std::abs(1 - std::exp(kLarge - keys.lse)) : 0;
  EXPECT_LE(flash.lse, std::max(naive.lse, kEps * std::abs(keys.lse) + small * 1.03e-4L)) << what;
  for (std::size_t c = 0; c < 2; ++c)
    EXPECT_LE(flash.out[c], std::max(naive.out[c], 16 * kEps + (rounds ? 0x1p-8L : 0))) << what << " column " << c;
}

template <class T>
void check(const Family& family, Index n) {
  const Keys<T> keys(family, n);
  Options one_thread{.scale = 1, .executor = serial()};
  Tensor<T, 4> ones({1, 1, 5, 1});
  std::fill_n(ones.data(), ones.size(), static_cast<T>(Wide<T>(1)));
  const auto by_definition = naive_attention(ones, keys.keys(n), keys.values(n), full(), one_thread);
  const Errors naive = errors(by_definition.out, by_definition.lse, keys);

  Tensor<Index, 2> table({1, keys.pages});
  std::iota(table.data(), table.data() + keys.pages, Index(0));
  const KvView<Wide<T>> paged(keys.k, keys.v, table, {n});
  const auto drops_the_last = mask_mod([n](const Position& p) { return p.kv != n; });
  for (const Isa isa : sets_for<T>()) {
    const auto expect = [&](const char* path, Index heads, Index q_len, const auto& attend) {
      const std::string what = std::string(path) + ", " + std::string(to_string(isa)) + ", large: " + family.name +
                               ", kv_len " + std::to_string(n);
      constexpr Index kFew = 8;  // at most this many queries are processed as single queries, without bf16 vectors
      const bool rounds = isa == Isa::amx || (isa == Isa::avx512_bf16 && q_len > kFew);
      expect_no_worse(errors_of(keys, heads, q_len, isa, attend), naive, keys, rounds, what);
    };
    const auto plain = [&](auto& out, auto& lse, const auto& q, const Options& options) {
      attention_into(out, lse, q, keys.keys(n, q.dim(1)), keys.values(n, q.dim(1)), full(), options);
    };
    const auto in_pages = [&](auto& out, auto& lse, const auto& q, const Options& options) {
      attention_into(out, lse, q, paged, full(), options);
    };
    // 0 * NaN is NaN, so tiles are recomputed.
    const auto by_selection = [&](auto& out, auto& lse, const auto& q, const Options& options) {
      attention_into(out, lse, q, keys.keys(n + 1), keys.values(n + 1), drops_the_last, options);
    };
    expect("tiles", 1, 5, plain);
    expect("a single query with split keys", 1, 1, plain);
    expect("tiles in pages", 1, 5, in_pages);
    expect("a single query in pages", 1, 1, in_pages);
    if (n > 200'000) continue;  // slow
    expect("single queries, too many to split their keys", 64, 1, plain);
    expect("tiles by selection", 1, 5, by_selection);
    expect("a single query by selection", 1, 1, by_selection);
  }
}

template <class T>
void check_lengths(std::initializer_list<Index> lengths) {
  for (const Family& family : kFamilies)
    for (const Index n : lengths) check<T>(family, n);
}

TEST(RunningSums, Float) { check_lengths<float>({1000, 1459, 4096, 4161, 20'000, 200'000, 1'000'000}); }
TEST(RunningSums, Double) { check_lengths<double>({1000, 50'000}); }
TEST(RunningSums, Bfloat16) { check_lengths<Eigen::bfloat16>({1000, 20'000, 200'000}); }
TEST(RunningSums, Half) { check_lengths<Eigen::half>({1000, 20'000}); }

}  // namespace
}  // namespace attn::test
