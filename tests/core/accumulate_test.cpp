// Options::accumulate: processing the keys part by part, each call continuing from out and lse, gives the result over
// all keys.
#include <gtest/gtest.h>

#include "attn/attn.h"
#include "support/any_rows.h"
#include "support/executors.h"
#include "support/key_parts.h"
#include "support/paths.h"
#include "support/refused.h"

namespace attn::test {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity(), kNaN = std::numeric_limits<float>::quiet_NaN();

/// Boundaries of the parts, some of which are empty.
std::vector<Index> draw_cuts(Index kv_len, Random& random) {
  std::vector<Index> cuts{0, kv_len};
  for (int i = 0; i < 3; ++i) cuts.push_back(random.integer(0, kv_len));
  cuts.push_back(cuts.back());
  std::sort(cuts.begin(), cuts.end());
  return cuts;
}

/// Computes the result over all keys in parts. The first part does not accumulate: it overwrites the contents of out
/// and lse.
template <class T>
Computed<T> by_parts(Arguments<T>& a, const AnyMods<T>& mods, Options options, const std::vector<Index>& cuts,
                     Layout layout = Layout::bhsd) {
  const Sizes& s = a.sizes;
  options.q_offset = options.q_offset.value_or(s.kv_len - s.q_len);
  Strided<T> out(layout, {s.batch, s.heads, s.q_len, s.v_dim});
  const bool has_lse = !options.normaliser.sigmoid_bias();
  Tensor<Wide<T>, 3> lse({s.batch, s.heads, has_lse ? s.q_len : 0});
  std::fill_n(lse.data(), lse.size(), static_cast<Wide<T>>(kNaN));
  for (std::size_t i = 1; i < cuts.size(); ++i) {
    const Range part{cuts[i - 1], cuts[i]};
    options.kv_offset = part.begin;
    options.accumulate = i > 1;
    mods.flash(out.view(), lse, a.q.cview(), rows_of(a.k.cview(), part), rows_of(a.v.cview(), part), options);
  }
  EXPECT_TRUE(out.gaps_untouched());
  return {out.read(), std::vector<Wide<T>>(lse.data(), lse.data() + lse.size())};
}

TEST(Accumulate, PartsOfKeysGiveTheWholeResultWithEveryMod) {
  Random random(1);
  for (const Index q_len : {1, 3, 60}) {
    const Sizes s{2, 4, 2, q_len, 180, 8, 5};
    Numbers numbers;
    if (q_len == 3) numbers.q_offset = random.integer(0, 170);
    const Inputs in(s, random);
    Arguments<float> a(in);
    for (const AnyRow<float>& row : all_rows<float>({s, numbers, random})) {
      if (needs_all_keys(row.name, numbers) || row.meaning.weight) continue;  // weight mods need the sum of all weights
      SCOPED_TRACE(row.name);
      const Truth truth = oracle(in, row.meaning, numbers);
      const Computed<float> by_definition = naive(a, row.mod, options_of(numbers));
      const auto cuts = draw_cuts(s.kv_len, random);
      for (const Isa isa : instruction_sets()) {
        SCOPED_TRACE(to_string(isa));
        Options options = options_of(numbers);
        options.isa = isa;
        expect_close(truth, by_definition, by_parts(a, row.mod, options, cuts, random.pick(kOutputLayouts)));
      }
      if (HasFailure()) return;
    }
  }
}

template <class T>
class AccumulateTyped : public ::testing::Test {};
using Narrow = ::testing::Types<Eigen::bfloat16, Eigen::half>;
TYPED_TEST_SUITE(AccumulateTyped, Narrow);

// Each part rounds the output once more; with grouped tokens that is once per part, not once per pass.
TYPED_TEST(AccumulateTyped, SixteenBitOutputsAreRoundedOncePerPart) {
  using T = TypeParam;
  Random random(2);
  auto grouped = strided_sparse(16);
  grouped.grouping.always = true;
  const auto check = [&](const char* name, const auto& mods, const Meaning& meaning, Index q_len) {
    SCOPED_TRACE(name);
    const Sizes s{1, 4, 2, q_len, 300, 32, 16};
    Inputs in(s, random);
    in.round_to<T>();
    Arguments<T> a(in);
    const Truth truth = oracle(in, meaning);
    const Computed<T> by_definition = naive(a, AnyMods<T>(mods));
    for (const Isa isa : sets_for<T>()) {
      SCOPED_TRACE(to_string(isa));
      const auto got = by_parts<T>(a, AnyMods<T>(mods), {.isa = isa}, {0, 100, 164, 300});
      const Errors<T> reference(truth, by_definition), e(truth, got);
      EXPECT_LE(e.out, 2 * reference.out + 3 * Errors<T>::kNarrowEps / 2 * truth.largest_value);
      EXPECT_LE(e.lse, 2 * reference.lse + 1e-5L + 2 * lse_error<T>(isa));
    }
  };
  const Meaning none,
      strided{[](const Pair&p) { return p.kv <= p.q && (p.kv >= p.q - 16 || (p.q - p.kv) % 16 == 0); }, {}};
  for (const Index q_len : {1, 70}) {
    check("plain", Mods<>(), none, q_len);
    check("strided", grouped, strided, q_len);
  }
}

// The same values as from merge(), up to one rounding per row.
TEST(Accumulate, MatchesMerge) {
  Random random(3);
  for (const Index q_len : {1, 50}) {
    const Sizes s{1, 2, 1, q_len, 200, 16, 8};
    Arguments<double> a(Inputs(s, random));
    for (const Isa isa : instruction_sets()) {
      const Options options{.q_offset = 150, .isa = isa};
      const auto got = by_parts<double>(a, AnyMods<double>(causal()), options, {0, 70, 131, 200});
      const auto part = [&](Index begin, Index end) {
        return attention(a.q.cview(), rows_of(a.k.cview(), {begin, end}), rows_of(a.v.cview(), {begin, end}), causal(),
                         {.q_offset = 150, .kv_offset = begin, .isa = isa});
      };
      const auto merged = merge(part(0, 70), part(70, 131), part(131, 200));
      for (std::size_t i = 0; i < got.out.size(); ++i) EXPECT_NEAR(got.out[i], merged.out.data()[i], 2e-15);
      for (std::size_t i = 0; i < got.lse.size(); ++i) EXPECT_NEAR(got.lse[i], merged.lse.data()[i], 4e-15);
    }
  }
}

// A first part without keys gives the result for no keys; a later one changes no bit.
TEST(Accumulate, PartsWithoutKeys) {
  Random random(4);
  for (const Index q_len : {1, 9}) {
    const Sizes s{2, 2, 1, q_len, 90, 16, 8};
    Arguments<float> a(Inputs(s, random));
    const AnyMods<float> plain{Mods<>()}, sinking{sinks({0.5, -kInf})};
    const Computed<float> none = by_parts<float>(a, plain, {}, {0, 0});
    for (const float x : none.out) EXPECT_EQ(x, 0);
    for (const float x : none.lse) EXPECT_EQ(x, -kInf);
    const Computed<float> sunk = by_parts<float>(a, sinking, {}, {0, 0});
    for (Index b = 0; b < 2; ++b)
      for (Index i = 0; i < q_len; ++i) {
        EXPECT_EQ(sunk.lse[static_cast<std::size_t>((b * 2 + 0) * q_len + i)], 0.5f);
        EXPECT_EQ(sunk.lse[static_cast<std::size_t>((b * 2 + 1) * q_len + i)], -kInf);
      }
    EXPECT_TRUE(same_bits(by_parts<float>(a, sinking, {}, {0, 90}), by_parts<float>(a, sinking, {}, {0, 90, 90, 90})));
    // Likewise a part whose keys are all dropped.
    const AnyMods<float> none_later{sinks({0.5, -kInf}) | key_lengths({60, 60})};
    EXPECT_TRUE(
        same_bits(by_parts<float>(a, none_later, {}, {0, 60}), by_parts<float>(a, none_later, {}, {0, 60, 90})));
  }
}

// Rows that have seen no keys yet may hold anything.
TEST(Accumulate, ARowWithoutKeysIsNotRead) {
  Random random(5);
  for (const Index q_len : {1, 40}) {
    const Sizes s{1, 2, 2, q_len, 100, 8, 5};
    Arguments<float> a(Inputs(s, random));
    for (const Isa isa : instruction_sets()) {
      const Options options{.q_offset = 70, .isa = isa};
      const auto expected = flash(a, causal(), options);
      Tensor<float, 4> out({1, 2, q_len, 5});
      Tensor<float, 3> lse({1, 2, q_len});
      std::fill_n(out.data(), out.size(), kNaN);
      std::fill_n(lse.data(), lse.size(), -kInf);
      Options own = options;
      own.accumulate = true;
      attention_into(out, lse, a.q.cview(), a.k.cview(), a.v.cview(), causal(), own);
      EXPECT_TRUE(same_bits(expected, {{out.data(), out.data() + out.size()}, {lse.data(), lse.data() + lse.size()}}));
      // In rows with keys, a NaN propagates.
      out(0, 1, q_len - 1, 2) = kNaN;
      attention_into(out, lse, a.q.cview(), a.k.cview(), a.v.cview(), causal(), own);
      for (Index i = 0; i < out.size(); ++i) EXPECT_EQ(std::isnan(out.data()[i]), i == (2 * q_len - 1) * 5 + 2) << i;
    }
  }
}

// Some queries keep no key of the second part. If they kept keys of the first part, their result is unchanged;
// otherwise it is 0, whatever the row contained. Both kinds occur within one tile, and also fill whole tiles.
TEST(Accumulate, RowsThatKeepNoKeyOfAPart) {
  Random random(11);
  for (const Index q_len : {1, 7, 40, 150}) {
    const Sizes s{1, 2, 1, q_len, 100, 8, 5};
    Arguments<float> a(Inputs(s, random));
    const auto keys = [&](auto& of, Index begin, Index end) { return rows_of(of.cview(), {begin, end}); };
    // In the first part, rows that are not multiples of 3 keep keys; in the second part, the later half of the rows.
    const auto half = mask_mod([q_len](auto p) { return p.kv < 60 ? p.q % 3 != 0 : 2 * p.q >= q_len + 2; });
    for (const Isa isa : instruction_sets())
      for (const bool few : {false, true}) {
        SCOPED_TRACE(::testing::Message() << to_string(isa) << ", " << q_len << " queries, " << few);
        Options options{.q_offset = few ? 0 : 1, .kv_offset = 0, .isa = isa};
        Tensor<float, 4> out({1, 2, q_len, 5});
        Tensor<float, 3> lse({1, 2, q_len});
        attention_into(out, lse, a.q.cview(), keys(a.k, 0, 60), keys(a.v, 0, 60), half, options);
        const Tensor<float, 4> first_out = out;
        const Tensor<float, 3> first_lse = lse;
        const auto kept_of = [&](Index i, Index kv) { return half.keep(Position{0, 0, i + *options.q_offset, kv}); };
        for (Index h = 0; h < 2; ++h)
          for (Index i = 0; i < q_len; ++i) {
            EXPECT_EQ(lse(0, h, i) == -kInf, !kept_of(i, 0)) << i;
            for (Index c = 0; c < 5 && !kept_of(i, 0); ++c) out(0, h, i, c) = kNaN;
          }
        options.kv_offset = 60;
        options.accumulate = true;
        attention_into(out, lse, a.q.cview(), keys(a.k, 60, 100), keys(a.v, 60, 100), half, options);
        const auto whole = attention(a.q.cview(), a.k.cview(), a.v.cview(), half,
                                     Options{.q_offset = options.q_offset, .kv_offset = 0, .isa = isa});
        for (Index h = 0; h < 2; ++h)
          for (Index i = 0; i < q_len; ++i) {
            if (!kept_of(i, 0) && !kept_of(i, 60)) {
              EXPECT_EQ(lse(0, h, i), -kInf) << i;
            } else if (!kept_of(i, 60)) {
              EXPECT_EQ(lse(0, h, i), first_lse(0, h, i)) << i;
            } else {
              EXPECT_NEAR(lse(0, h, i), whole.lse(0, h, i), 2e-6) << i;
            }
            for (Index c = 0; c < 5; ++c) {
              EXPECT_NEAR(out(0, h, i, c), whole.out(0, h, i, c), 1e-6) << i;
              if (!kept_of(i, 60) && kept_of(i, 0)) {
                EXPECT_NEAR(out(0, h, i, c), first_out(0, h, i, c), 3e-7) << i;
              }
            }
          }
      }
  }
}

// Dropped values do not leak when accumulating either: the tile is recomputed from the previous contents of out.
TEST(Accumulate, DroppedNaNDoesNotSpread) {
  Random random(6);
  const Sizes s{1, 2, 1, 30, 128, 8, 5};
  Inputs in(s, random);
  Arguments<float> sound(in);
  for (Index c = 0; c < s.v_dim; ++c) in.v[static_cast<std::size_t>(100 * s.v_dim + c)] = kNaN;
  Arguments<float> poisoned(in);
  const AnyMods<float> mods(causal() | mask_mod([](auto p) { return p.kv != 100; }));
  for (const Isa isa : instruction_sets())
    for (const Index q_offset : {60, 98}) {
      const Options options{.q_offset = q_offset, .isa = isa};
      const auto expected = by_parts(sound, mods, options, {0, 64, 128}),
                 got = by_parts(poisoned, mods, options, {0, 64, 128});
      for (std::size_t i = 0; i < got.out.size(); ++i) EXPECT_NEAR(got.out[i], expected.out[i], 1e-6);
    }
}

TEST(Accumulate, SigmoidOutputsAreSummed) {
  Random random(7);
  for (const Index q_len : {1, 50}) {
    const Sizes s{2, 4, 2, q_len, 150, 8, 5};
    const Inputs in(s, random);
    Arguments<float> a(in);
    Numbers numbers;
    numbers.sigmoid_bias = -2.5;
    auto grouped = strided_sparse(12);
    grouped.grouping.always = true;
    const Meaning strided{[](const Pair& p) { return p.kv <= p.q && (p.kv >= p.q - 12 || (p.q - p.kv) % 12 == 0); },
                          {}};
    const auto check = [&](const AnyMods<float>& mods, const Meaning& meaning) {
      const Truth truth = oracle(in, meaning, numbers);
      const auto by_definition = naive(a, mods, options_of(numbers));
      for (const Isa isa : instruction_sets()) {
        Options options = options_of(numbers);
        options.isa = isa;
        const auto got = by_parts(a, mods, options, {0, 33, 33, 97, 150});
        EXPECT_LE(largest_error(truth.out, got.out), 2 * largest_error(truth.out, by_definition.out) + 1e-5L);
      }
    };
    check(AnyMods<float>(Mods<>()), {});
    check(AnyMods<float>(grouped), strided);
  }
}

// Few queries over many keys: the keys are split, and the first split starts from the previous result.
TEST(Accumulate, ManyKeysOfFewQueries) {
  Random random(8);
  const Sizes s{1, 2, 1, 1, 9000, 16, 8};
  const Inputs in(s, random);
  Arguments<float> a(in);
  const Truth truth = oracle(in);
  const auto by_definition = naive(a);
  for (const Isa isa : instruction_sets()) {
    const auto one = by_parts<float>(a, AnyMods<float>(Mods<>()), {.executor = serial(), .isa = isa}, {0, 4400, 9000}),
               two = by_parts<float>(a, AnyMods<float>(Mods<>()), {.executor = eager_threads(2), .isa = isa},
                                     {0, 4400, 9000});
    expect_close(truth, by_definition, one);
    EXPECT_TRUE(same_bits(one, two));
  }
}

TEST(Accumulate, AWorkspaceGivesTheSameResult) {
  Random random(9);
  const Sizes s{1, 2, 1, 60, 300, 16, 8};
  Arguments<float> a(Inputs(s, random));
  auto grouped = strided_sparse(16);
  grouped.grouping.always = true;
  const auto check = [&](const auto& mods) {
    Options options{.q_offset = 240, .kv_offset = 100, .accumulate = true, .executor = eager_threads(2)};
    const auto k = rows_of(a.k.cview(), {100, 300}), v = rows_of(a.v.cview(), {100, 300});
    std::vector<std::byte> memory(workspace_bytes(a.q.cview(), k, v, mods, options));
    auto first = attention(a.q.cview(), rows_of(a.k.cview(), {0, 100}), rows_of(a.v.cview(), {0, 100}), mods,
                           {.q_offset = 240, .kv_offset = 0}),
         second = first;
    attention_into(first.out, first.lse, a.q.cview(), k, v, mods, options);
    options.workspace = memory;
    attention_into(second.out, second.lse, a.q.cview(), k, v, mods, options);
    EXPECT_TRUE(std::equal(first.out.data(), first.out.data() + first.out.size(), second.out.data()));
  };
  check(causal());
  check(grouped);
}

TEST(Accumulate, WorksOverCaches) {
  Random random(10);
  const Sizes s{2, 4, 2, 3, 90, 16, 8};
  Arguments<float> a(Inputs(s, random));
  const auto mods = causal() | alibi(alibi_slopes(4)) | sinks({0.5, 1, -1, 0});
  const auto whole = attention(a.q.cview(), a.k.cview(), a.v.cview(), mods);
  Tensor<float, 4> out(whole.out.shape());
  Tensor<float, 3> lse(whole.lse.shape());
  for (const Range part : {Range{0, 40}, Range{40, 90}}) {
    KvCache<float> cache({.batch = 2, .kv_heads = 2, .capacity = 90, .head_dim = 16, .v_dim = 8});
    cache.append(rows_of(a.k.cview(), part), rows_of(a.v.cview(), part));
    attention_into(out, lse, a.q.cview(), cache, mods,
                   {.q_offset = 87, .kv_offset = part.begin, .accumulate = part.begin > 0});
  }
  for (Index i = 0; i < out.size(); ++i) EXPECT_NEAR(out.data()[i], whole.out.data()[i], 1e-6);
  for (Index i = 0; i < lse.size(); ++i) EXPECT_NEAR(lse.data()[i], whole.lse.data()[i], 1e-6);
}

TEST(Accumulate, IsRefusedWithoutPreviousResults) {
  const Tensor<float, 4> x({1, 2, 5, 4});
  Tensor<float, 4> out({1, 2, 5, 4});
  Tensor<float, 3> lse({1, 2, 5});
  const Options options{.accumulate = true};
  const char *into = "only attention_into() and attention_backward_into() support it",
             *needs = "needs the log-sum-exps";
  expect_refused("attention", {into}, [&] { attention(x, x, x, options); });
  expect_refused("naive_attention", {into}, [&] { naive_attention(x, x, x, options); });
  expect_refused("naive_attention_into", {into}, [&] { naive_attention_into(out, x, x, x, options); });
  expect_refused("attention_jvp", {into}, [&] { attention_jvp(x, x, x, x, x, x, options); });
  expect_refused("attention_mass", {into}, [&] { attention_mass(x, x, lse, options); });
  expect_refused("linear_attention", {into}, [&] { linear_attention(x, x, x, elu1(), Mods<>(), options); });
  expect_refused("attention_backward", {into}, [&] { attention_backward(x, x, x, x, Result{x, lse}, options); });
  expect_refused("naive_attention_backward", {into}, [&] { naive_attention_backward(x, x, x, x, options); });
  expect_refused("attention_into", {needs}, [&] { attention_into(out, x, x, x, options); });
  KvCache<float> cache({.kv_heads = 2, .capacity = 5, .head_dim = 4});
  cache.append(x, x);
  expect_refused("attention", {into}, [&] { attention(x, cache, options); });
  expect_refused("attention_into", {needs}, [&] { attention_into(out, x, cache, options); });
  EXPECT_NO_THROW(attention_into(out, x, x, x, {.accumulate = true, .normaliser = Normaliser::sigmoid()}));
  EXPECT_NO_THROW(explain(x, x, x, options));
}

}  // namespace
}  // namespace attn::test
