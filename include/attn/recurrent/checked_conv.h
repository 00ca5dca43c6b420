// The checked arguments of a causal convolution, and its options.
#pragma once

#include <type_traits>
#include <utility>

#include "attn/core/flash/checked_call.h"
#include "attn/recurrent/conv_loops.h"

namespace attn {

/// The options of causal_conv1d().
struct ConvOptions {
  bool silu = false;                      ///< whether SiLU, y * sigmoid(y), is applied to the result
  Indices lengths = {};                   ///< tokens of each sequence; later outputs are 0. Empty: all
  Executor executor = {};                 ///< see Options::executor
  std::optional<Isa> isa = std::nullopt;  ///< see Options::isa
};

/// In place of a convolution's bias.
struct NoBias {};
inline constexpr NoBias no_bias;  ///< in place of a convolution's bias

/// The gradients of causal_conv1d(), shaped like its arguments, in the type that it computes in. `bias` is empty if
/// there is none.
template <class X, class T>
struct ConvGradients {
  X x;                  ///< (batch, len, channels), of the type of x
  Tensor<T, 2> weight;  ///< (channels, width)
  Tensor<T, 1> bias;    ///< (channels)
};

namespace detail::inline ATTN_BUILT_FOR {

template <class B>
concept ConvBias = std::is_same_v<B, NoBias> || Viewable<B> || Shapeless<B>;

template <class X, class W, class B>
class CheckedConv {
  static constexpr bool kFits = Traits<X>::kRank == 3 && Traits<W>::kRank == 2;
  static_assert(kFits, "attn: x must be a tensor (batch, len, channels), and weight a matrix (channels, width)");
  using Scalar = typename Traits<X>::Scalar;
  static constexpr bool kHasBias = !std::is_same_v<B, NoBias>;

 public:
  using T = computed_t<Scalar>;

  CheckedConv(const X& x, const W& weight, const B& bias, const ConvOptions& options)
      : x_(x), weight_(evaluated(weight)), bias_(bias), options_(options) {
    const auto v = attn::view(x);
    const auto w = attn::view(weight_);
    const Index batch = v.dim(0), channels = v.dim(2), width = w.dim(1);
    require(width >= kLeastTaps && width <= kMostTaps, "weight has a width of ", width, ", but it must be ", kLeastTaps,
            " to ", kMostTaps);
    require(w.dim(0) == channels, "weight has shape ", w.shape(), ", expected ", Shape<2>{channels, width},
            " as (channels, width)");
    call_.x = rank4(v);
    call_.weight = transposed(w);
    if constexpr (kHasBias) {
      const auto b = vector_of(bias, "bias");
      static_assert(std::is_same_v<computed_t<typename decltype(b)::Scalar>, T>,
                    "attn: the bias of a convolution must have the scalar type of x (float and 16-bit floats may be "
                    "mixed)");
      require(b.size() == channels, "bias has ", b.size(), " elements for ", channels, " channels");
      call_.bias = row(b);
    }
    call_.lengths = {options.lengths.values.data(), options.lengths.values.size()};
    require(call_.lengths.empty() || static_cast<Index>(call_.lengths.size()) == batch, "got ", call_.lengths.size(),
            " lengths for ", batch, " sequences");
    for (const Index length : call_.lengths)
      require(length >= 0 && length <= v.dim(1), "a length is ", length, ", but x has ", v.dim(1), " tokens");
    call_.has_silu = options.silu;
    call_.vectors = vectors_of(options.isa ? checked_isa(*options.isa) : default_isa());
  }
  CheckedConv(const CheckedConv&) = delete;

  auto like_x() const { return Tensor<Scalar, 3>::uninitialized(attn::view(x_).shape()); }

  /// A call that writes to `out`, and replaces the state unless it is null.
  template <class Out>
  ConvCall<T> call_to(Out&& out, Tensor<T, 3>* state = nullptr) const {
    ConvCall<T> call = call_;
    call.out = written(out, "out");
    if (state) call.state = state_view(*state, "the state");
    // Views of the ranks that the caller knows, for the message.
    check_all_apart({{"out", attn::view(out)}, {"the state", state ? state->view() : TensorView<T, 3>()}},
                    {{"x", attn::view(x_)}, {"weight", attn::view(weight_)}, {"bias", call.bias}});
    return call;
  }
  template <class Out>
  void run(Out&& out, Tensor<T, 3>* state = nullptr) const {
    conv(call_to(out, state), options_.executor);
  }

  template <class Gr>
  auto gradients(const Gr& grad_out, const Tensor<T, 3>* before = nullptr, Tensor<T, 3>* grad_state = nullptr) const {
    const Index channels = call_.x.dim(3);
    ConvGradients<Tensor<Scalar, 3>, T> grads{like_x(), Tensor<T, 2>({channels, call_.taps()}),
                                              Tensor<T, 1>({kHasBias ? channels : 0})};
    ConvCall<T> forward = call_;
    ConvBackwardCall<T> call{forward, rank4(attn::view(grad_out)), rank4(grads.x.view()),
                             transposed(grads.weight.view())};
    require(call.grad_out.shape() == forward.x.shape(), "grad_out has shape ", attn::view(grad_out).shape(),
            ", expected that of x, ", attn::view(x_).shape());
    if (kHasBias) call.grad_bias = row(grads.bias.view());
    if (before) {
      require(before != grad_state, "grad_state must not be the state that the call began with");
      forward.state = state_view(const_cast<Tensor<T, 3>&>(*before), "the state");  // only read
      call.grad_state = state_view(*grad_state, "grad_state");
    }
    conv_backward(call, options_.executor);
    return grads;
  }

 private:
  template <class Number>
  static auto rank4(const TensorView<Number, 3>& t) {
    return TensorView<Number, 4>(t.data(), {t.dim(0), 1, t.dim(1), t.dim(2)},
                                 {t.stride(0), 0, t.stride(1), t.stride(2)});
  }
  template <class Number>
  static auto transposed(const TensorView<Number, 2>& t) {
    return TensorView<Number, 4>(t.data(), {1, 1, t.dim(1), t.dim(0)}, {0, 0, t.stride(1), t.stride(0)});
  }
  template <class Number>
  static auto row(const TensorView<Number, 1>& t) {
    return TensorView<Number, 4>(t.data(), {1, 1, 1, t.size()}, {0, 0, 0, t.stride(0)});
  }
  template <class Out>
  DTypeView<T> written(Out& out, const char* name) const {
    const auto v = attn::view(out);
    require(v.shape() == attn::view(x_).shape(), name, " has shape ", v.shape(), ", expected that of x, ",
            attn::view(x_).shape());
    return rank4(v);
  }
  DTypeView<T> state_view(Tensor<T, 3>& state, const char* name) const {
    const Shape<3> want{call_.x.dim(0), call_.taps() - 1, call_.x.dim(3)};
    require(state.view().shape() == want, name, " has shape ", state.view().shape(), ", expected ", want,
            " as (batch, width - 1, channels)");
    return rank4(state.view());
  }

  const X& x_;
  const Held<W> weight_;
  const B& bias_;
  const ConvOptions& options_;
  ConvCall<T> call_{};
};

}  // namespace detail::inline ATTN_BUILT_FOR
}  // namespace attn
