// What a user may pass as a tensor, and what is often passed instead.
#pragma once

#include <type_traits>
#include <vector>

#include "attn/tensor.h"

namespace attn::detail {

template <class X>
concept Viewable = EigenDense<X> || EigenTensor<X> || Mdspan<X> || requires {
  std::remove_cvref_t<X>::kRank;
};

/// Numbers in a row: pointers, arrays, std::vector, std::span …
template <class X>
concept Shapeless = !Viewable<X> && (std::is_pointer_v<X> || std::is_array_v<X> || requires(const X& x) {
  x.begin();
  x.size();
});

/// Keys and values that are kept somewhere: see attn::KvView.
template <class X>
concept KvSource = requires(const X& x) {
  x.view().kv_heads();
};

/// What a call returns, rather than the output in it.
template <class X>
concept WholeResult = requires(const X& x) {
  x.out;
  x.lse;
};

/// What attn::ragged() makes.
template <class X>
concept RaggedQueries = requires(const X& x) {
  x.q;
  x.lens;
};

/// What a tensor holds.
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

/// Says in one sentence why X is no tensor. `auto` makes compilers look into it at once, so that the sentence comes
/// before whatever else fails.
template <class X>
constexpr auto check_tensor() {
  constexpr bool kIsBits = std::is_same_v<X, std::vector<bool>>;
  static_assert(!kIsBits,
                "attn: std::vector<bool> holds bits, which have no addresses; use attn::Tensor<bool, 1> or "
                "Eigen::Array<bool, Eigen::Dynamic, 1>");
  static_assert(!Shapeless<X> || kIsBits,
                "attn: this has no shape; see it as a tensor by attn::bhsd(ptr, batch, heads, len, dim), "
                "attn::TensorView<T, rank>(ptr, {sizes}) or Eigen::Map");
  static_assert(!WholeResult<X>, "attn: this is the whole result of a call; its output is result.out");
  static_assert(!KvSource<X>,
                "attn: a cache holds keys and values and stands for both: attention(q, cache, mods, options)");
  static_assert(
      !RaggedQueries<X>,
      "attn: ragged queries have a cache or an attn::KvView behind them, which know how long each sequence "
      "is; the sequences of a tensor are as long as each other: attention(q, k, v, attn::key_lengths({4, 2}))");
  static_assert(Viewable<X> || Shapeless<X> || WholeResult<X> || KvSource<X> || RaggedQueries<X>,
                "attn: this argument must be an Eigen matrix or expression, an Eigen tensor, an attn::Tensor, an "
                "attn::TensorView or an mdspan");
  return Viewable<X>;
}

}  // namespace attn::detail

namespace attn {

/// Of what is no tensor: fails to compile with the sentence of check_tensor().
template <class X>
requires(!detail::Viewable<X>) auto view(const X&) { return detail::check_tensor<X>(); }

}  // namespace attn
