// A call whose gradients are compared with the oracle on both backward paths and all instruction sets.
#pragma once

#include "attn/attn.h"
#include "support/erased_rows.h"
#include "support/executors.h"
#include "support/gradient_oracle.h"
#include "support/paths.h"

namespace attn::test {

/// Lengths just below and above the sizes of tiles and of the parts of keys and queries that become separate tasks.
constexpr Index kGradientLengths[] = {0, 1, 2, 5, 15, 17, 47, 49, 63, 65, 97, 130};
constexpr Index kGradientDims[] = {1, 3, 8, 16, 17, 33, 64, 65};

/// A call and the gradients of its results.
template <class T>
class GradientCase {
 public:
  GradientCase(const Sizes& s, Random& random)
      : sizes(s), inputs(s, random), grad_out_(random.values(s.batch * s.heads * s.q_len * s.v_dim)) {
    if (random.chance(0.4)) numbers.q_offset = random.integer(-5, s.kv_len + 5);
    if (random.chance(0.4)) numbers.scale = random.pick(std::vector{1.0, 0.25, -0.5, 0.0});
    if (random.chance(0.3)) grad_lse_ = random.values(s.batch * s.heads * s.q_len);
    inputs.round_to<T>();
    if constexpr (sizeof(T) == 2)
      for (double& x : grad_out_) x = static_cast<float>(static_cast<T>(static_cast<float>(x)));
    layouts_ = {random.pick(kOutputLayouts), random.pick(kOutputLayouts), random.pick(kOutputLayouts),
                random.pick(kOutputLayouts), random.pick(kOutputLayouts), random.pick(kOutputLayouts),
                random.pick(kOutputLayouts)};
  }

  Sizes sizes;
  Numbers numbers;
  Inputs inputs;

  template <class M>
  void check(const Row<M>& row) {
    if (::testing::Test::HasFailure()) return;  // one failing case is enough
    std::ostringstream text;
    text << row.name << ", " << sizes << (grad_lse_.empty() ? "" : ", with grad_lse");
    if (numbers.q_offset) text << ", q_offset " << *numbers.q_offset;
    if (numbers.scale) text << ", scale " << *numbers.scale;
    SCOPED_TRACE(text.str());
    if (numbers.sigmoid_bias && row.meaning.sink) return;  // refused
    const Truth forward = oracle(inputs, row.meaning, numbers);
    const GradientTruth truth = gradient_oracle(inputs, grad_out_, grad_lse_, row.meaning, numbers);
    Arguments<T> a(inputs, layouts_[0], layouts_[1], layouts_[2]);
    Strided<T> grad_out(layouts_[3], {sizes.batch, sizes.heads, sizes.q_len, sizes.v_dim}, grad_out_);
    if (numbers.sigmoid_bias) grad_lse_.clear();  // sigmoid weights have no lse
    Tensor<Wide<T>, 3> grad_lse({sizes.batch, sizes.heads, numbers.sigmoid_bias ? 0 : sizes.q_len});
    for (std::size_t i = 0; i < grad_lse_.size(); ++i) grad_lse.data()[i] = static_cast<Wide<T>>(grad_lse_[i]);
    const auto plain = [](const auto& t) { return std::vector<T>(t.data(), t.data() + t.size()); };

    const attn::Result into{grad_out.cview(), grad_lse.view()};
    const auto definition =
        attn::naive_attention_backward(into, a.q.cview(), a.k.cview(), a.v.cview(), row.mod, options_of(numbers));
    const ComputedGradients<T> naive{plain(definition.query), plain(definition.key), plain(definition.value)};
    expect_naive_gradients_close(truth, forward, naive, sizes);
    static int turn = 0;
    for (Isa isa : sets_for<T>()) {
      SCOPED_TRACE(to_string(isa));
      Options options = options_of(numbers);
      options.isa = isa;
      if (++turn % 2 == 0) options.executor = eager_threads(2);
      const auto r = attn::attention(a.q.cview(), a.k.cview(), a.v.cview(), row.mod, options);
      Strided<T> query(layouts_[4], shape(sizes.heads, sizes.q_len, sizes.head_dim)),
          key(layouts_[5], shape(sizes.kv_heads, sizes.kv_len, sizes.head_dim)),
          value(layouts_[6], shape(sizes.kv_heads, sizes.kv_len, sizes.v_dim));
      attn::attention_backward_into(query.view(), key.view(), value.view(), into, a.q.cview(), a.k.cview(), a.v.cview(),
                                    r.out, r.lse, row.mod, options);
      EXPECT_TRUE(query.gaps_untouched() && key.gaps_untouched() && value.gaps_untouched());
      expect_gradients_close(truth, forward, naive, {query.read(), key.read(), value.read()});
      if (std::is_same_v<T, long double>) break;  // all instruction sets share one kernel
    }
  }

  /// Adds a constant to keys or values, or to their first features. It cancels in the gradients of softmax attention.
  void add_in_common(std::vector<double>& to, Index dim, Index features, double number) {
    for (std::size_t i = 0; i < to.size(); ++i)
      if (static_cast<Index>(i) % dim < features) to[i] = static_cast<float>(to[i] + number);
    inputs.round_to<T>();
  }

  /// Compares the gradients of a result of attention() with the naive ones; see expect_gradients_as_exact().
  template <class M>
  void check_as_exact(const Row<M>& row) {
    SCOPED_TRACE(::testing::Message() << row.name << ", " << sizes);
    const GradientTruth truth = gradient_oracle(inputs, grad_out_, {}, row.meaning, numbers);
    Arguments<T> a(inputs, layouts_[0], layouts_[1], layouts_[2]);
    Strided<T> grad_out(layouts_[3], {sizes.batch, sizes.heads, sizes.q_len, sizes.v_dim}, grad_out_);
    const auto q = a.q.cview(), k = a.k.cview(), v = a.v.cview(), into = grad_out.cview();
    const auto computed = [](const auto& g) {
      const auto plain = [](const auto& t) { return std::vector<T>(t.data(), t.data() + t.size()); };
      return ComputedGradients<T>{plain(g.query), plain(g.key), plain(g.value)};
    };
    const auto naive = computed(attn::naive_attention_backward(into, q, k, v, row.mod, options_of(numbers)));
    for (Isa isa : sets_for<T>()) {
      SCOPED_TRACE(to_string(isa));
      Options options = options_of(numbers);
      options.isa = isa;
      const auto r = attn::attention(q, k, v, row.mod, options);
      expect_gradients_as_exact(truth, naive, computed(attn::attention_backward(into, q, k, v, r, row.mod, options)));
      if (std::is_same_v<T, long double>) break;  // all instruction sets share one kernel
    }
  }

 private:
  std::array<Index, 4> shape(Index heads, Index len, Index dim) const { return {sizes.batch, heads, len, dim}; }

  std::vector<double> grad_out_, grad_lse_;
  std::array<Layout, 7> layouts_;
};

}  // namespace attn::test
