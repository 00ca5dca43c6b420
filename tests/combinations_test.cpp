// Every mod with every other, in both orders, and longer chains. So that this needs few instantiations, each mod is put
// behind std::function; its predicate, score and hints stay its own.
#include <functional>
#include <memory>

#include "support/sweep.h"

namespace attn::test {
namespace {

using Keep = std::function<bool(const Position&)>;
using CoverageOf = std::function<Coverage(const Tile&)>;
using RangeOf = std::function<Range(const Tile&)>;

struct ErasedMask {
  std::function<MaskMod<Keep, CoverageOf, RangeOf>(const Problem&)> make;
  MaskMod<Keep, CoverageOf, RangeOf> operator()(const Problem& problem) const { return make(problem); }
};

template <class T>
struct ErasedScore {
  struct Score {
    std::function<T(T, const Position&)> score;
    template <class X>
    X operator()(X x, const Position& p) const {
      return static_cast<X>(score(static_cast<T>(x), p));
    }
  };
  std::function<ScoreMod<Score>(const Problem&)> make;
  ScoreMod<Score> operator()(const Problem& problem) const { return make(problem); }
};

template <class M>
auto erased_mask(const M& mod) {
  return bind_mod(ErasedMask{[mod](const Problem& problem) {
    // The bound mod may refer to `mod`, so both are kept together.
    const auto kept = std::make_shared<const M>(mod);
    const auto bound =
        std::make_shared<decltype(attn::detail::bind(*kept, problem))>(attn::detail::bind(*kept, problem));
    return mask_mod(Keep([kept, bound](const Position& p) { return bound->keep(p); }),
                    CoverageOf([kept, bound](const Tile& t) { return bound->coverage(t); }),
                    RangeOf([kept, bound](const Tile& t) { return bound->kv_range(t); }));
  }});
}

template <class T, class M>
auto erased_score(const M& mod) {
  return bind_mod(ErasedScore<T>{[mod](const Problem& problem) {
    const auto kept = std::make_shared<const M>(mod);
    const auto bound =
        std::make_shared<decltype(attn::detail::bind(*kept, problem))>(attn::detail::bind(*kept, problem));
    return score_mod(
        typename ErasedScore<T>::Score{[kept, bound](T x, const Position& p) { return bound->score(x, p); }});
  }});
}

template <class T>
struct Erased {
  std::vector<Row<decltype(erased_mask(attn::full()))>> masks;
  std::vector<Row<decltype(erased_score<T>(attn::softcap(1)))>> scores;

