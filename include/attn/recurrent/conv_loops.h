// The causal convolution: its kernels, with lanes over the channels and one source for all instruction sets, and its
// loops over sequences, chunks of tokens and blocks of channels.
#pragma once

#include <span>

#include "attn/core/base/compiled_once.h"
#include "attn/core/flash/query_tiles.h"
#include "attn/parallel.h"
#include "attn/recurrent/chunk.h"
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

/// A checked call of causal_conv1d(). Tensors have one head, and the rows of `weight` and `bias` are taps.
template <class T>
struct ConvCall {
  DTypeView<const T> x;       ///< (batch, 1, len, channels)
  DTypeView<const T> weight;  ///< (1, 1, taps, channels)
  DTypeView<const T> bias;    ///< (1, 1, 1, channels); no data if there is no bias
  DTypeView<T> out;
  DTypeView<T> state;  ///< (batch, 1, taps - 1, channels): inputs of the last tokens; null without a state
  std::span<const Index> lengths;
  bool has_silu;
  VectorSet vectors;

  Index taps() const { return weight.dim(2); }
  Index length(Index b) const { return lengths.empty() ? x.dim(2) : lengths[static_cast<std::size_t>(b)]; }
  double flops() const { return 8.0 * static_cast<double>(x.dim(0) * x.dim(2) * x.dim(3) * taps()); }
};
template <class T>
struct ConvBackwardCall {
  const ConvCall<T>& forward;  ///< its state is the one before the call
  DTypeView<const T> grad_out;
  DTypeView<T> grad_x, grad_weight, grad_bias{};
  DTypeView<T> grad_state{};  ///< as the state, after the call; replaced by the gradient of the one before; may be null
};

/// Channels of a task, and tokens that it loads at a time: 16 KiB of inputs, which stay in the L1 cache.
/// A convolution of width 4 takes 4 to 5 times as long as a copy of its input, half of it for copies of rows. Reading
/// and writing the caller's rows gained nothing (Zen 4, 2048 channels): rows of a block are 8 KiB apart, and fall into
/// the same sets of L1. Tasks with fewer tokens and all channels might be faster.
template <class T>
constexpr Index kConvChannels = 8 * kRowUnit<T>;
constexpr Index kConvTokens = 32;

/// A worker's memory. The rows of inputs begin with those of the tokens before the loaded ones.
template <class T>
struct ConvMemory {
  Block<T> x, grad_x, weight, grad_weight, bias, grad_bias, out;

  static ConvMemory take(ChunkArena<T>& arena) {
    const auto rows = [&](Index count) { return take_block(arena, count, kConvChannels<T>); };
    constexpr Index kInputs = kConvTokens + kMostTaps - 1;
    return {rows(kInputs), rows(kInputs), rows(kMostTaps), rows(kMostTaps), rows(1), rows(1), rows(kConvTokens)};
  }
  static Index bytes() { return ChunkArena<T>::count(take); }
};

/// A block of channels.
template <class T>
class ConvBlock {
 public:
  ConvBlock(const ConvCall<T>& call, Index block, std::byte* memory)
      : call_(call),
        packing_(kernel_family<T>(call.vectors)),
        kernels_(conv_family<T>(call.vectors)),
        arena_(memory),
        m_(ConvMemory<T>::take(arena_)),
        first_(block * kConvChannels<T>),
        channels_(std::min(kConvChannels<T>, call.x.dim(3) - first_)) {
    load(call.weight, 0, 0, call.taps(), m_.weight);
    clear(m_.bias);
    if (call.bias.data()) load(call.bias, 0, 0, 1, m_.bias);
  }

  void forward(Index b) {
    const Index length = call_.length(b), before = call_.taps() - 1;
    for (Index t = 0; t < length; t += kConvTokens) {
      const Block<T> out = m_.out.from(0, std::min(kConvTokens, length - t));
      load_inputs(b, t, t + out.rows);
      kernels_.forward({m_.x, m_.weight, m_.bias.data, call_.taps(), call_.has_silu, out});
      store(out, call_.out, b, t);
    }
    store_zeros(m_.out, call_.out, b);
    if (!call_.state.data()) return;
    load_inputs(b, length, length);
    store(m_.x.from(0, before), call_.state, b, 0);
  }

