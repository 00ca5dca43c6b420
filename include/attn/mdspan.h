// Views of std::mdspan, Kokkos's mdspan and any type with their interface. None of their headers is needed.
#pragma once

#include <concepts>
#include <cstddef>
#include <type_traits>
#include <utility>

#include "attn/tensor_view.h"

namespace attn {

namespace detail {

/// A std::mdspan or a type like it, recognised by its members (ISO C++23, [mdspan.mdspan.overview]).
template <class X>
concept Mdspan = requires(const std::remove_cvref_t<X>& x) {
  x.data_handle();
  x.mapping();
  x.extents();
  { std::remove_cvref_t<X>::rank() } -> std::convertible_to<std::size_t>;
};

/// Fails to compile for an mdspan that cannot be viewed, with a message that says why.
template <class Span>
constexpr bool check_mdspan() {
  constexpr bool kHasDimensions = Span::rank() > 0, kHasStrides = Span::is_always_strided(),
                 kIsMemory = std::is_same_v<typename Span::data_handle_type, typename Span::element_type*>;
  static_assert(kHasDimensions, "attn: an mdspan of rank 0 is a scalar, not a tensor; pass one of rank 1 or higher");
  static_assert(kHasStrides,
                "attn: this mdspan's layout has no strides; use layout_right, layout_left or layout_stride, or copy "
                "the elements into an attn::Tensor");
  static_assert(kIsMemory,
                "attn: this mdspan's accessor does not use a plain pointer; use default_accessor, or copy the elements "
                "into an attn::Tensor");
  return kHasDimensions && kHasStrides && kIsMemory;
}

/// The offset of the first element: 0 for all standard layouts.
template <class Span, std::size_t... d>
Index first_element(const Span& x, std::index_sequence<d...>) {
  using Size = typename Span::index_type;
  return static_cast<Index>(x.mapping()((static_cast<void>(d), Size(0))...));
}

}  // namespace detail

/// Returns a view of an mdspan with the same indices, whatever its layout. Nothing is copied; elements are const if
/// they are const in the mdspan. TensorView::to_mdspan() is the inverse.
template <detail::Mdspan X>
auto view(X&& x) {
  using Span = std::remove_cvref_t<X>;
  if constexpr (detail::check_mdspan<Span>()) {
    constexpr std::size_t kRank = Span::rank();
    Shape<static_cast<int>(kRank)> shape{}, strides{};
    bool is_empty = false;
    for (std::size_t d = 0; d < kRank; ++d) {
      shape[d] = static_cast<Index>(x.extents().extent(d));
      strides[d] = static_cast<Index>(x.mapping().stride(d));
      is_empty |= shape[d] == 0;
    }
    const Index first = is_empty ? 0 : detail::first_element(x, std::make_index_sequence<kRank>());
    return TensorView<typename Span::element_type, static_cast<int>(kRank)>(x.data_handle() + first, shape, strides);
  }
}

}  // namespace attn
