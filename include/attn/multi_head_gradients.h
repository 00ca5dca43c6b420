// The result of the backward pass of a MultiHeadAttention.
#pragma once

#include "attn/layers/multi_head_inputs.h"

namespace attn {

/// The result of MultiHeadAttention::backward(): the gradients of its inputs, each with the shape and storage order of
/// its input.
template <class Query, class Key, class Value>
struct MultiHeadGradients {
  Query query;  ///< shaped like the query
  Key key;      ///< shaped like the key
  Value value;  ///< shaped like the value

  /// query + key + value: the gradient of x in mha(x, x, x), which PyTorch leaves in x.grad.
  /// @throws std::invalid_argument if their shapes differ, because then they belong to different inputs.
  Query all() const { return sum(sum(query, key), value); }
  /// key + value: the gradient of m in mha(x, m, m).
  /// @throws std::invalid_argument if their shapes differ.
  Key key_and_value() const { return sum(key, value); }

 private:
  template <class A, class B>
  static A sum(const A& a, const B& b) {
    A result = a;
    const auto to = detail::as_rank3(view(result));
    const auto by = detail::as_rank3(view(b));
    detail::require(to.shape() == by.shape(), "gradients of shapes ", to.shape(), " and ", by.shape(),
                    " belong to different inputs and cannot be added");
    using Scalar = typename detail::Traits<A>::Scalar;
    const auto add = [](Scalar& x, Scalar y) {
      using Number = detail::computed_t<Scalar>;
      x = static_cast<Scalar>(static_cast<Number>(x) + static_cast<Number>(y));
    };
    if (to.is_contiguous() && by.is_contiguous()) {  // true of all but column-major matrices
      for (Index i = 0; i < to.size(); ++i) add(to.data()[i], by.data()[i]);
      return result;
    }
    for (Index i = 0; i < to.dim(0); ++i)
      for (Index j = 0; j < to.dim(1); ++j)
        for (Index k = 0; k < to.dim(2); ++k) add(to(i, j, k), by(i, j, k));
    return result;
  }
};

}  // namespace attn
