// The causal convolution that precedes the recurrence of many models.
#pragma once

#include <optional>
#include <utility>

#include "attn/executor.h"
#include "attn/recurrent/checked_conv.h"

namespace attn::inline ATTN_BUILT_FOR {

/// Computes the causal convolution of each channel over the tokens before it, as in Mamba, gated DeltaNet and Kimi
/// Linear:
///
///     out_t = bias + sum over i of weight_i * x_(t - width + 1 + i),   i < width
///
/// or, with ConvOptions::silu, SiLU of that sum. Inputs before the first token are 0.
///
/// @param x       (batch, len, channels), a tensor or view of rank 3, of any floating-point type and strides.
/// @param weight  (channels, width), width 2 to 8; the last column multiplies the token itself.
/// @param bias    (channels), as a row, a column or a std::vector; or no_bias.
/// @returns a tensor shaped like x.
///
/// 16-bit floats are computed in float; all tensors must have the same type of arithmetic. Blocks of channels are
/// distributed over threads. NaN affects no earlier token and no other channel.
/// @throws std::invalid_argument if sizes disagree; the message gives the sizes.
/// @see naive_causal_conv1d, the reference implementation.
template <class X, class W, detail::ConvBias B>
auto causal_conv1d(const X& x, const W& weight, const B& bias, const ConvOptions& options = {}) {
  const detail::CheckedConv call(x, weight, bias, options);
  auto out = call.like_x();
  call.run(out);
  return out;
}
/// Continues sequences from a state: the inputs of the last width - 1 tokens, oldest first, (batch, width - 1,
/// channels), which the call replaces. It begins as a Tensor of zeros. A sequence may be passed in parts of any
/// lengths, which have the bits of the whole.
template <class T, class X, class W, detail::ConvBias B>
auto causal_conv1d(Tensor<T, 3>& state, const X& x, const W& weight, const B& bias, const ConvOptions& options = {}) {
  const detail::CheckedConv call(x, weight, bias, options);
  auto out = call.like_x();
  call.run(out, &state);
  return out;
}

/// Computes causal_conv1d() into the caller's memory, which must not overlap an input.
template <class Out, class X, class W, detail::ConvBias B>
void causal_conv1d_into(Out&& out, const X& x, const W& weight, const B& bias, const ConvOptions& options = {}) {
  detail::CheckedConv(x, weight, bias, options).run(out);
}
/// Continues sequences from a state, writing to the caller's memory.
template <class Out, class T, class X, class W, detail::ConvBias B>
void causal_conv1d_into(Out&& out, Tensor<T, 3>& state, const X& x, const W& weight, const B& bias,
                        const ConvOptions& options = {}) {
  detail::CheckedConv(x, weight, bias, options).run(out, &state);
}

/// Returns the gradients of a loss with respect to x, weight and bias, given the gradient with respect to the output of
/// causal_conv1d(), shaped like x. Without a bias, that gradient is empty. Results are bit-identical for any number of
/// threads.
template <class Gr, class X, class W, detail::ConvBias B>
auto causal_conv1d_backward(const Gr& grad_out, const X& x, const W& weight, const B& bias,
                            const ConvOptions& options = {}) {
  return detail::CheckedConv(x, weight, bias, options).gradients(grad_out);
}
/// Returns the gradients of a call with a state. `before` is a copy of the state before the call; `grad_state` holds
/// the gradient of the state after it, which is replaced by the gradient of `before`. Pass zeros if the loss depends on
/// the outputs alone.
template <class T, class Gr, class X, class W, detail::ConvBias B>
auto causal_conv1d_backward(const Tensor<T, 3>& before, Tensor<T, 3>& grad_state, const Gr& grad_out, const X& x,
                            const W& weight, const B& bias, const ConvOptions& options = {}) {
  return detail::CheckedConv(x, weight, bias, options).gradients(grad_out, &before, &grad_state);
}

/// Computes causal_conv1d() by its definition, in plain loops.
template <class X, class W, detail::ConvBias B>
auto naive_causal_conv1d(const X& x, const W& weight, const B& bias, const ConvOptions& options = {}) {
  const detail::CheckedConv call(x, weight, bias, options);
  auto out = call.like_x();
  detail::naive_conv(call.call_to(out));
  return out;
}

}  // namespace attn::inline ATTN_BUILT_FOR
