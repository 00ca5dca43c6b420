// Gradients of a part of the keys (Options::kv_offset): by itself, and of the output of all keys, which is how gradients
// are computed where keys are on several machines.
#include <gtest/gtest.h>

#include "attn/attn.h"
#include "support/erased_rows.h"
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

  /// Each part is a call of its own.
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

  /// The gradients of the parts, each from the output and the log-sum-exps of all, add up to those of the whole.
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
    return {.q_offset = numbers.first_position(sizes), .kv_offset = part.begin, .executor = threads(2), .isa = isa};
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

TEST(KvOffsetBackward, EveryModSeesAPartAsAMaskOfIt) {
  Random random(1);
  for (const Index q_len : {3, 60}) {
    GradientParts<float> c({2, 4, 2, q_len, 150, 8, 5}, std::nullopt, random);
    const Index cut = random.integer(1, 149);
    each_erased_row<float, true>({c.sizes, c.numbers, random}, [&](const auto& row) {
      c.check_alone(row, {0, cut});
      c.check_alone(row, {cut, 150});
    });
  }
}

TEST(KvOffsetBackward, PartsAddUp) {
  Random random(2);
  for (const Index q_len : {3, 60}) {
    GradientParts<float> c({2, 4, 2, q_len, 150, 8, 5}, random.integer(-10, 120), random);
    const Index cut = random.integer(1, 100);
    each_erased_row<float, true>({c.sizes, c.numbers, random}, [&](const auto& row) {
      c.check_sum(row, {0, cut, cut + 7, cut + 7, 150});
    });
  }
}

}  // namespace
}  // namespace attn::test
