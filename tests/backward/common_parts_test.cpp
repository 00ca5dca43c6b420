// Gradients and weights where all keys or all values have a common part, which must not show in gradients, and where
// scores are large, for one query as for many. The passes differ in their kernels there: see BackwardLoop::sum_rows(),
// and TileState::excess for keys in parts, whose sums a backward pass does not know.
#include <gtest/gtest.h>

#include "attn/attn.h"
#include "support/paths.h"

namespace attn::test {
namespace {

template <class T>
Tensor<T, 4> numbers(const Shape<4>& shape, int seed, double common, double size = 1) {
  Random random(static_cast<std::uint64_t>(seed));
  Tensor<T, 4> t(shape);
  for (Index i = 0; i < t.size(); ++i)
    t.data()[i] = static_cast<T>(static_cast<float>(size * random.uniform(-1.7, 1.7) + common));
  return t;
}
template <class T>
Tensor<double, 4> in_double(const Tensor<T, 4>& t) {
  Tensor<double, 4> to(t.shape());
  for (Index i = 0; i < t.size(); ++i) to.data()[i] = static_cast<double>(t.data()[i]);
  return to;
}
/// The largest error, relative to the largest number.
template <class A>
double error(const A& is, const Tensor<double, 4>& right) {
  double off = 0, largest = 0;
  for (Index i = 0; i < right.size(); ++i) {
    off = std::max(off, std::abs(static_cast<double>(is.data()[i]) - right.data()[i]));
    largest = std::max(largest, std::abs(right.data()[i]));
  }
  return off / largest;
}

template <class T>
struct Inputs {
  Inputs(Index queries, Index keys, double of_keys, double of_values, double size = 1)
      : q(numbers<T>({1, 4, queries, 32}, 1, 0, size)),
        k(numbers<T>({1, 2, keys, 32}, 2, of_keys)),
        v(numbers<T>({1, 2, keys, 24}, 3, of_values)),
        g(numbers<T>({1, 4, queries, 24}, 4, 0.5)),
        term(4 * size * size * (1 + of_keys) * (1 + of_values)) {}
  using Sum = std::conditional_t<sizeof(T) == 2, float, T>;

  /// The parts of the keys end at `ends`. Their results are accumulated in place, or merged. `later_mods` are `mods`
  /// without sinks, which only the first of the merged parts may have.
  template <class M, class Later>
  void expect_gradients_of_parts_as_exact_as_naive(const M& mods, const Later& later_mods,
                                                   const std::vector<Index>& ends) const {
    const auto right = naive_attention_backward(in_double(g), in_double(q), in_double(k), in_double(v), mods);
    const auto naive = naive_attention_backward(g, q, k, v, mods);
    for (const Isa isa : all_instruction_sets())
      for (const bool merges : {false, true}) {
        SCOPED_TRACE(::testing::Message() << to_string(isa) << (merges ? ", merged" : ", accumulated"));
        const auto each_part = [&](const auto& visit) {
          for (std::size_t i = 0; i < ends.size(); ++i) {
            const Index from = i == 0 ? 0 : ends[i - 1], end = ends[i];
            const Options options{.q_offset = k.dim(2) - q.dim(2), .kv_offset = from, .isa = isa};
            visit(from, k.slice(2, from, end), v.slice(2, from, end), options);
          }
        };
        Result<Tensor<Sum, 4>, Tensor<Sum, 3>> all{Tensor<Sum, 4>(g.shape()), Tensor<Sum, 3>({1, 4, q.dim(2)})};
        each_part([&](Index from, const auto& keys, const auto& values, Options options) {
          if (from == 0) return attention_into(all.out, all.lse, q, keys, values, mods, options);
          options.accumulate = !merges;
          if (!merges) return attention_into(all.out, all.lse, q, keys, values, mods, options);
          const auto part = attention(q, keys, values, later_mods, options);
          merge_into(all.out, all.lse, part.out, part.lse);
        });
        Tensor<Sum, 4> query(q.shape()), key(k.shape()), value(v.shape());
        each_part([&](Index from, const auto& keys, const auto& values, Options options) {
          options.accumulate = true;
          const Index end = from + keys.dim(2);
          attention_backward_into(query, key.slice(2, from, end), value.slice(2, from, end), g, q, keys, values,
                                  all.out, all.lse, mods, options);
        });
        const double few_units = this->few_units();
        EXPECT_LE(error(query, right.query), 2 * error(naive.query, right.query) + few_units);
        EXPECT_LE(error(key, right.key), 2 * error(naive.key, right.key) + few_units);
        EXPECT_LE(error(value, right.value), 2 * error(naive.value, right.value) + few_units);
      }
  }

