// Gradients of a part of the keys (Options::kv_offset), for the output of that part alone and for the output of all
// keys, as computed when keys are distributed over machines.
#include <gtest/gtest.h>

#include "attn/attn.h"
#include "support/erased_rows.h"
#include "support/executors.h"
#include "support/gradient_oracle.h"
#include "support/key_parts.h"
#include "support/paths.h"

namespace attn::test {
namespace {

template <class T>
class GradientParts {
 public:
  GradientParts(const Sizes& s, std::optional<Index> q_offset, Random& random)
      : sizes(s),
        numbers{.scale = std::nullopt, .q_offset = q_offset},
        inputs_(s, random),
        grad_out_numbers_(random.values(s.batch * s.heads * s.q_len * s.v_dim)),
        arguments_(inputs_),
        grad_out_(Layout::bhsd, {s.batch, s.heads, s.q_len, s.v_dim}, grad_out_numbers_) {}

  const Sizes sizes;
  const Numbers numbers;

  /// Checks the gradients of a call on this part alone.
  template <class M>
  void check_alone(const Row<M>& row, Range part) {
    if (::testing::Test::HasFailure() || needs_all_keys(row.name, numbers)) return;
    SCOPED_TRACE(text_of_part(row.name, sizes, part, numbers));
    const Meaning meaning = of_part(row.meaning, part);
    const Truth forward = oracle(inputs_, meaning, numbers);
    const GradientTruth truth = gradient_oracle(inputs_, grad_out_numbers_, {}, meaning, numbers);
    const auto naive = naive_attention_backward(grad_out_.cview(), q(), k(part), v(part), row.mod, options(part));
    auto by_definition = begun();
    add(by_definition, naive, part);
    expect_naive_gradients_close(truth, forward, by_definition, sizes);
    for (const Isa isa : instruction_sets()) {
      SCOPED_TRACE(to_string(isa));
      const auto r = attention(q(), k(part), v(part), row.mod, options(part, isa));
      auto got = begun();
      add(got, attention_backward(grad_out_.cview(), q(), k(part), v(part), r, row.mod, options(part, isa)), part);
      expect_gradients_close(truth, forward, by_definition, got);
    }
  }

  /// The gradients of the parts, each from the output and the log-sum-exps of all keys, sum to those of the whole.
  template <class M>
  void check_sum(const Row<M>& row, const std::vector<Index>& cuts) {
    if (::testing::Test::HasFailure() || needs_all_keys(row.name, numbers)) return;
    SCOPED_TRACE(text_of_part(row.name, sizes, {0, sizes.kv_len}, numbers));
    const Truth forward = oracle(inputs_, row.meaning, numbers);
    const GradientTruth truth = gradient_oracle(inputs_, grad_out_numbers_, {}, row.meaning, numbers);
    const Range all{0, sizes.kv_len};
    auto by_definition = begun();
    add(by_definition, naive_attention_backward(grad_out_.cview(), q(), k(all), v(all), row.mod, options(all)), all);
    for (const Isa isa : instruction_sets()) {
      SCOPED_TRACE(to_string(isa));
      const auto whole = attention(q(), k(all), v(all), row.mod, options(all, isa));
      auto got = begun();
      for (std::size_t i = 1; i < cuts.size(); ++i) {
        const Range part{cuts[i - 1], cuts[i]};
        add(got, attention_backward(grad_out_.cview(), q(), k(part), v(part), whole, row.mod, options(part, isa)),
            part);
      }
      expect_gradients_close(truth, forward, by_definition, got);
    }
  }

 private:
  auto q() { return arguments_.q.cview(); }
  auto k(Range part) { return rows_of(arguments_.k.cview(), part); }
  auto v(Range part) { return rows_of(arguments_.v.cview(), part); }
  Options options(Range part, std::optional<Isa> isa = {}) const {
    return {
        .q_offset = numbers.first_position(sizes), .kv_offset = part.begin, .executor = eager_threads(2), .isa = isa};
  }

  ComputedGradients<T> begun() const {
    const auto zeros = [&](Index heads, Index len, Index dim) {
      return std::vector<T>(static_cast<std::size_t>(sizes.batch * heads * len * dim));
    };
    return {zeros(sizes.heads, sizes.q_len, sizes.head_dim), zeros(sizes.kv_heads, sizes.kv_len, sizes.head_dim),
            zeros(sizes.kv_heads, sizes.kv_len, sizes.v_dim)};
  }
  template <class G>
  void add(ComputedGradients<T>& sum, const G& of_part, Range part) const {
    const auto rows = [&](std::vector<T>& to, const Tensor<T, 4>& from, Index len, Index first) {
      TensorView<T, 4> all(to.data(), {from.dim(0), from.dim(1), len, from.dim(3)});
      for (Index b = 0; b < from.dim(0); ++b)
        for (Index h = 0; h < from.dim(1); ++h) all.matrix(b, h).middleRows(first, from.dim(2)) += from.matrix(b, h);
    };
    rows(sum.query, of_part.query, sizes.q_len, 0);
    rows(sum.key, of_part.key, sizes.kv_len, part.begin);
    rows(sum.value, of_part.value, sizes.kv_len, part.begin);
  }

