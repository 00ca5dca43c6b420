// An additive attention call whose gradients are compared on both backward paths.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "attn/additive_backward.h"
#include "attn/mods.h"
#include "support/additive_model.h"
#include "support/paths.h"

namespace attn::test {

/// Gradients of an additive attention call, row-major.
template <class T>
struct AdditiveGradients {
  std::vector<T> query, key, value;
  std::vector<Wide<T>> query_weight, key_weight, score_weight, bias;

  template <class Grads>
  explicit AdditiveGradients(const Grads& g)
      : query(plain<T>(g.query)),
        key(plain<T>(g.key)),
        value(plain<T>(g.value)),
        query_weight(plain<Wide<T>>(g.query_weight)),
        key_weight(plain<Wide<T>>(g.key_weight)),
        score_weight(plain<Wide<T>>(g.score_weight)),
        bias(plain<Wide<T>>(g.bias)) {}

  template <class Visit>
  static void each(const Visit& visit) {
    visit(
        "query", [](auto& a) -> auto& { return a.query; });
    visit(
        "key", [](auto& a) -> auto& { return a.key; });
    visit(
        "value", [](auto& a) -> auto& { return a.value; });
    visit(
        "query_weight", [](auto& a) -> auto& { return a.query_weight; });
    visit(
        "key_weight", [](auto& a) -> auto& { return a.key_weight; });
    visit(
        "score_weight", [](auto& a) -> auto& { return a.score_weight; });
    visit(
        "bias", [](auto& a) -> auto& { return a.bias; });
  }

 private:
  template <class S>
  static std::vector<S> plain(const auto& t) {
    return t.size() == 0 ? std::vector<S>() : std::vector<S>(t.data(), t.data() + t.size());
  }
};

/// A call and the gradients of its results.
struct AdditiveCase {
  AdditiveModel model;
  Numbers numbers;
  std::vector<double> grad_out, grad_lse;

  AdditiveCase(const Sizes& s, Index key_dim, Index hidden, Random& random)
      : model(s, key_dim, hidden, random),
        grad_out(random.values(s.batch * s.heads * s.q_len * s.v_dim)),
        grad_lse(random.values(s.batch * s.heads * s.q_len)) {
    if (random.chance(0.4)) numbers.q_offset = random.integer(-3, s.kv_len + 3);
    if (random.chance(0.4)) numbers.scale = random.pick(std::vector{1.0, 0.25, -0.5, 0.0});
    if (random.chance(0.5)) std::fill(grad_lse.begin(), grad_lse.end(), 0.0);
  }

  /// The oracle's value of the loss that is differentiated.
  Real loss(const Meaning& meaning) const {
    const Truth t = model.truth(meaning, numbers);
    Real sum = 0;
    for (std::size_t i = 0; i < t.out.size(); ++i) sum += grad_out[i] * t.out[i];
    for (std::size_t i = 0; i < t.lse.size(); ++i)
      if (std::isfinite(t.lse[i])) sum += grad_lse[i] * t.lse[i];
    return sum;
  }

  template <class T>
  auto incoming() const {
    const Sizes& s = model.sizes;
    Tensor<T, 4> out({s.batch, s.heads, s.q_len, s.v_dim});
    Tensor<Wide<T>, 3> lse({s.batch, s.heads, s.q_len});
    for (std::size_t i = 0; i < grad_out.size(); ++i) out.data()[i] = static_cast<T>(grad_out[i]);
    for (std::size_t i = 0; i < grad_lse.size(); ++i) lse.data()[i] = static_cast<Wide<T>>(grad_lse[i]);
    return Result{std::move(out), std::move(lse)};
  }

  template <class T>
  AdditiveGradients<T> naive(const auto& mods) const {
    AdditiveArguments<T> a(model);
    return AdditiveGradients<T>(naive_additive_attention_backward(incoming<T>(), a.q.cview(), a.k.cview(), a.v.cview(),
                                                                  a.score(), mods, options_of(numbers)));
  }
  template <class T>
  AdditiveGradients<T> tiled(const auto& mods, Isa isa, const Executor& executor, Layout layout = Layout::bhsd) const {
    AdditiveArguments<T> a(model, layout, layout, layout);
    Options options = options_of(numbers);
    options.isa = isa;
    options.executor = executor;
    const auto q = a.q.cview(), k = a.k.cview(), v = a.v.cview();
    const auto r = additive_attention(q, k, v, a.score(), mods, options);
    return AdditiveGradients<T>(additive_attention_backward(incoming<T>(), q, k, v, a.score(), r, mods, options));
  }
};

}  // namespace attn::test