  /// Computes the gradients of all sequences, so that one task forms the sums over them.
  void backward(const ConvBackwardCall<T>& call) {
    const Index before = call_.taps() - 1;
    const Block<T>& grad_x = m_.grad_x;
    clear(m_.grad_weight), clear(m_.grad_bias);
    for (Index b = 0; b < call_.x.dim(0); ++b) {
      const Index length = call_.length(b);
      store_zeros(m_.out, call.grad_x, b);
      // The first rows are the gradients of the inputs of the last tokens before those that are visited already.
      clear(grad_x);
      if (call.grad_state.data()) load(call.grad_state, b, 0, before, grad_x);
      for (Index t = (ceil_div(length, kConvTokens) - 1) * kConvTokens; t >= 0; t -= kConvTokens) {
        const Index n = std::min(kConvTokens, length - t);
        std::copy_backward(grad_x.data, grad_x.row(before), grad_x.row(n + before));
        clear(grad_x.from(0, n));
        load_inputs(b, t, t + n);
        load(call.grad_out, b, t, n, m_.out);
        kernels_.backward({m_.x, m_.weight, m_.bias.data, call_.taps(), call_.has_silu, m_.out.from(0, n)},
                          {grad_x, m_.grad_weight, m_.grad_bias.data});
        store(grad_x.from(before, n), call.grad_x, b, t);
      }
      if (call.grad_state.data()) store(grad_x.from(0, before), call.grad_state, b, 0);
    }
    store(m_.grad_weight.from(0, call_.taps()), call.grad_weight, 0, 0);
    if (call.grad_bias.data()) store(m_.grad_bias, call.grad_bias, 0, 0);
  }

 private:
  static void clear(const Block<T>& rows) { std::fill_n(rows.data, rows.rows * rows.stride, T(0)); }

  /// Loads the inputs of tokens begin .. end - 1, after those of the tokens before them, which come from the state, or
  /// are 0, if they precede the call.
  void load_inputs(Index b, Index begin, Index end) {
    const Index before = call_.taps() - 1, early = std::max<Index>(0, before - begin);
    if (call_.state.data())
      load(call_.state, b, before - early, early, m_.x);
    else
      clear(m_.x.from(0, early));
    load(call_.x, b, begin - before + early, end - begin + before - early, m_.x.from(early, 0));
  }
  /// Stores zeros for the padding after a sequence.
  void store_zeros(const Block<T>& memory, const DTypeView<T>& to, Index b) {
    if (call_.length(b) == to.dim(2)) return;
    clear(memory);
    for (Index t = call_.length(b); t < to.dim(2); t += memory.rows)
      store(memory.from(0, std::min(memory.rows, to.dim(2) - t)), to, b, t);
  }

  template <class Byte>
  DTypeRows<Byte> of_channels(DTypeRows<Byte> rows) const {
    rows.data += first_ * rows.column * size_of_element<T>(rows.dtype);
    return rows;
  }
  template <class View>
  void load(const View& from, Index b, Index row, Index count, const Block<T>& to) {
    copy_rows<T>(packing_, of_channels(from.rows(b, 0, row)), count, channels_, to.data, to.stride);
  }
  void store(const Block<T>& from, const DTypeView<T>& to, Index b, Index row) {
    store_rows(packing_, from, from.rows, channels_, of_channels(to.rows(b, 0, row)));
  }

  const ConvCall<T>& call_;
  const KernelFamily<T>& packing_;
  const ConvFamily<T>& kernels_;
  ChunkArena<T> arena_;
  ConvMemory<T> m_;
  Index first_, channels_;
};

/// Computes a convolution. Channels are independent, so a task has a block of them.
template <class T, class = include_attn_instantiate_h_in_one_unit>
void conv(const ConvCall<T>& call, const Executor& executor) {
  const Workers workers({call.flops()}, executor);
  const Workspace workspace(ConvMemory<T>::bytes(), workers.count());
  const Index blocks = ceil_div(call.x.dim(3), kConvChannels<T>);
  workers.run(blocks * call.x.dim(0), [&](Index task, int worker) {
    ConvBlock<T>(call, task % blocks, workspace.of(worker)).forward(task / blocks);
  });
}
ATTN_COMPILED_ONCE(conv)

template <class T, class = include_attn_instantiate_h_in_one_unit>
void conv_backward(const ConvBackwardCall<T>& call, const Executor& executor) {
  const Workers workers({2 * call.forward.flops()}, executor);
  const Workspace workspace(ConvMemory<T>::bytes(), workers.count());
  workers.run(ceil_div(call.forward.x.dim(3), kConvChannels<T>),
              [&](Index task, int worker) { ConvBlock<T>(call.forward, task, workspace.of(worker)).backward(call); });
}
ATTN_COMPILED_ONCE(conv_backward)

/// Computes a convolution by its definition; see causal_conv1d().
template <class T, class = include_attn_instantiate_h_in_one_unit>
void naive_conv(const ConvCall<T>& call) {
  for (Index b = 0; b < call.x.dim(0); ++b)
    for (Index t = 0; t < call.x.dim(2); ++t)
      for (Index c = 0; c < call.x.dim(3); ++c) {
        T y = call.bias.data() ? load_number<T>(call.bias.rows(0, 0), 0, c) : T(0);
        for (Index i = std::max<Index>(0, call.taps() - 1 - t); i < call.taps(); ++i)
          y += load_number<T>(call.weight.rows(0, 0), i, c) *
               load_number<T>(call.x.rows(b, 0), t - (call.taps() - 1) + i, c);
        if (call.has_silu) y /= 1 + std::exp(-y);
        store_number<T>(call.out.rows(b, 0), t, c, t < call.length(b) ? y : T(0));
      }
}
ATTN_COMPILED_ONCE(naive_conv)

}  // namespace attn::detail::inline ATTN_BUILT_FOR
