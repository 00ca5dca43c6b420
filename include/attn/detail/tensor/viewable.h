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
  static_assert(Viewable<X> || Shapeless<X>,
                "attn: this argument must be an Eigen matrix or expression, an Eigen tensor, an attn::Tensor, an "
                "attn::TensorView or an mdspan");
  return Viewable<X>;
}

}  // namespace attn::detail
