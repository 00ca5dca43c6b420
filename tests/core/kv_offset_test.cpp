// Keys that begin at any position (Options::kv_offset): a call over a part of the keys gives the result over all keys
// with the others masked out.
#include <gtest/gtest.h>

#include "attn/attn.h"
#include "support/any_rows.h"
#include "support/dropout_by_hand.h"
#include "support/key_parts.h"
#include "support/paths.h"
#include "support/refused.h"
#include "support/weights.h"

namespace attn::test {
namespace {

/// Compares a call over a part of the keys with the oracle over all keys, in which keys outside the part are dropped.
void check_part(const Inputs& inputs, Arguments<float>& a, const AnyMods<float>& mods, const Meaning& meaning,
                Range part, const Numbers& numbers) {
  const Sizes& s = inputs.sizes;
  const Truth truth = oracle(inputs, of_part(meaning, part), numbers);
  const auto k = rows_of(a.k.cview(), part), v = rows_of(a.v.cview(), part);
  Options options{.q_offset = numbers.first_position(s), .kv_offset = part.begin, .executor = serial()};
  const auto plain = [](const auto& t) { return std::vector<float>(t.data(), t.data() + t.size()); };
  const auto naive = mods.naive(a.q.cview(), k, v, options);
  const Computed<float> by_definition{plain(naive.out), plain(naive.lse)};
  expect_naive_close(truth, by_definition, s);
  for (const Isa isa : instruction_sets()) {
    SCOPED_TRACE(to_string(isa));
    Tensor<float, 4> out({s.batch, s.heads, s.q_len, s.v_dim});
    Tensor<float, 3> lse({s.batch, s.heads, s.q_len});
    options.isa = isa;
    mods.flash(out, lse, a.q.cview(), k, v, options);
    expect_close(truth, by_definition, {plain(out), plain(lse)});
  }
}

/// A call, and calls over parts of its keys.
class Parts {
 public:
  Parts(const Sizes& s, std::optional<Index> q_offset, Random& random)
      : sizes(s), numbers{.scale = std::nullopt, .q_offset = q_offset}, inputs_(s, random), arguments_(inputs_) {}

  const Sizes sizes;
  const Numbers numbers;

  void check(const AnyRow<float>& row, Range part) {
    if (::testing::Test::HasFailure() || needs_all_keys(row.name, numbers)) return;
    SCOPED_TRACE(text_of_part(row.name, sizes, part, numbers));
    check_part(inputs_, arguments_, row.mod, row.meaning, part, numbers);
  }

