// Linear maps for layers, forward and backward, on the kernels and threads of attention.
#pragma once

#include "attn/core/tensor/overlap.h"
#include "attn/layers/linear.h"
#include "attn/layers/multi_head_inputs.h"

namespace attn {

namespace detail {

/// The tokens of a matrix, or of a rank-3 tensor (batch, len, features), as the rows of one matrix.
template <class X>
auto token_rows(const char* name, X&& x) {
  const auto v = as_rank3(view(x));
  require(v.is_contiguous(), name, " of shape ", v.shape(), " has strides ", v.strides(), ", but must be contiguous");
  return v.reshape(v.dim(0) * v.dim(1), v.dim(2));
}

/// Returns the linear map y = x * weightᵀ after checking the sizes of `weight`, or of its gradient, against the sizes
/// of inputs and outputs.
template <class W, class X, class Y>
Linear<std::remove_const_t<X>> checked_linear(const TensorView<W, 2>& weight, const TensorView<X, 2>& x,
                                              const char* x_name, const TensorView<Y, 2>& y, const char* y_name) {
  using T = std::remove_const_t<X>;
  static_assert(std::is_same_v<T, std::remove_const_t<Y>> && is_scalar<T>,
                "attn: inputs and outputs of a linear map must have the same floating-point type");
  require(x.dim(1) == weight.dim(1) && y.dim(1) == weight.dim(0), "weight has shape ", weight.shape(),
          " as (outputs, inputs), but ", x_name, " has ", x.dim(1), " features, and ", y_name, " has ", y.dim(1));
  require(x.dim(0) == y.dim(0), "number of tokens differs: ", x_name, " has ", x.dim(0), ", ", y_name, " has ",
          y.dim(0));
  if constexpr (std::is_same_v<T, std::remove_const_t<W>>)
    return {weight.data(), nullptr, weight.dim(1), weight.dim(0)};
  else  // a 32-bit gradient
    return {nullptr, nullptr, weight.dim(1), weight.dim(0)};
}

/// `T`: the type of the outputs, or of the gradients.
template <class T, class Bias>
auto checked_bias(Bias&& bias, Index outputs) {
  const auto b = vector_of(bias, "bias");
  static_assert(std::is_same_v<typename decltype(b)::Scalar, std::remove_const_t<T>>,
                "attn: the bias of a linear map must have the scalar type of the weight; convert a copy, as in "
                "bias.cast<float>().eval()");
  require(b.dim(0) == outputs, "bias has ", b.dim(0), " elements, but there are ", outputs, " outputs");
  require(b.is_contiguous(), "bias has a stride of ", b.stride(0), ", but must be contiguous");
  return b;
}

}  // namespace detail

/// Applies a linear map, y = x * weightᵀ + bias, like PyTorch's nn.Linear: x (tokens, inputs), y (tokens, outputs),
/// weight (outputs, inputs), bias (outputs), which may be a row, a column or a std::vector. x and y may also be rank-3
/// tensors (batch, len, features). All are row-major without gaps and of one scalar type; 16-bit types are summed in
/// float. The attention kernels select the instruction set at run time, whereas Eigen's product uses that of the
/// compiler flags. Of the options, executor, isa, `compute` and row_invariant apply. Results are bit-identical for any
/// number of threads.
/// @throws std::invalid_argument if sizes disagree, rows have gaps, or y overlaps x, weight or bias: rows of y are
/// written while other rows of x are still to be read. The message gives the sizes.
template <class Y, class X, class W, class B>
requires(!std::same_as<B, Options>) void linear_into(Y&& y, const X& x, const W& weight, const B& bias,
                                                     const Options& options = {}) {
  const auto from = detail::token_rows("x", x);
  const auto to = detail::token_rows("y", y);
  const auto w = detail::token_rows("weight", weight);
  auto map = detail::checked_linear(w, from, "x", to, "y");
  const auto b = detail::checked_bias<typename decltype(w)::Scalar>(bias, map.outputs);
  detail::check_all_apart({{"y", to}}, {{"x", from}, {"weight", w}, {"bias", b}});
  map.bias = b.data();
  map(from.data(), to.data(), from.dim(0), options);
}
/// As above, without a bias.
template <class Y, class X, class W>
void linear_into(Y&& y, const X& x, const W& weight, const Options& options = {}) {
  const auto from = detail::token_rows("x", x);
  const auto to = detail::token_rows("y", y);
  const auto w = detail::token_rows("weight", weight);
  const auto map = detail::checked_linear(w, from, "x", to, "y");
  detail::check_all_apart({{"y", to}}, {{"x", from}, {"weight", w}});
  map(from.data(), to.data(), from.dim(0), options);
}

/// Computes the gradient with respect to x: grad_x = grad_y * weight.
/// @throws as linear_into().
template <class X, class Y, class W>
void linear_gradient_into(X&& grad_x, const Y& grad_y, const W& weight, const Options& options = {}) {
  const auto from = detail::token_rows("grad_y", grad_y);
  const auto to = detail::token_rows("grad_x", grad_x);
  const auto w = detail::token_rows("weight", weight);
  const auto map = detail::checked_linear(w, to, "grad_x", from, "grad_y");
  detail::check_all_apart({{"grad_x", to}}, {{"grad_y", from}, {"weight", w}});
  detail::input_gradient(map, from.data(), to.data(), from.dim(0), options);
}

/// Adds the gradients of the parameters: grad_weight += grad_yᵀ * x, grad_bias += the sum of the rows of grad_y. Both
/// gradients are float if x is 16-bit. A token whose grad_y is 0 adds nothing, even if its x is not finite.
/// @throws as linear_into().
template <class GW, class GB, class X, class Y>
requires(!std::same_as<Y, Options>) void add_linear_gradients(GW&& grad_weight, GB&& grad_bias, const X& x,
                                                              const Y& grad_y, const Options& options = {}) {
  const auto in = detail::token_rows("x", x);
  const auto out = detail::token_rows("grad_y", grad_y);
  const auto w = detail::token_rows("grad_weight", grad_weight);
  const auto map = detail::checked_linear(w, in, "x", out, "grad_y");
  const auto b = detail::checked_bias<typename decltype(w)::Scalar>(grad_bias, map.outputs);
  detail::check_all_apart({{"grad_weight", w}, {"grad_bias", b}}, {{"x", in}, {"grad_y", out}});
  detail::LinearGradients<typename detail::Traits<X>::Scalar>{w.data(), b.data(), map.inputs, map.outputs}.add(
      in.data(), out.data(), in.dim(0), options);
}
/// As above, without a bias.
template <class GW, class X, class Y>
void add_linear_gradients(GW&& grad_weight, const X& x, const Y& grad_y, const Options& options = {}) {
  const auto in = detail::token_rows("x", x);
  const auto out = detail::token_rows("grad_y", grad_y);
  const auto w = detail::token_rows("grad_weight", grad_weight);
  const auto map = detail::checked_linear(w, in, "x", out, "grad_y");
  detail::check_all_apart({{"grad_weight", w}}, {{"x", in}, {"grad_y", out}});
  detail::LinearGradients<typename detail::Traits<X>::Scalar>{w.data(), nullptr, map.inputs, map.outputs}.add(
      in.data(), out.data(), in.dim(0), options);
}

}  // namespace attn