  const Inputs inputs_;
  const std::vector<double> grad_out_numbers_;
  Arguments<T> arguments_;
  Strided<T> grad_out_;
};

TEST(KvOffsetBackward, PartsMatchMasksForEveryMod) {
  Random random(1);
  for (const Index q_len : {3, 60}) {
    GradientParts<float> c({2, 4, 2, q_len, 150, 8, 5}, std::nullopt, random);
    const Index cut = random.integer(1, 149);
    each_erased_row({c.sizes, c.numbers, random}, [&](const auto& row) {
      c.check_alone(row, {0, cut});
      c.check_alone(row, {cut, 150});
    });
  }
}

TEST(KvOffsetBackward, PartsSumToTheWhole) {
  Random random(2);
  for (const Index q_len : {3, 60}) {
    GradientParts<float> c({2, 4, 2, q_len, 150, 8, 5}, random.integer(-10, 120), random);
    const Index cut = random.integer(1, 100);
    each_erased_row({c.sizes, c.numbers, random}, [&](const auto& row) {
      c.check_sum(row, {0, cut, cut + 7, cut + 7, 150});
    });
  }
}

template <class T>
class KvOffsetBackwardTyped : public ::testing::Test {};
using GradientScalars = ::testing::Types<float, double, Eigen::bfloat16>;
TYPED_TEST_SUITE(KvOffsetBackwardTyped, GradientScalars);

// With `accumulate`, gradients are added to the caller's tensors in any memory layout.
TYPED_TEST(KvOffsetBackwardTyped, AccumulateAddsToExistingGradients) {
  using T = TypeParam;
  Random random(3);
  for (const auto& [q_len, kv_len] : {std::pair<Index, Index>{20, 70}, {300, 600}}) {  // one task, and several
    const auto q = drawn<T>({2, 4, q_len, 24}, random), k = drawn<T>({2, 2, kv_len, 24}, random),
               v = drawn<T>({2, 2, kv_len, 17}, random), grad_out = drawn<T>({2, 4, q_len, 17}, random);
    const auto mods = causal() | softcap(20);
    for (const Isa isa : sets_for<T>()) {
      const Options options{.isa = isa};
      const auto r = attention(q, k, v, mods, options);
      const auto own = attention_backward(grad_out, q, k, v, r, mods, options);
      Options adding = options;
      adding.accumulate = true;
      std::vector<std::byte> memory(backward_workspace_bytes(q, k, v, mods, adding));
      adding.workspace = memory;
      for (const Layout layout : kOutputLayouts) {
        std::vector<double> stood_q, stood_k, stood_v;
        const auto begun = [&](std::vector<double>& stood, const Tensor<T, 4>& like) {
          const auto numbers = drawn<T>(like.shape(), random);
          for (Index i = 0; i < numbers.size(); ++i)
            stood.push_back(static_cast<double>(static_cast<float>(numbers.data()[i])));
          return Strided<T>(layout, like.shape(), stood);
        };
        Strided<T> grad_q = begun(stood_q, q), grad_k = begun(stood_k, k), grad_v = begun(stood_v, v);
        attention_backward_into(grad_q.view(), grad_k.view(), grad_v.view(), grad_out, q, k, v, r.out, r.lse, mods,
                                adding);
        const auto expect_sum = [&](Strided<T>& got, const std::vector<double>& stood, const Tensor<T, 4>& added) {
          EXPECT_TRUE(got.gaps_untouched());
          const std::vector<T> numbers = got.read();
          const double eps = static_cast<double>(epsilon<T>());
          for (std::size_t i = 0; i < stood.size(); ++i) {
            const double plus = static_cast<double>(added.data()[i]);
            ASSERT_NEAR(static_cast<double>(numbers[i]), stood[i] + plus,
                        2 * eps * (1 + std::abs(stood[i]) + std::abs(plus)));
          }
        };
        expect_sum(grad_q, stood_q, own.query);
        expect_sum(grad_k, stood_k, own.key);
        expect_sum(grad_v, stood_v, own.value);
      }
    }
  }
}

// Gradients of a query that keeps no key of a part, and of a key that no query keeps, stay the same bit for bit. Covers
// whole tiles of queries and partial ones.
TYPED_TEST(KvOffsetBackwardTyped, RowsWithoutKeptPairsAreUnchanged) {
  using T = TypeParam;
  Random random(5);
  for (const auto& [q_len, kv_len] : {std::pair<Index, Index>{3, 70}, {150, 130}, {300, 600}}) {
    const auto q = drawn<T>({1, 2, q_len, 24}, random), k = drawn<T>({1, 2, kv_len, 24}, random),
               v = drawn<T>({1, 2, kv_len, 17}, random), grad_out = drawn<T>({1, 2, q_len, 17}, random);
    const Index first = q_len / 2, last = kv_len / 2;  // the queries that keep keys, and the keys that are kept
    const auto mods = mask_mod([=](auto p) { return p.q >= first && p.kv < last; });
    for (const Isa isa : sets_for<T>()) {
      SCOPED_TRACE(::testing::Message() << to_string(isa) << ", " << q_len << " queries");
      Options options{.q_offset = 0, .isa = isa};
      const auto r = attention(q, k, v, mods, options);
      const auto stood_q = drawn<T>(q.shape(), random), stood_k = drawn<T>(k.shape(), random),
                 stood_v = drawn<T>(v.shape(), random);
      auto grad_q = stood_q, grad_k = stood_k, grad_v = stood_v;
      options.accumulate = true;
      attention_backward_into(grad_q, grad_k, grad_v, grad_out, q, k, v, r.out, r.lse, mods, options);
      const auto expect_stays = [&](const auto& got, const auto& stood, Index begin, Index end) {
        bool moved = false;
        for (Index h = 0; h < 2; ++h)
          for (Index i = 0; i < got.dim(2); ++i)
            for (Index c = 0; c < got.dim(3); ++c) {
              if (i >= begin && i < end)
                ASSERT_EQ(got(0, h, i, c), stood(0, h, i, c)) << i;
              else
                moved = moved || got(0, h, i, c) != stood(0, h, i, c);
            }
        EXPECT_TRUE(moved);
      };
      expect_stays(grad_q, stood_q, 0, first);
      expect_stays(grad_k, stood_k, last, kv_len);
      expect_stays(grad_v, stood_v, last, kv_len);
    }
  }
}

// Each part adds gradients of the mods' parameters for its own pairs. A sink is not a pair: its gradient is added by
// the first call, which may have no keys.
TEST(KvOffsetBackward, GradientsOfModParametersAreAddedOnce) {
  Random random(4);
  const auto q = drawn<double>({2, 4, 40, 8}, random), k = drawn<double>({2, 2, 90, 8}, random),
             v = drawn<double>({2, 2, 90, 5}, random), grad_out = drawn<double>({2, 4, 40, 5}, random);
  const auto table = drawn<double>({1, 4, 40, 90}, random), ratios = drawn<double>({1, 1, 1, 90}, random);
  struct Learned {
    Tensor<double, 4> table{{1, 4, 40, 90}}, ratios{{1, 1, 1, 90}};
    Tensor<double, 1> logits{{4}}, slopes{{4}};
  };
  const auto mods = [&](Learned& grads) {
    return causal() | bias(table, grads.table) | bias(ratios, grads.ratios) |
           alibi({0.1, 0.2, 0.3, 0.4}, grads.slopes) | sinks({0.5, 1, -1, 0}, grads.logits);
  };
  const auto expect_same = [](const auto& got, const auto& expected) {
    for (Index i = 0; i < got.size(); ++i) ASSERT_NEAR(got.data()[i], expected.data()[i], 1e-11) << i;
  };
  Learned whole, by_definition;
  const auto r = attention(q, k, v, mods(whole));
  const auto g = attention_backward(grad_out, q, k, v, r, mods(whole));
  naive_attention_backward(grad_out, q, k, v, mods(by_definition));
  expect_same(whole.logits, by_definition.logits);
  for (const bool begins_without_keys : {false, true}) {
    Learned grads;
    Tensor<double, 4> grad_q(q.shape()), grad_k(k.shape()), grad_v(v.shape());
    std::fill_n(grad_q.data(), grad_q.size(), 77.0);  // overwritten by the first call
    std::vector<Index> cuts{0, 33, 34, 90};
    if (begins_without_keys) cuts.insert(cuts.begin(), 0);
    for (std::size_t i = 1; i < cuts.size(); ++i) {
      const auto rows = [&](auto& t) { return t.view().slice(2, cuts[i - 1], cuts[i]); };
      const auto part_of_k = rows(k), part_of_v = rows(v);
      attention_backward_into(grad_q, rows(grad_k), rows(grad_v), grad_out, q, part_of_k, part_of_v, r.out, r.lse,
                              mods(grads), {.q_offset = 50, .kv_offset = cuts[i - 1], .accumulate = i > 1});
    }
    expect_same(grad_q, g.query);
    expect_same(grad_k, g.key);
    expect_same(grad_v, g.value);
    expect_same(grads.table, whole.table);
    expect_same(grads.ratios, whole.ratios);
    expect_same(grads.slopes, whole.slopes);
    expect_same(grads.logits, whole.logits);
  }
}

}  // namespace
}  // namespace attn::test
