// Views of Eigen matrices and tensors.
#pragma once

#include <concepts>
#include <type_traits>
#include <utility>

#include <Eigen/Core>

#include "attn/mdspan.h"
#include "attn/tensor_view.h"

namespace attn {

namespace detail {

/// Fails to compile, with a message that says that a temporary cannot be viewed.
template <class T, int Rank>
auto view_of_temporary() {
  static_assert(sizeof(T) == 0,
                "attn: this tensor is a temporary, which is destroyed at the end of the statement; store it in a "
                "variable and view that");
  return TensorView<T, Rank>();
}

template <class X>
concept EigenDense = requires(const std::remove_cvref_t<X>& x) {
  []<class D>(const Eigen::DenseBase<D>&) {}(x);
};

// Eigen tensors are recognised by their members, so that their header need not be included.
template <class X>
concept EigenTensor = !EigenDense<X> && requires(X & x) {
  x.data();
  x.dimensions();
  { std::remove_cvref_t<X>::NumDimensions } -> std::convertible_to<int>;
  { std::remove_cvref_t<X>::Layout } -> std::convertible_to<int>;
};

// data() returns a pointer to const if the object is const or maps const memory (Map<const …>).
template <class X>
struct ElementOf {
  using type = std::remove_pointer_t<decltype(std::declval<X&>().data())>;
};
template <Mdspan X>
struct ElementOf<X> {
  using type = typename std::remove_cvref_t<X>::element_type;
};
template <class X>
using element_t = typename ElementOf<X>::type;

template <class X>
constexpr bool has_memory = [] {
  if constexpr (EigenDense<X>) return (std::remove_cvref_t<X>::Flags & Eigen::DirectAccessBit) != 0 && requires(X & x) {
      x.data();
    };
  else
    return true;
}();

/// Whether an X, deduced from X&&, is a temporary that owns its elements.
template <class X>
constexpr bool is_temporary = false;
template <class X>
requires(!std::is_reference_v<X> && (EigenTensor<X> || EigenDense<X>)) constexpr bool is_temporary<X> = [] {
  if constexpr (EigenTensor<X>) return requires(X & x) {
      x.resize(x.dimensions());
    };  // maps cannot be resized
  else
    return std::is_base_of_v<Eigen::PlainObjectBase<typename X::PlainObject>, X>;
}();

}  // namespace detail

/// Returns a view (rows, cols) of an Eigen matrix, array, map, block or transpose, in either storage order. Nothing is
/// copied, and the object must outlive the view. Expressions without their own memory (sums, products) do not compile:
/// evaluate them first.
template <detail::EigenDense X>
auto view(X&& x) {
  static_assert(detail::has_memory<X>,
                "attn::view: this Eigen expression is not stored in memory; evaluate it first, e.g. with .eval()");
  if constexpr (detail::is_temporary<X>) {
    return detail::view_of_temporary<typename X::Scalar, 2>();
  } else {
    constexpr bool row_major = std::remove_cvref_t<X>::IsRowMajor;
    const Index inner = x.innerStride(), outer = x.outerStride();
    using View = TensorView<detail::element_t<X>, 2>;
    return View(x.data(), {x.rows(), x.cols()}, {row_major ? outer : inner, row_major ? inner : outer});
  }
}

/// Returns a view of an Eigen::Tensor or TensorMap, in either layout, with the same indices.
template <detail::EigenTensor X>
auto view(X&& x) {
  constexpr int rank = std::remove_cvref_t<X>::NumDimensions;
  if constexpr (detail::is_temporary<X>) {
    return detail::view_of_temporary<detail::element_t<X>, rank>();
  } else {
    Shape<rank> shape{}, strides{};
    for (std::size_t i = 0; i < rank; ++i) shape[i] = x.dimensions()[i];
    strides = detail::row_major_strides<rank>(shape);
    if constexpr (int(std::remove_cvref_t<X>::Layout) == int(Eigen::ColMajor)) {
      Index step = 1;
      for (std::size_t i = 0; i < rank; step = detail::wrapping_product(step, shape[i++])) strides[i] = step;
    }
    return TensorView<detail::element_t<X>, rank>(x.data(), shape, strides);
  }
}

}  // namespace attn