  explicit Erased(const Setting& s) {
    each_kind(s, [&](const auto& row) {
      if (row.meaning.score)
        scores.push_back({row.name, erased_score<T>(row.mod), row.meaning});
      else
        masks.push_back({row.name, erased_mask(row.mod), row.meaning});
    });
  }
};

template <class A, class B>
auto operator|(const Row<A>& a, const Row<B>& b) {
  return Row<decltype(a.mod | b.mod)>{a.name + " | " + b.name, a.mod | b.mod, both(a.meaning, b.meaning)};
}

template <class T>
Sizes small_sizes(Random& random) {
  const Index kv_heads = random.integer(1, 2);
  return {random.integer(1, 2),
          kv_heads * random.integer(1, 2),
          kv_heads,
          random.pick(std::vector{1, 5, 17, 40}),
          random.integer(1, 75),
          random.pick(kDims),
          random.pick(kDims)};
}

TEST(Combinations, EveryPairInBothOrders) {
  Random random(1);
  for (int round = 0; round < 10; ++round) {
    const Sizes s = small_sizes<float>(random);
    Drawn<float> drawn = Drawn<float>::draw(s, random);
    const Erased<float> mods(Setting{s, drawn.numbers, random});
    ASSERT_GE(mods.masks.size(), 14u);
    ASSERT_GE(mods.scores.size(), 7u);
    const auto cross = [&](const auto& all_a, const auto& all_b) {
      for (const auto& a : all_a)
        for (const auto& b : all_b) expect_right(drawn, a | b);
    };
    cross(mods.masks, mods.masks);
    cross(mods.masks, mods.scores);
    cross(mods.scores, mods.masks);
    cross(mods.scores, mods.scores);
  }
}

TEST(Combinations, ChainsOfFive) {
  Random random(2);
  for (int round = 0; round < 400; ++round) {
    const Sizes s = small_sizes<double>(random);
    Drawn<double> drawn = Drawn<double>::draw(s, random);
    const Erased<double> mods(Setting{s, drawn.numbers, random});
    const auto m = [&]() -> auto& { return random.pick(mods.masks); };
    const auto x = [&]() -> auto& { return random.pick(mods.scores); };
    const auto &a = m(), &c = m(), &e = m();
    const auto &b = x(), &d = x();
    expect_right(drawn, a | b | c | d | e);
  }
}

TEST(Combinations, WithTheirOwnTypes) {
  Random random(3);
  for (int round = 0; round < 100; ++round) {
    const Sizes s = small_sizes<float>(random);
    Drawn<float> drawn = Drawn<float>::draw(s, random);
    const Setting setting{s, drawn.numbers, random};
    const auto causal_row = mask("causal", causal(), [](const Pair& p) { return p.kv <= p.q; })[0];
    const auto distance = score("distance", lambda_distance(), lambda_distance_by_hand)[0];
    const auto window = random.pick(window_rows(setting));
    const auto lengths = random.pick(key_length_rows(setting));
    const auto kept = random.pick(keep_rows<4>(setting));
    const auto added = random.pick(bias_rows<4>(setting));
    const auto cap = random.pick(softcap_rows());
    const auto slopes = alibi_rows(setting)[0];
    expect_right(drawn, causal_row | lengths | slopes);
    expect_right(drawn, cap | added | causal_row | kept);
    expect_right(drawn, window | distance | lengths | cap);
    expect_right(drawn, kept | window | causal_row | lengths);
    expect_right(drawn, slopes | distance | added | cap);
  }
}

/// Mods that must differ do differ, so that a test that calls them all alike would show.
TEST(Combinations, DifferentModsGiveDifferentResults) {
  Random random(4);
  const Sizes s{2, 2, 1, 20, 30, 8, 8};
  const Inputs in(s, random);
  Arguments<float> a(in);
  std::vector<std::pair<std::string, Computed<float>>> results, by_definition;
  const auto add = [&](const char* name, const auto& mods) {
    results.emplace_back(name, flash(a, mods));
    by_definition.emplace_back(name, naive(a, mods));
  };
  Tensor<bool, 1> odd({30});
  for (Index j = 1; j < 30; j += 2) odd(j) = true;
  Tensor<float, 1> slope({30});
  for (Index j = 0; j < 30; ++j) slope(j) = 0.1f * static_cast<float>(j);
  add("none", full());
  add("causal", causal());
  add("window 4", sliding_window(4));
  add("window 5", sliding_window(5));
  add("window 4, 1", sliding_window(4, 1));
  add("lengths", key_lengths({30, 29}));
  add("lengths exchanged", key_lengths({29, 30}));
  add("keep", keep(odd));
  add("drop", drop(odd));
  add("bias", bias(slope));
  add("softcap 1", softcap(1));
  add("softcap 2", softcap(2));
  add("alibi", alibi({0.1, 0.2}));
  add("alibi exchanged", alibi({0.2, 0.1}));
  add("bias, cap", bias(slope) | softcap(1));
  add("cap, bias", softcap(1) | bias(slope));
  add("causal, lengths", causal() | key_lengths({30, 29}));
  for (std::size_t i = 0; i < results.size(); ++i)
    for (std::size_t j = 0; j < i; ++j)
      for (const auto* r : {&results, &by_definition}) {
        Real difference = 0;
        for (std::size_t e = 0; e < (*r)[i].second.out.size(); ++e)
          difference = std::max<Real>(difference, std::abs((*r)[i].second.out[e] - (*r)[j].second.out[e]));
        EXPECT_GT(difference, 1e-3) << (*r)[i].first << " is like " << (*r)[j].first;
      }
}

}  // namespace
}  // namespace attn::test
