// Kernels of the causal convolution, lanes over the channels, one source for all instruction sets.
#pragma once

#include "attn/recurrent/recurrence_kernels.h"

namespace attn::detail::inline ATTN_BUILT_FOR {

/// Smallest and largest number of inputs that an output depends on.
constexpr int kLeastTaps = 2, kMostTaps = 8;

/// Some tokens of a convolution: output t has the bias, plus the sum over i of weight_i * x_(t + i), and then SiLU, x *
/// sigmoid(x), if asked for. All rows have the columns of `out`, a multiple of the vectors' lanes.
template <class T>
struct ConvRows {
  Rows<T> x;       ///< (tokens + taps - 1)
  Rows<T> weight;  ///< (taps)
  const T* bias;
  Index taps;
  bool has_silu;
  Block<T> out;  ///< (tokens): written by the forward pass; the backward pass reads their gradients
};
/// Gradients, all of which are added to.
template <class T>
struct ConvGradientRows {
  Block<T> x, weight;
  T* bias;
};

template <class T, int Bytes>
struct ConvKernels {
  using V = Vec<T, Bytes>;
  static constexpr int kLanes = V::kLanes;

  static ATTN_INLINE void forward(const ConvRows<T>& r) {
    with_taps<kLeastTaps>(
        r.taps, [&]<int kTaps>() __attribute__((always_inline)) {
          for (Index c = 0; c < r.out.columns; c += kLanes) {
            const Taps<kTaps> weight(r.weight, c);
            for (Index t = 0; t < r.out.rows; ++t) {
              const V y = weight.sum(r, t, c);
              (r.has_silu ? y * sigmoid(y).value : y).store(r.out.row(t) + c);
            }
          }
        });
  }

  static ATTN_INLINE void backward(const ConvRows<T>& r, const ConvGradientRows<T>& to) {
    with_taps<kLeastTaps>(
        r.taps, [&]<int kTaps>() __attribute__((always_inline)) {
          for (Index c = 0; c < r.out.columns; c += kLanes) {
            const Taps<kTaps> weight(r.weight, c);
            Taps<kTaps> grad(to.weight, c);
            V grad_bias = V::load(to.bias + c);
            for (Index t = 0; t < r.out.rows; ++t) {
              V g = V::load(r.out.row(t) + c);
              if (r.has_silu) {
                const V y = weight.sum(r, t, c);
                const auto s = sigmoid(y);
                g *= s.value + y * s.value * s.rest;
              }
              grad_bias += g;
              ATTN_UNROLL for (int i = 0; i < kTaps; ++i) {
                grad.of[i] += g * V::load(r.x.data + (t + i) * r.x.stride + c);
                T* const x = to.x.row(t + i) + c;
                (V::load(x) + g * weight.of[i]).store(x);
              }
            }
            ATTN_UNROLL for (int i = 0; i < kTaps; ++i) grad.of[i].store(to.weight.row(i) + c);
            grad_bias.store(to.bias + c);
          }
        });
  }

 private:
  template <int kTaps>
  struct Taps {
    Array<V, kTaps> of;

    ATTN_INLINE Taps(Rows<T> rows, Index c) {
      ATTN_UNROLL for (int i = 0; i < kTaps; ++i) of[i] = V::load(rows.data + i * rows.stride + c);
    }
    ATTN_INLINE V sum(const ConvRows<T>& r, Index t, Index c) const {
      V y = V::load(r.bias + c);
      ATTN_UNROLL for (int i = 0; i < kTaps; ++i) y += V::load(r.x.data + (t + i) * r.x.stride + c) * of[i];
      return y;
    }
  };

  template <int kTaps, class Use>
  static ATTN_INLINE void with_taps(Index taps, const Use& use) {
    if constexpr (kTaps < kMostTaps)
      if (taps > kTaps) return with_taps<kTaps + 1>(taps, use);
    use.template operator()<kTaps>();
  }
};

template <class T>
struct ConvFamily {
  void (*forward)(const ConvRows<T>&);
  void (*backward)(const ConvRows<T>&, const ConvGradientRows<T>&);
};
/// The kernels for these vectors, which must be available.
template <class T>
const ConvFamily<T>& conv_family(VectorSet vectors) {
  return with_vectors<T>(vectors, []<VectorSet kSet>() -> const ConvFamily<T>& {
    using Kernels = ConvKernels<T, kVectorBytes<kSet>>;
    static constexpr ConvFamily<T> kKernels = {.forward = compiled<kSet, Kernels::forward>,
                                               .backward = compiled<kSet, Kernels::backward>};
    return kKernels;
  });
}

}  // namespace attn::detail::inline ATTN_BUILT_FOR
