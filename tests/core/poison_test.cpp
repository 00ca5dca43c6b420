// NaN and inf in a dropped key or value do not affect queries that drop it, even where other queries keep its tile; in
// a kept key or value they do reach the result.
#include "support/any_rows.h"
#include "support/mod_table.h"
#include "support/paths.h"
#include "support/sample.h"

namespace attn::test {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();

/// The pairs that a row of the table drops, by its meaning: those that are masked or have a score of -inf. It is
/// evaluated for a score of 0, in place of any finite score.
class Dropped {
 public:
  Dropped(const Sizes& s, const Numbers& numbers, const Meaning& meaning)
      : sizes_(s), first_(numbers.first_position(s)), meaning_(meaning) {}

  bool operator()(Index b, Index h, Index i, Index j) const {
    const Pair p{b, h, i, first_ + i, j};
    return (meaning_.keep && !meaning_.keep(p)) || (meaning_.score && meaning_.score(0, p) == -kInf);
  }

 private:
  Sizes sizes_;
  Index first_;
  Meaning meaning_;
};

struct Poison {
  std::vector<Index> keys;  ///< in every batch element and head
  double what;
  bool in_keys, in_values;

  Inputs applied(Inputs in) const {
    const Sizes& s = in.sizes;
    for (Index part = 0; part < s.batch * s.kv_heads; ++part)
      for (Index j : keys) {
        const Index row = part * s.kv_len + j;
        if (in_keys) std::fill_n(in.k.begin() + row * s.head_dim, s.head_dim, what);
        if (in_values) std::fill_n(in.v.begin() + row * s.v_dim, s.v_dim, what);
      }
    return in;
  }
};

template <class T>
Real row_error(const Truth& truth, const Computed<T>& got, Index row, Index v_dim) {
  const auto part = [&](const auto& x) { return std::vector(x.begin() + row * v_dim, x.begin() + (row + 1) * v_dim); };
  return largest_error(part(truth.out), part(got.out));
}

template <class T>
void expect_contained(const Inputs& clean, const Poison& poison, const Numbers& numbers, const AnyRow<T>& row) {
  if (::testing::Test::HasFailure()) return;
  const Sizes& s = clean.sizes;
  std::ostringstream text;
  text << row.name << ", " << s << ", " << poison.what << " in" << (poison.in_keys ? " keys" : "")
       << (poison.in_values ? " values" : "");
  for (Index j : poison.keys) text << " " << j;
  SCOPED_TRACE(text.str());

  const Truth truth = oracle(clean, row.meaning, numbers);
  const Dropped dropped(s, numbers, row.meaning);
  Arguments<T> a(poison.applied(clean));
  const Real lse_allowed = 16 * Errors<T>::kEps * (1 + truth.largest_score + truth.dot_condition),
             allowed = (lse_allowed + 2 * Errors<T>::kNarrowEps) * truth.largest_value;
  std::vector<std::pair<std::string, Computed<T>>> paths{{"naive", naive(a, row.mod, options_of(numbers))}};
  for (Isa isa : sets_for<T>()) {
    Options options = options_of(numbers);
    options.isa = isa;
    paths.emplace_back(to_string(isa), flash(a, row.mod, options));
  }
  for (const auto& [path, got] : paths) {
    Index index = 0;
    for (Index b = 0; b < s.batch; ++b)
      for (Index h = 0; h < s.heads; ++h)
        for (Index i = 0; i < s.q_len; ++i, ++index) {
          bool safe = true, reached = false;
          for (Index j : poison.keys) {
            safe = safe && dropped(b, h, i, j);
            reached = reached || !dropped(b, h, i, j);
          }
          const auto at = static_cast<std::size_t>(index);
          if (safe) {
            ASSERT_LE(row_error(truth, got, index, s.v_dim), allowed) << path << " leaks into row " << i;
            ASSERT_TRUE(truth.lse[at] == got.lse[at] ||
                        std::abs(truth.lse[at] - Real(got.lse[at])) < lse_allowed + lse_error<T>(Isa::amx))
                << path << " leaks into lse of row " << i;
          } else if (reached && std::isnan(poison.what)) {
            for (Index e = 0; e < s.v_dim; ++e)
              ASSERT_TRUE(
                  std::isnan(Real(got.out[at * static_cast<std::size_t>(s.v_dim) + static_cast<std::size_t>(e)])))
                  << path << " does not propagate the NaN to row " << i;
            ASSERT_TRUE(!poison.in_keys || std::isnan(got.lse[at]))
                << path << " does not propagate the NaN to the lse of row " << i;
          } else if (reached && !poison.in_keys) {
            ASSERT_FALSE(std::isfinite(Real(got.out[at * static_cast<std::size_t>(s.v_dim)])))
                << path << " does not propagate inf to row " << i;
          }
        }
  }
}

template <class T>
void poison_some_keys() {
  Random random(1);
  Sample sample;
  SCOPED_TRACE("a sample" + sample.text());
  for (const Sizes& s : {Sizes{1, 1, 1, 7, 9, 3, 2}, Sizes{2, 2, 1, 35, 70, 16, 8}, Sizes{1, 2, 2, 50, 130, 8, 17},
                         Sizes{1, 1, 1, 1, 66, 64, 64}, Sizes{1, 1, 1, 70, 40, 5, 65}, Sizes{1, 3, 1, 1, 4200, 32, 32}})
    for (double what : {kNaN, kInf, -kInf})
      for (int where = 1; where < 4; ++where) {
        Inputs clean(s, random);
        clean.round_to<T>();
        const Numbers numbers{{}, random.chance(0.5) ? std::optional<Index>() : random.integer(0, s.kv_len)};
        Poison poison{{}, what, (where & 1) != 0, (where & 2) != 0};
        for (Index n = random.integer(1, 3); n > 0; --n) poison.keys.push_back(random.integer(0, s.kv_len - 1));
        for (const AnyRow<T>& row : one_row_per_mod<T>({s, numbers, random}))
          if (sample.takes_next()) expect_contained<T>(clean, poison, numbers, row);
      }
}

TEST(Poison, AffectsOnlyQueriesThatKeepItFloat) { poison_some_keys<float>(); }
TEST(Poison, AffectsOnlyQueriesThatKeepItBfloat16) { poison_some_keys<Eigen::bfloat16>(); }

template <class T>
void poison_every_key_in_turn() {
  // Includes tiles in which a mask begins or ends, and tiles in which only the poisoned key is dropped.
  Random random(2);
  const Sizes s{1, 1, 1, 20, 67, 4, 3};
  Inputs clean(s, random);
  clean.round_to<T>();
  for (Index key = 0; key < s.kv_len; ++key)
    for (const bool in_keys : {false, true}) {
      const Poison poison{{key}, kNaN, in_keys, !in_keys};
      expect_contained<T>(clean, poison, {}, mask("causal", causal(), [](const Pair& p) { return p.kv <= p.q; })[0]);
      const auto all_but_one = mask_mod([key](const Position& p) { return p.kv != key || p.q % 2 == 0; });
      expect_contained<T>(clean, poison, {}, mask("all but one", all_but_one, [key](const Pair& p) {
                            return p.kv != key || p.q % 2 == 0;
                          })[0]);
      const auto scored = lambda_distance() | causal();
      expect_contained<T>(
          clean, poison, {},
          Row<std::remove_const_t<decltype(scored)>>{
              "scored causal", scored, {[](const Pair& p) { return p.kv <= p.q; }, lambda_distance_by_hand}});
    }
}

TEST(Poison, EveryKeyInTurnFloat) { poison_every_key_in_turn<float>(); }
TEST(Poison, EveryKeyInTurnDouble) { poison_every_key_in_turn<double>(); }
TEST(Poison, EveryKeyInTurnHalf) { poison_every_key_in_turn<Eigen::half>(); }
TEST(Poison, EveryKeyInTurnBfloat16) { poison_every_key_in_turn<Eigen::bfloat16>(); }
TEST(Poison, EveryKeyInTurnLongDouble) { poison_every_key_in_turn<long double>(); }

TEST(Poison, OfAQueryStaysInItsRow) {
  Random random(3);
  const Sizes s{1, 1, 1, 50, 60, 8, 4};
  const Inputs clean(s, random);
  for (Index row : {0, 17, 49}) {
    Inputs in = clean;
    in.q[static_cast<std::size_t>(row * 8 + 3)] = kNaN;
    Arguments<float> a(in), b(clean);
    for (const bool use_flash : {true, false}) {
      const auto got = use_flash ? flash(a, causal()) : naive(a, causal());
      const auto want = use_flash ? flash(b, causal()) : naive(b, causal());
      for (Index i = 0; i < 50; ++i) {
        const auto at = static_cast<std::size_t>(i);
        const bool poisoned = std::isnan(got.out[at * 4]) && std::isnan(got.lse[at]);
        const bool untouched = got.out[at * 4 + 3] == want.out[at * 4 + 3] && got.lse[at] == want.lse[at];
        EXPECT_TRUE(i == row ? poisoned : untouched) << (use_flash ? "flash" : "naive") << ", row " << i;
      }
    }
  }
}

TEST(Poison, ANaNQueryThatKeepsNoKeyGivesZero) {
  Random random(4);
  Inputs in({1, 1, 1, 5, 3, 4, 2}, random);  // causal: rows 0 and 1 keep no key
  std::fill_n(in.q.begin(), 2 * 4, kNaN);
  Arguments<float> a(in);
  for (const auto& r : {flash(a, causal()), naive(a, causal())})
    for (std::size_t i = 0; i < 5; ++i) {
      EXPECT_EQ(r.lse[i] == -kInf, i < 2);
      EXPECT_EQ(r.out[2 * i] == 0, i < 2);
      EXPECT_TRUE(std::isfinite(r.out[2 * i + 1]));
    }
}

TEST(Poison, OneElementOfAValueReachesOneColumn) {
  Random random(5);
  const Sizes s{1, 1, 1, 40, 70, 8, 20};
  const Inputs clean(s, random);
  Inputs in = clean;
  in.v[35 * 20 + 7] = kNaN;
  Arguments<float> a(in);
  for (const auto& r : {flash(a, causal()), naive(a, causal())})
    for (std::size_t i = 0; i < 40; ++i)
      for (std::size_t e = 0; e < 20; ++e)
        EXPECT_EQ(std::isnan(r.out[i * 20 + e]), e == 7 && i + 30 >= 35) << i << " " << e;
}

TEST(Poison, OfAKeptPairPropagatesEvenIfItsWeightRoundsToZero) {
  // 0 * NaN is NaN: the pair is kept, however small its weight.
  for (const Index n : {2, 40, 100})
    for (const Index bad : {Index(0), n - 1}) {
      Eigen::MatrixXf q = Eigen::MatrixXf::Constant(3, 1, 1), k = Eigen::MatrixXf::Zero(n, 1),
                      v = Eigen::MatrixXf::Ones(n, 1);
      k(bad, 0) = -1e4f;
      v(bad, 0) = static_cast<float>(kNaN);
      EXPECT_TRUE(std::isnan(attention(q, k, v).out(1, 0))) << n << " " << bad;
      EXPECT_TRUE(std::isnan(naive_attention(q, k, v).out(1, 0))) << n << " " << bad;
      EXPECT_TRUE(std::isnan(attention(q, k, v, lambda_distance()).out(1, 0))) << n << " " << bad;
    }
}

}  // namespace
}  // namespace attn::test