 private:
  const Inputs inputs_;
  Arguments<float> arguments_;
};

TEST(KvOffset, EveryModGivesTheSameForAPartAsUnderAMask) {
  Random random(1);
  for (const auto& [q_len, q_offset] :
       std::vector<std::pair<Index, std::optional<Index>>>{{1, {}}, {20, {}}, {20, 97}, {70, {}}, {60, -11}}) {
    Parts c({q_len < 60 ? 2 : 1, 4, 2, q_len, 180, 8, 5}, q_offset, random);
    const Index cut = random.integer(1, 179);
    for (const AnyRow<float>& row : one_row_per_mod<float>({c.sizes, c.numbers, random}))
      for (const Range part : {Range{0, cut}, Range{cut, 180}}) c.check(row, part);
  }
}

// Masks that depend on positions alone accept negative ones.
TEST(KvOffset, PositionsMayBeNegative) {
  Random random(2);
  const Sizes s{1, 2, 1, 40, 150, 8, 5};
  const Inputs in(s, random);
  Arguments<float> a(in);
  const auto check = [&](const char* name, const auto& mods, const Meaning& meaning) {
    for (const Index kv_offset : {Index(-77), Index(-1000003), -(Index(1) << 40)}) {
      SCOPED_TRACE(name);
      const Numbers numbers{.scale = {}, .q_offset = kv_offset + 100};
      const auto shifted = [&](const Pair& p) { return Pair{p.batch, p.head, p.row, p.q, p.kv + kv_offset}; };
      Meaning there;
      if (meaning.keep) there.keep = [&](const Pair& p) { return meaning.keep(shifted(p)); };
      if (meaning.score) there.score = [&](Real x, const Pair& p) { return meaning.score(x, shifted(p)); };
      if (meaning.factor) there.factor = [&](const Pair& p) { return meaning.factor(shifted(p)); };
      const Truth truth = oracle(in, there, numbers);
      Options options{.q_offset = numbers.q_offset, .kv_offset = kv_offset, .executor = serial()};
      const auto by_definition = naive(a, mods, options);
      expect_naive_close(truth, by_definition, s);
      for (const Isa isa : instruction_sets()) {
        options.isa = isa;
        expect_close(truth, by_definition, flash(a, mods, options));
      }
    }
  };
  check("causal", causal(), {[](const Pair& p) { return p.kv <= p.q; }, {}});
  check("window", sliding_window(20, 3), {[](const Pair& p) { return p.q - p.kv <= 20 && p.kv - p.q <= 3; }, {}});
  check("global", any_of(sliding_window(5), global_tokens({2, 60})),
        {[](const Pair& p) {
           return (p.kv <= p.q && p.q - p.kv <= 5) || p.q == 2 || p.q == 60 || p.kv == 2 || p.kv == 60;
         },
         {}});
  check("alibi", alibi({0.25, 0.5}),
        {{}, [](Real x, const Pair& p) { return x - (p.head + 1) * Real(p.q - p.kv) / 4; }});
  check("dropout", dropout(0.4, 17),
        {{}, {}, {}, [](const Pair& p) { return dropout_factor(0.4, 17, p.batch, p.head, p.q, p.kv); }});
  for (const bool always : {false, true}) {
    auto fixed = fixed_sparse(16, 3);
    fixed.grouping.always = always;
    check("fixed", fixed,
          {[](const Pair& p) {
             const Index own = ((p.q % 16) + 16) % 16, other = ((p.kv % 16) + 16) % 16;
             return p.kv <= p.q && (p.kv >= p.q - own || other >= 13);
           },
           {}});
    auto strided = strided_sparse(12);
    strided.grouping.always = always;
    check("strided | dropout", strided | dropout(0.4, 17),
          {[](const Pair& p) { return p.kv <= p.q && (p.q - p.kv <= 12 || (p.q - p.kv) % 12 == 0); },
           {},
           {},
           [](const Pair& p) { return dropout_factor(0.4, 17, p.batch, p.head, p.q, p.kv); }});
    auto gaps = dilated(4, 5, 2);
    gaps.grouping.always = always;
    check("dilated", gaps,
          {[](const Pair& p) {
             const Index d = p.q - p.kv;
             return d % 5 == 0 && d <= 20 && d >= -10;
           },
           {}});
  }
}

TEST(KvOffset, TheLastQuerySeesTheLastKey) {
  EXPECT_EQ(kept_keys(1, causal(), {.kv_offset = 10}), "1110 1111 ");
  EXPECT_EQ(kept_keys(1, causal(), {.q_offset = 10, .kv_offset = 10}), "1000 1100 ");
  EXPECT_EQ(kept_keys(1, causal(), {.q_offset = 0, .kv_offset = -2}), "1110 1111 ");
  EXPECT_EQ(kept_keys(1, global_tokens({11}), {.kv_offset = 10}), "0100 0100 ");
  EXPECT_EQ(kept_keys(1, key_lengths({12}), {.kv_offset = 10}), "1100 1100 ");
  EXPECT_EQ(kept_keys(1, key_lengths({12}), {.kv_offset = 0}), "1111 1111 ");  // more keys may follow
  EXPECT_EQ(kept_keys(1, causal(), {.q_offsets = {11}, .kv_offset = 10}), "1100 1110 ");
}

// Mods are told which keys the call has.
TEST(KvOffset, ModsAreToldTheOffset) {
  const auto spy = [](Range keys, bool is_part) {
    return bind_mod([=](const Problem& p) {
      EXPECT_EQ(p.keys(), keys);
      EXPECT_EQ(p.has_part_of_keys, is_part);
      return mask_mod([=](const Position& at) {
        EXPECT_TRUE(keys.begin <= at.kv && at.kv < keys.end);
        return true;
      });
    });
  };
  kept_keys(1, spy({0, 4}, false), {});
  kept_keys(1, spy({0, 4}, true), {.kv_offset = 0});
  kept_keys(1, spy({7, 11}, true), {.kv_offset = 7});
}

// With a kv_offset, tensors in mods must cover all keys from position 0: shorter ones are refused with a message that
// states both sizes. Without one, longer ones are refused as well.
TEST(KvOffset, RefusesModsThatDoNotCoverTheKeys) {
  const Options part{.q_offset = 0, .kv_offset = 21}, begun{.q_offset = 0, .kv_offset = 0},
      below{.q_offset = 0, .kv_offset = -3}, far{.kv_offset = (Index(1) << 60) - 5},
      farther{.kv_offset = Index(1) << 62}, low{.kv_offset = -(Index(1) << 60) - 1};
  const auto refuse = [](const char* what, const Said& said, const auto& mods, const Options& options) {
    expect_all_refuse(what, said, kQ, kK, kV, mods, options);  // 11 queries, 17 keys
  };
  refuse("far", {"kv_offset is 1152921504606846971", "kv_len is 17", "2^60"}, Mods<>(), far);
  refuse("farther", {"kv_offset is 4611686018427387904", "2^60"}, Mods<>(), farther);
  refuse("low", {"kv_offset is -1152921504606846977", "2^60"}, Mods<>(), low);
  const auto bools = [](Shape<2> shape) { return Tensor<bool, 2>(shape); };
  refuse("keep", {"(11, 37)", "11, 38)", "all keys from position 0"}, keep(bools({11, 37})), part);
  refuse("keep of the part", {"(11, 17)", "11, 38)"}, keep(bools({11, 17})), part);
  refuse("keep of more", {"(11, 38)", "11, 17)"}, keep(bools({11, 38})), {.q_offset = 0});
  refuse("keep below", {"kv_offset is negative"}, keep(bools({11, 17})), below);
  refuse("padding", {"(2, 37)", "(2, 38)", "all keys from position 0"}, padding(bools({2, 37})), part);
  refuse("documents", {"37 ids for 38 keys"}, documents(std::vector<Index>(37, 1)), part);
  refuse("documents of more", {"18 ids for 17 keys"}, documents(std::vector<Index>(18, 1)), {});
  refuse("lengths", {"key_lengths[1]", "is -1"}, key_lengths({40, -1}), part);
  refuse("lengths of more", {"key_lengths[0]", "is 40", "0..17"}, key_lengths({40, 3}), {.q_offset = 0});
  refuse("blocks", {"(11, 9)", "11, 10)"}, block_sparse(bools({11, 9}), 1, 4), part);
  refuse("grid", {"37 tokens", "38 keys"}, neighbourhood({37}, {3}), part);
  refuse("block_mask", {"kv_len 37", "kv_offset 0", "17", "21"}, block_mask(causal(), 11, 37, {.q_offset = 0}), part);
  const auto served = [](const auto& mods, const Options& options) {
    const auto q = tensor(kQ), k = tensor(kK), v = tensor(kV);
    EXPECT_NO_THROW(attention(q, k, v, mods, options));
  };
  served(keep(bools({11, 38})), part);
  served(keep(bools({11, 50})), begun);
  served(padding(bools({1, 99})), part);
  served(documents(std::vector<Index>(38, 1)), part);
  served(key_lengths({40, 0}), begun);
  served(block_sparse(bools({11, 10}), 1, 4), part);
  served(neighbourhood({38}, {3}), part);
  served(block_mask(causal(), 11, 38, {.q_offset = 0}), part);
  served(block_mask(causal(), 11, 17, part), part);
  served(Mods<>(), {.kv_offset = (Index(1) << 60) - 17});
}

// Lists short enough for keys to be gathered; the part contains some of them.
TEST(KvOffset, GathersTheListedKeysOfThePart) {
  Random random(3);
  for (const Index rows : {Index(1), Index(30)}) {
    const Sizes s{2, 4, 2, 30, 700, 16, 8};
    const Inputs in(s, random);
    Arguments<float> a(in);
    Tensor<Index, 4> lists({2, 4, rows, 40});
    for (Index i = 0; i < lists.size(); ++i) lists.data()[i] = random.integer(-1, 699);
    const AnyMods<float> mods(select(lists) | causal() | dropout(0.2, 5));
    const Meaning meaning{[&](const Pair& p) {
                            for (Index i = 0; i < 40; ++i)
                              if (lists(p.batch, p.head, rows == 1 ? 0 : p.row, i) == p.kv) return p.kv <= p.q;
                            return false;
                          },
                          {},
                          {},
                          [](const Pair& p) { return dropout_factor(0.2, 5, p.batch, p.head, p.q, p.kv); }};
    for (const Range part : {Range{0, 300}, Range{300, 700}, Range{650, 700}}) {
      check_part(in, a, mods, meaning, part, {.scale = {}, .q_offset = 670});
    }
  }
}

TEST(KvOffset, AppliesToWeights) {
  Random random(4);
  const Sizes s{2, 4, 2, 70, 150, 16, 8};
  Arguments<float> a(Inputs(s, random));
  const Range part{37, 150};
  const Options options{.q_offset = 66, .kv_offset = part.begin};
  const auto k = rows_of(a.k.cview(), part), v = rows_of(a.v.cview(), part);
  const auto mods = causal() | alibi(alibi_slopes(4)) | key_lengths({140, 90});
  const auto expected = naive_attention(a.q.cview(), k, v, mods, options).weights;
  const auto lse = attention(a.q.cview(), k, v, mods, options).lse;
  const auto got = weights_by_tiles(a.q.cview(), k, lse, mods, options);
  for (Index i = 0; i < got.size(); ++i) ASSERT_NEAR(got.data()[i], expected.data()[i], 1e-5);
}

// A cache that dropped its first tokens: positions continue, and a rope's rotation depends only on the distance between
// query and key.
TEST(KvOffset, AppliesToCaches) {
  Random random(5);
  const Sizes s{2, 4, 2, 3, 90, 16, 8};
  Arguments<float> a(Inputs(s, random));
  const Rope rope({.head_dim = 16});
  const auto cache_of = [&](Range part, bool with_rope) {
    KvCache<float> cache({.batch = 2,
                          .kv_heads = 2,
                          .capacity = 90,
                          .head_dim = 16,
                          .v_dim = 8,
                          .rope = with_rope ? std::optional<Rope>(rope) : std::nullopt});
    cache.append(rows_of(a.k.cview(), part), rows_of(a.v.cview(), part));
    return cache;
  };
  const auto mods = causal() | documents_at({0, 20, 90}) | sliding_window(40) | dropout(0.2, 3);
  for (const bool with_rope : {false, true}) {
    const auto whole = attention(a.q.cview(), cache_of({0, 90}, with_rope), mods);
    const auto rest = attention(a.q.cview(), cache_of({45, 90}, with_rope), mods, {.kv_offset = 45});
    for (Index i = 0; i < whole.out.size(); ++i) EXPECT_NEAR(rest.out.data()[i], whole.out.data()[i], 2e-5);
    for (Index i = 0; i < whole.lse.size(); ++i) EXPECT_NEAR(rest.lse.data()[i], whole.lse.data()[i], 2e-5);
  }
}

TEST(KvOffset, AppliesToForwardMode) {
  Random random(6);
  const Sizes s{1, 2, 1, 40, 150, 8, 5};
  Arguments<double> a(Inputs(s, random)), d(Inputs(s, random));
  const Range part{31, 150};
  const auto of = [&](auto& x) { return rows_of(x.cview(), part); };
  const auto mods = causal() | softcap(2) | alibi({0.1, 0.2}) | dropout(0.2, 3);
  const Options options{.q_offset = 100, .kv_offset = part.begin};
  const auto got = attention_jvp(a.q.cview(), of(a.k), of(a.v), d.q.cview(), of(d.k), of(d.v), mods, options);
  const auto expected =
      naive_attention_jvp(a.q.cview(), a.k.cview(), a.v.cview(), d.q.cview(), d.k.cview(), d.v.cview(),
                          mods | mask_mod([](auto p) { return p.kv >= 31; }), {.q_offset = 100});
  for (Index i = 0; i < got.out.size(); ++i) EXPECT_NEAR(got.out.data()[i], expected.out.data()[i], 1e-13);
  for (Index i = 0; i < got.tangent.size(); ++i) EXPECT_NEAR(got.tangent.data()[i], expected.tangent.data()[i], 1e-12);
}

// Recurrent forms work on rows, but masks refer to positions, that is, to all keys of the sequence.
TEST(KvOffset, AppliesToLinearAttention) {
  Random random(7);
  const Sizes s{2, 4, 2, 90, 150, 8, 5};
  Arguments<double> a(Inputs(s, random));
  const Range part{40, 150};
  const auto k = rows_of(a.k.cview(), part), v = rows_of(a.v.cview(), part);
  const auto mods = causal() | key_lengths({120, 60}) | documents_at({0, 50, 100, 150});
  const Options options{.q_offset = 60, .kv_offset = part.begin};
  const auto got = linear_attention(a.q.cview(), k, v, elu1(), mods, options);
  const auto by_definition = naive_linear_attention(a.q.cview(), k, v, elu1(), mods, options);
  // The same call with mods in terms of rows: keys begin at position 0.
  const auto at_0 = linear_attention(
      a.q.cview(), k, v, elu1(), causal() | key_lengths({80, 20}) | documents_at({0, 10, 60, 110}), {.q_offset = 20});
  for (Index i = 0; i < got.out.size(); ++i) {
    EXPECT_NEAR(got.out.data()[i], by_definition.out.data()[i], 1e-12);
    EXPECT_EQ(got.out.data()[i], at_0.out.data()[i]);
  }
}

}  // namespace
}  // namespace attn::test
