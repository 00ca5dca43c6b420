// Every pair of mods in both orders (in float), and longer chains (in double). To limit instantiations, mods are
// type-erased by std::function; their predicates, scores and hints are unchanged.
#include "support/erased_rows.h"
#include "support/mod_table.h"
#include "support/sweep.h"

namespace attn::test {
namespace {

Sizes small_sizes(Random& random) {
  const Index kv_heads = random.integer(1, 2);
  return {random.integer(1, 2),
          kv_heads * random.integer(1, 2),
          kv_heads,
          random.pick(std::vector{1, 5, 17, 40, 53}),
          random.integer(1, 75),
          random.pick(kDims),
          random.pick(kDims)};
}

TEST(Combinations, EveryPairInBothOrders) {
  Random random(1);
  for (int round = 0; round < 6; ++round) {
    const Sizes s = small_sizes(random);
    Drawn<float> drawn = Drawn<float>::draw(s, random);
    const ErasedRows mods = erased_rows(Setting{s, drawn.numbers, random});
    ASSERT_GE(mods.masks.size(), 25u);
    ASSERT_GE(mods.scores.size(), 7u);
    const auto cross = [&](const auto& all_a, const auto& all_b) {
      for (const auto& a : all_a)
        for (const auto& b : all_b) expect_right(drawn, a | b);
    };
    cross(mods.masks, mods.masks);
    cross(mods.masks, mods.scores);
    cross(mods.scores, mods.masks);
    cross(mods.scores, mods.scores);
    cross(mods.grouped, mods.masks);
    cross(mods.masks, mods.grouped);
    cross(mods.grouped, mods.scores);
    cross(mods.scores, mods.grouped);
    cross(mods.grouped, mods.grouped);
    cross(mods.others, mods.masks);
    cross(mods.masks, mods.others);
    cross(mods.others, mods.scores);
    cross(mods.scores, mods.others);
    cross(mods.others, mods.grouped);
    cross(mods.grouped, mods.others);
    cross(mods.others, mods.others);
  }
}

TEST(Combinations, FiftyTriples) {
  Random random(5);
  for (int round = 0; round < 25; ++round) {
    const Sizes s = small_sizes(random);
    Drawn<double> drawn = Drawn<double>::draw(s, random);
    const ErasedRows mods = erased_rows(Setting{s, drawn.numbers, random});
    const auto &a = random.pick(mods.masks), &b = random.pick(mods.masks);
    const auto &x = random.pick(mods.scores), &y = random.pick(mods.scores);
    expect_right(drawn, a | x | b);
    expect_right(drawn, x | random.pick(mods.grouped) | y);
  }
}

TEST(Combinations, ChainsOfFive) {
  Random random(2);
  for (int round = 0; round < 400; ++round) {
    const Sizes s = small_sizes(random);
    Drawn<double> drawn = Drawn<double>::draw(s, random);
    const ErasedRows mods = erased_rows(Setting{s, drawn.numbers, random});
    const auto m = [&]() -> auto& { return random.pick(mods.masks); };
    const auto x = [&]() -> auto& { return random.pick(mods.scores); };
    const auto &a = m(), &c = m(), &e = m();
    const auto &b = x(), &d = x();
    expect_right(drawn, a | b | c | d | e);
  }
}

TEST(Combinations, WithoutTypeErasure) {
  Random random(3);
  for (int round = 0; round < 100; ++round) {
    const Sizes s = small_sizes(random);
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
    const auto sink = sink_rows(setting)[0], other_sink = sink_rows(setting)[0];
    const auto strided = strided_rows(setting)[0];
    const auto dilated = dilated_rows(setting)[0];
    expect_right(drawn, sink | causal_row | cap);
    expect_right(drawn, sink | strided | lengths | cap);
    expect_right(drawn, added | dilated | other_sink | causal_row);
    expect_right(drawn, lengths | sink | added | other_sink);
  }
}

/// Every third row keeps no key; the other mod may empty further rows.
TEST(Combinations, RowsWithoutKeysAreZero) {
  constexpr double kInf = std::numeric_limits<double>::infinity();
  Random random(6);
  for (Index q_len : {5, 33})
    for (Index kv_len : {4, 70}) {
      const Sizes s{2, 2, 1, q_len, kv_len, 8, 5};
      const Inputs in(s, random);
      Arguments<float> a(in);
      const auto thirds = mask("thirds", erased_mask(mask_mod([](const Position& p) { return p.q % 3 != 0; })),
                               [](const Pair& p) { return p.q % 3 != 0; })[0];
      const auto expect_zero = [&](const AnyRow<float>& row) {
        SCOPED_TRACE(row.name);
        const Truth truth = oracle(in, row.meaning);
        ASSERT_NE(std::count(truth.lse.begin(), truth.lse.end(), -kInf), 0);
        std::vector<Computed<float>> paths{naive(a, row.mod)};
        for (Isa isa : instruction_sets()) paths.push_back(flash(a, row.mod, {.isa = isa}));
        for (const auto& got : paths)
          for (std::size_t i = 0; i < truth.lse.size(); ++i) {
            if (truth.lse[i] != -kInf) {
              EXPECT_TRUE(std::isfinite(got.lse[i])) << "row " << i;
              continue;
            }
            EXPECT_EQ(got.lse[i], -kInf) << "row " << i;
            for (std::size_t e = 0; e < 5; ++e) EXPECT_EQ(got.out[i * 5 + e], 0) << "row " << i;
          }
      };
      const ErasedRows mods = erased_rows(Setting{s, {}, random});
      for (const auto& row : mods.masks) expect_zero(row | thirds);
      for (const auto& row : mods.scores) expect_zero(row | thirds);
      for (const auto& row : mods.grouped)
        expect_zero(row | thirds);  // not with sinks, which give such a row a finite lse
    }
}

/// Mods that differ give different results; a harness that runs the same mod under every name would fail.
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
  // Erased by kind, so that few types are compiled; the sweeps show that each mod behaves the same unerased.
  const auto add_mask = [&](const char* name, const auto& mod) { add(name, erased_mask(mod)); };
  const auto add_score = [&](const char* name, const auto& mod) { add(name, erased_score(mod)); };
  add_mask("none", full());
  add_mask("causal", causal());
  add_mask("window 4", sliding_window(4));
  add_mask("window 5", sliding_window(5));
  add_mask("window 4, 1", sliding_window(4, 1));
  add_mask("lengths", key_lengths({30, 29}));
  add_mask("lengths exchanged", key_lengths({29, 30}));
  add_mask("keep", keep(odd));
  add_mask("drop", drop(odd));
  add_score("bias", bias(slope));
  add_score("softcap 1", softcap(1));
  add_score("softcap 2", softcap(2));
  add_score("alibi", alibi({0.1, 0.2}));
  add_score("alibi exchanged", alibi({0.2, 0.1}));
  add_mask("prefix", prefix_lm({15, 15}));
  add_mask("prefix, one longer", prefix_lm({15, 20}));
  add_mask("query lengths", query_lengths({20, 19}));
  add_mask("documents", documents_at({0, 10, 20, 30}));
  add_mask("documents, other cut", documents_at({0, 10, 21, 30}));
  add_mask("strided", strided_sparse(4));
  add_mask("fixed", fixed_sparse(4, 1));
  add_mask("fixed, longer summary", fixed_sparse(4, 2));
  add_mask("dilated", dilated(4, 2));
  add_mask("dilated, both sides", dilated(4, 2, 4));
  add_mask("global", global_tokens({0, 12}));
  add_mask("window or global", any_of(sliding_window(4), global_tokens({0, 12})));
  add_mask("tree", tree(std::vector<Index>(20, -1)));
  add_mask("not causal", not_(causal()));
  add_mask("causal, far", all_of(causal(), not_(sliding_window(4))));
  add_score("temperature", temperature({1, 2}));
  add_score("temperature exchanged", temperature({2, 1}));
  Tensor<float, 2> by_distance({1, 32});
  for (Index i = 0; i < 32; ++i) by_distance(0, i) = 0.2f * static_cast<float>(i);
  add("sinks", sinks({0, 1}));
  add("sinks exchanged", sinks({1, 0}));
  add_score("T5", relative_bias(by_distance, T5Buckets(32, 16)));
  add_score("T5, one direction", relative_bias(by_distance, T5Buckets(32, 20, false)));
  add("bias, cap", erased_score(bias(slope)) | erased_score(softcap(1)));
  add("cap, bias", erased_score(softcap(1)) | erased_score(bias(slope)));
  add("causal, lengths", erased_mask(causal()) | erased_mask(key_lengths({30, 29})));
  for (std::size_t i = 0; i < results.size(); ++i)
    for (std::size_t j = 0; j < i; ++j)
      for (const auto* r : {&results, &by_definition}) {
        Real difference = 0;
        for (std::size_t e = 0; e < (*r)[i].second.out.size(); ++e)
          difference = std::max<Real>(difference, std::abs((*r)[i].second.out[e] - (*r)[j].second.out[e]));
        EXPECT_GT(difference, 1e-3) << (*r)[i].first << " gives the same result as " << (*r)[j].first;
      }
}

}  // namespace
}  // namespace attn::test
