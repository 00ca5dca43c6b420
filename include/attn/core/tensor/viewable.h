// Concepts for types that a user may pass as a tensor, and for types that are often passed instead.
#pragma once

#include <type_traits>
#include <vector>

#include "attn/tensor.h"

namespace attn::detail {

template <class X>
concept Viewable = EigenDense<X> || EigenTensor<X> || Mdspan<X> || requires {
  std::remove_cvref_t<X>::kRank;
};

/// Contiguous elements without a shape: pointers, arrays, std::vector, std::span …
template <class X>
concept Shapeless = !Viewable<X> && (std::is_pointer_v<X> || std::is_array_v<X> || requires(const X& x) {
  x.begin();
  x.size();
});

/// Stored keys and values; see attn::KvView.
template <class X>
concept KvSource = requires(const X& x) {
  x.view().kv_heads();
};

/// The whole result of a call, rather than its output.
template <class X>
concept WholeResult = requires(const X& x) {
  x.out;
  x.lse;
};

/// The type that attn::ragged() returns.
template <class X>
concept RaggedQueries = requires(const X& x) {
  x.q;
  x.lens;
};

/// The element type of a tensor.
template <class X>
struct ScalarOf {
  using type = typename X::Scalar;
};
template <Mdspan X>
struct ScalarOf<X> {
  using type = typename X::element_type;
};
template <class X>
using scalar_t = std::remove_const_t<typename ScalarOf<std::remove_cvref_t<X>>::type>;

/// Explains, in a static_assert, why X is not a tensor. `auto` makes compilers instantiate it at once, so that its
/// message comes before any other error.
template <class X>
constexpr auto check_tensor() {
  constexpr bool kIsBits = std::is_same_v<X, std::vector<bool>>;
  static_assert(!kIsBits,
                "attn: std::vector<bool> stores bits, which cannot be addressed; use attn::Tensor<bool, 1> or "
                "Eigen::Array<bool, Eigen::Dynamic, 1>");
  static_assert(!Shapeless<X> || kIsBits,
                "attn: this argument has no shape; view it as a tensor with attn::bhsd(ptr, batch, heads, len, dim), "
                "attn::TensorView<T, rank>(ptr, {sizes}) or Eigen::Map");
  static_assert(!WholeResult<X>, "attn: this is the whole result of a call; pass its output, result.out");
  static_assert(!KvSource<X>,
                "attn: a cache holds both keys and values; pass it once: attention(q, cache, mods, options)");
  static_assert(!RaggedQueries<X>,
                "attn: ragged queries need a cache or an attn::KvView, which knows the length of each sequence; with "
                "key and value tensors, pad the sequences: attention(q, k, v, attn::key_lengths({4, 2}))");
  static_assert(Viewable<X> || Shapeless<X> || WholeResult<X> || KvSource<X> || RaggedQueries<X>,
                "attn: this argument must be an Eigen matrix or expression, an Eigen tensor, an attn::Tensor, an "
                "attn::TensorView or an mdspan");
  return Viewable<X>;
}

}  // namespace attn::detail

namespace attn {

/// Refuses arguments that are not tensors: fails to compile with the message of check_tensor().
template <class X>
requires(!detail::Viewable<X>) auto view(const X&) { return detail::check_tensor<X>(); }

}  // namespace attn