  Tensor<T, 4> q, k, v, g;
  double term;  ///< size of the terms whose sum is the largest gradient, relative to that gradient

  template <class M>
  void expect_gradients_as_exact_as_naive(const M& mods) const {
    const auto right = naive_attention_backward(in_double(g), in_double(q), in_double(k), in_double(v), mods);
    const auto naive = naive_attention_backward(g, q, k, v, mods);
    const double few_units = this->few_units();
    for (const Isa isa : all_instruction_sets()) {
      SCOPED_TRACE(to_string(isa));
      const Options options{.isa = isa};
      const auto is = attention_backward(g, q, k, v, attention(q, k, v, mods, options), mods, options);
      EXPECT_LE(error(is.query, right.query), 2 * error(naive.query, right.query) + few_units);
      EXPECT_LE(error(is.key, right.key), 2 * error(naive.key, right.key) + few_units);
      EXPECT_LE(error(is.value, right.value), 2 * error(naive.value, right.value) + few_units);
    }
  }

 private:
  double few_units() const {
    return sizeof(T) == 2 ? 0x1p-8 : 4 * term * static_cast<double>(std::numeric_limits<T>::epsilon());
  }
};

template <class T>
class CommonParts : public ::testing::Test {};
using Scalars = ::testing::Types<float, double, Eigen::bfloat16, Eigen::half>;
TYPED_TEST_SUITE(CommonParts, Scalars);

TYPED_TEST(CommonParts, OfKeysAndValuesDoNotShowInGradients) {
  for (const Index queries : {1, 3, 7, 60, 100})
    for (const double of_keys : {0.0, 30.0})
      for (const double of_values : {0.0, 100.0}) {
        SCOPED_TRACE(::testing::Message() << queries << " queries, keys + " << of_keys << ", values + " << of_values);
        const Inputs<TypeParam> inputs(queries, 90, of_keys, of_values);
        inputs.expect_gradients_as_exact_as_naive(Mods<>());
        inputs.expect_gradients_as_exact_as_naive(causal() | softcap(20));
      }
}

TYPED_TEST(CommonParts, OfValuesDoNotShowInGradientsOfPartsOfTheKeys) {
  const auto some = sinks(std::vector<double>{1, 2, 4, 5});
  for (const Index queries : {3, 60, 100})
    for (const double of_values : {0.0, 10.0, 100.0}) {
      SCOPED_TRACE(::testing::Message() << queries << " queries, values + " << of_values);
      const Inputs<TypeParam> inputs(queries, 94, 0, of_values);
      for (const std::vector<Index>& ends : {std::vector<Index>{50, 94}, {32, 62, 94}}) {
        inputs.expect_gradients_of_parts_as_exact_as_naive(Mods<>(), Mods<>(), ends);
        inputs.expect_gradients_of_parts_as_exact_as_naive(causal() | softcap(20) | some, causal() | softcap(20), ends);
      }
    }
  // Maxima that rise after the first tile.
  Inputs<TypeParam>(60, 300, 0, 100, 8).expect_gradients_of_parts_as_exact_as_naive(Mods<>(), Mods<>(), {150, 300});
  // Longer than a stretch. The reference, which adds up as many values, is in double.
  if (std::is_same_v<TypeParam, double>) return;
  const Inputs<TypeParam> inputs(33, 9000, 0, 100);
  inputs.expect_gradients_of_parts_as_exact_as_naive(Mods<>(), Mods<>(), {4200, 9000});
  inputs.expect_gradients_of_parts_as_exact_as_naive(some, Mods<>(), {4200, 9000});
}

// A mask that groups tokens, whose groups may be few queries, and lists of keys.
TYPED_TEST(CommonParts, OfGroupsAndListsDoNotShowInGradients) {
  const Inputs<TypeParam> inputs(120, 120, 10, 10, 4);
  inputs.expect_gradients_as_exact_as_naive(strided_sparse(16));
  std::vector<Index> offsets(1), keys;
  for (Index i = 0; i < 120; ++i) {
    for (Index j = 0; j < 7; ++j) keys.push_back(std::min<Index>(i / 2 + 8 * j, 119));
    keys.erase(std::unique(keys.begin() + offsets.back(), keys.end()), keys.end());
    offsets.push_back(static_cast<Index>(keys.size()));
  }
  inputs.expect_gradients_as_exact_as_naive(select(offsets, keys));
}

// Numbers in keys and rows that the mask drops are finite here, so that no path needs to look for them.
TYPED_TEST(CommonParts, OfDroppedKeysAndRowsDoNotShowInGradients) {
  for (const double garbage : {1e2, 1e4, 3e4}) {
    SCOPED_TRACE(garbage);
    Inputs<TypeParam> inputs(70, 96, 0, 0);
    for (auto* t : {&inputs.k, &inputs.v})
      for (Index h = 0; h < t->dim(1); ++h)
        for (Index j = 80; j < 96; ++j)
          for (Index c = 0; c < t->dim(3); ++c) (*t)(0, h, j, c) = static_cast<TypeParam>(static_cast<float>(garbage));
    for (Index h = 0; h < 4; ++h)
      for (Index c = 0; c < 24; ++c) inputs.q(0, h, 3, c) = static_cast<TypeParam>(static_cast<float>(garbage));
    inputs.expect_gradients_as_exact_as_naive(key_lengths({80}) |
                                              mask_mod([](const auto& p) { return p.q - 26 != 3; }));
  }
}

TYPED_TEST(CommonParts, TheWeightOfASingleKeyIsOne) {
  for (const double size : {1.0, 10.0, 60.0})
    for (const Index queries : {1, 2, 5, 9}) {
      SCOPED_TRACE(::testing::Message() << queries << " queries, size " << size);
      const Inputs<TypeParam> inputs(queries, 1, 0, 0, size * size);
      const auto &q = inputs.q, &k = inputs.k, &v = inputs.v, &g = inputs.g;
      for (const Isa isa : all_instruction_sets()) {
        const Options options{.isa = isa};
        const auto r = attention(q, k, v, options);
        const auto mass = attention_mass(q, k, r.lse, options);
        for (Index h = 0; h < 4; ++h) EXPECT_EQ(mass(0, h, 0), queries) << to_string(isa);
        const auto grads = attention_backward(g, q, k, v, r, options);
        for (Index h = 0; h < 2; ++h)
          for (Index c = 0; c < 24; ++c) {
            double sum = 0;
            for (Index i = 0; i < queries; ++i)
              sum += static_cast<double>(g(0, 2 * h, i, c)) + static_cast<double>(g(0, 2 * h + 1, i, c));
            EXPECT_NEAR(static_cast<double>(grads.value(0, h, 0, c)), sum, sizeof(TypeParam) == 2 ? 0.13 : 1e-5)
                << to_string(isa);
          }
      }
    }
}

// Weights of some keys, given the log-sum-exps over more.
TYPED_TEST(CommonParts, WeightsOfAPartFollowTheGivenLse) {
  for (const Index queries : {1, 4, 60}) {
    const Inputs<TypeParam> inputs(queries, 100, 0, 0);
    const auto &q = inputs.q, &k = inputs.k, &v = inputs.v;
    for (const Isa isa : all_instruction_sets()) {
      SCOPED_TRACE(::testing::Message() << queries << " queries, " << to_string(isa));
      const Options options{.isa = isa};
      const auto r = attention(q, k, v, options);
      const auto whole = attention_mass(q, k, r.lse, options),
                 part = attention_mass(q, k.slice(2, 0, 80), r.lse, options);
      for (Index h = 0; h < 4; ++h)
        for (Index j = 0; j < 80; ++j)
          EXPECT_NEAR(static_cast<double>(part(0, h, j)), static_cast<double>(whole(0, h, j)),
                      (sizeof(TypeParam) == 2 ? 3e-4 : 1e-5) * static_cast<double>(whole(0, h, j)));
    }
  }
}

}  // namespace
}  // namespace attn::test
