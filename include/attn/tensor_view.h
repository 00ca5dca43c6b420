// Non-owning views of tensors.
#pragma once

#include <Eigen/Core>
#include <algorithm>
#include <array>
#include <cassert>
#include <concepts>
#include <ostream>
#include <span>
#include <type_traits>
#include <utility>

#include "attn/core/base/check.h"
#include "attn/types.h"

namespace attn {

/// The sizes of a tensor, or its strides, one for each dimension.
template <int Rank>
using Shape = std::array<Index, static_cast<std::size_t>(Rank)>;

namespace detail {

// Invalid sizes are rejected later. Until then their product may wrap around, which does no harm.
constexpr Index wrapping_product(Index a, Index b) {
  return static_cast<Index>(static_cast<std::size_t>(a) * static_cast<std::size_t>(b));
}

template <int Rank>
constexpr Index product(const Shape<Rank>& shape) {
  Index n = 1;
  for (Index d : shape) n = wrapping_product(n, d);
  return n;
}

template <int Rank>
constexpr Shape<Rank> row_major_strides(const Shape<Rank>& shape) {
  Shape<Rank> strides{};
  Index step = 1;
  for (std::size_t i = Rank; i-- > 0;) {
    strides[i] = step;
    step = wrapping_product(step, shape[i]);
  }
  return strides;
}

/// Returns the sizes `wanted` for a tensor of shape `from`. One of them may be -1; it is inferred from the others.
/// @throws std::invalid_argument unless both shapes have the same number of elements.
template <int Rank>
Shape<Rank> reshaped(Shape<Rank> wanted, std::span<const Index> from) {
  Index elements = 1, others = 1, *left = nullptr;
  for (const Index d : from) elements *= d;
  const Shape<Rank> asked = wanted;
  bool fits = true;
  for (Index& d : wanted) {
    require(d >= 0 || (d == -1 && !left), "reshape to ", asked, ": sizes must not be negative, except for one -1");
    if (d == -1)
      left = &d;
    else
      fits &= !__builtin_mul_overflow(others, d, &others);
  }
  fits &= left ? others > 0 && elements % others == 0 : others == elements;
  require(fits, "reshape of ", from, " to ", asked, ": there are ", elements, " elements",
          left ? ", not a multiple of " : ", not ", others);
  if (left) *left = elements / others;
  return wanted;
}

/// @throws std::invalid_argument if a size is negative, or the number of bytes overflows.
template <int Rank>
void check_sizes(const Shape<Rank>& shape, std::size_t element) {
  Index bytes = static_cast<Index>(element);
  bool overflow = false, empty = false;
  for (std::size_t i = 0; i < Rank; ++i) {
    require(shape[i] >= 0, "the size of dimension ", i, " of a tensor must not be negative, but is ", shape[i]);
    overflow = __builtin_mul_overflow(bytes, shape[i], &bytes) || overflow;
    empty = empty || shape[i] == 0;
  }
  require(!overflow || empty, "a tensor of shape ", shape, " has too many bytes to count");
}

/// An Eigen matrix, vector or array that owns its elements.
template <class M>
concept EigenPlain = requires {
  requires std::same_as<M, typename M::PlainObject>;
  M::RowsAtCompileTime;
};

}  // namespace detail

}  // namespace attn

#if __cplusplus > 202002L && __has_include(<mdspan>)
#include <mdspan>
#endif

namespace attn {

/// A non-owning view of memory as a tensor: a pointer, sizes, and strides in elements. Nothing is copied.
///
/// Strides are arbitrary: 0 repeats an element (broadcast), a negative one goes backwards, and the innermost need not
/// be 1. `TensorView<T, R>` converts to `TensorView<const T, R>`. Constness is that of T, as with std::span.
/// @throws std::invalid_argument for a negative size, or null data with a non-zero size.
template <class T, int Rank>
class TensorView {
  static_assert(Rank >= 1, "attn: a TensorView must have at least one dimension");

 public:
  using Scalar = std::remove_const_t<T>;  ///< the type of the elements, without const
  static constexpr int kRank = Rank;      ///< the number of dimensions
  using Shape = attn::Shape<Rank>;        ///< sizes or strides of all dimensions
  /// The matrix type that matrix() maps.
  using Matrix = Eigen::Matrix<Scalar, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
  /// The type that matrix() returns.
  using MatrixMap = Eigen::Map<std::conditional_t<std::is_const_v<T>, const Matrix, Matrix>, Eigen::Unaligned,
                               Eigen::Stride<Eigen::Dynamic, Eigen::Dynamic>>;

  TensorView() = default;
  // Strides are computed directly into the member, because copying the small array right after its elements are written
  // would stall on store forwarding.
  /// Views row-major elements without gaps.
  TensorView(T* data, const Shape& shape)
      : data_(data), shape_(shape), strides_(detail::row_major_strides<Rank>(shape)) {
    check();
  }
  /// Views elements with a stride for each dimension, counted in elements; any may be 0 or negative.
  TensorView(T* data, const Shape& shape, const Shape& strides) : data_(data), shape_(shape), strides_(strides) {
    check();
  }
  /// Not to be called: fails to compile, with a message that says to pass the sizes in braces.
  template <class Pointer, std::integral... I>
  requires(std::is_pointer_v<Pointer> && sizeof...(I) >= 1) TensorView(Pointer, I...) {
    static_assert(sizeof(Pointer) == 0,
                  "attn: pass the sizes in braces: TensorView<float, 4>(ptr, {batch, heads, len, dim})");
  }

  /// A view of the same elements, read-only.
  operator TensorView<const T, Rank>() const requires(!std::is_const_v<T>) { return {data_, shape_, strides_}; }

  T* data() const { return data_; }                             ///< the element at index 0 of all dimensions
  const Shape& shape() const { return shape_; }                 ///< the sizes
  const Shape& strides() const { return strides_; }             ///< the strides, in elements
  Index dim(int i) const { return shape_[at(i)]; }              ///< the size of a dimension
  Index stride(int i) const { return strides_[at(i)]; }         ///< the stride of a dimension, in elements
  Index size() const { return detail::product<Rank>(shape_); }  ///< the number of elements

  /// Whether the elements are in row-major order without gaps.
  bool is_contiguous() const {
    Index step = 1;
    for (int i = Rank; i-- > 0; step *= dim(i))
      if (dim(i) != 1 && stride(i) != step) return size() == 0;
    return true;
  }

#if defined(__cpp_lib_mdspan)
  /// Returns the same elements as a std::mdspan. If the standard library has none (before C++23), construct a different
  /// mdspan, such as Kokkos's, from data(), shape() and strides().
  /// @throws std::invalid_argument for strides that are not positive, which layout_stride does not support.
  auto to_mdspan() const {
    using Extents = std::dextents<Index, static_cast<std::size_t>(Rank)>;
    Shape steps = strides_;
    for (int i = 0; i < Rank; ++i) {
      if (size() == 0 || dim(i) == 1) steps[at(i)] = std::max<Index>(steps[at(i)], 1);  // this stride is unused
      detail::require(steps[at(i)] > 0, "to_mdspan: the tensor of shape ", shape_, " has strides ", strides_,
                      ", but std::layout_stride needs positive strides; convert a copy of it");
    }
    return std::mdspan<T, Extents, std::layout_stride>(data_, std::layout_stride::mapping<Extents>(shape_, steps));
  }
#endif

  /// Returns a view of the same memory from element `offset` on, with other sizes and strides.
  TensorView part(Index offset, const Shape& shape, const Shape& strides) const {
    return {data_ ? data_ + offset : nullptr, shape, strides};
  }

  /// The same elements with other sizes, of any rank: `t.reshape(batch, len, heads, dim)`. One size may be -1 and is
  /// then computed from the others. The tensor must be contiguous; a copy, `Tensor<T, Rank>(t)`, always is.
  /// @throws std::invalid_argument if the tensor is not contiguous, or if the number of elements differs.
  template <std::convertible_to<Index>... I>
  TensorView<T, static_cast<int>(sizeof...(I))> reshape(I... sizes) const {
    constexpr int rank = static_cast<int>(sizeof...(I));
    detail::require(is_contiguous(), "reshape: the tensor of shape ", shape_, " has strides ", strides_,
                    ", but must be contiguous; reshape a copy of it");
    return {data_, detail::reshaped<rank>({static_cast<Index>(sizes)...}, shape_)};
  }

  /// The elements begin .. end - 1 of dimension `d`.
  /// @throws std::invalid_argument for a dimension or an element out of range, as do the functions below.
  TensorView slice(int d, Index begin, Index end) const {
    check_dimension("slice", d, Rank);
    detail::require(0 <= begin && begin <= end && end <= dim(d), "slice: the range [", begin, ", ", end,
                    ") is invalid for dimension ", d, " of shape ", shape_, ", which has ", dim(d), " elements");
    Shape shape = shape_;
    shape[at(d)] = end - begin;
    return part(begin < end ? begin * stride(d) : 0, shape, strides_);
  }

  /// Element `i` of dimension `d`, without that dimension: `t.select(0, b)` is batch element b, of rank 3.
  TensorView<T, Rank - 1> select(int d, Index i) const {
    static_assert(Rank >= 2, "attn: select() removes a dimension, so it needs rank 2 or higher; use t(i)");
    check_dimension("select", d, Rank);
    detail::require(0 <= i && i < dim(d), "select: index ", i, " is out of range for dimension ", d, " of shape ",
                    shape_, ", which has ", dim(d), " elements");
    return without(d, i * stride(d));
  }

  /// The view without dimension `d`, which must have size 1.
  TensorView<T, Rank - 1> squeeze(int d) const {
    static_assert(Rank >= 2, "attn: squeeze() removes a dimension, so it needs rank 2 or higher");
    check_dimension("squeeze", d, Rank);
    detail::require(dim(d) == 1, "squeeze: dimension ", d, " of shape ", shape_, " must have 1 element, but has ",
                    dim(d));
    return without(d, 0);
  }

  /// The view with one more dimension, of size 1, before dimension `d`; d == Rank appends it after the last one.
  TensorView<T, Rank + 1> unsqueeze(int d) const {
    check_dimension("unsqueeze", d, Rank + 1);
    attn::Shape<Rank + 1> shape, strides;
    for (int i = 0; i <= Rank; ++i) {
      shape[at(i)] = i == d ? 1 : dim(i < d ? i : i - 1);
      strides[at(i)] =
          i == d ? (d < Rank ? detail::wrapping_product(dim(d), stride(d)) : 1) : stride(i < d ? i : i - 1);
    }
    return {data_, shape, strides};
  }

  /// The view with two dimensions swapped.
  TensorView transpose(int a, int b) const {
    check_dimension("transpose", a, Rank);
    check_dimension("transpose", b, Rank);
    Shape shape = shape_, strides = strides_;
    std::swap(shape[at(a)], shape[at(b)]);
    std::swap(strides[at(a)], strides[at(b)]);
    return {data_, shape, strides};
  }

  /// The view with the dimensions in a different order: dimension i of the result is the one that argument i names.
  /// `t.permute(0, 2, 1, 3)` makes (batch, heads, len, dim) from (batch, len, heads, dim).
  template <std::convertible_to<int>... I>
  requires(sizeof...(I) == static_cast<std::size_t>(Rank)) TensorView permute(I... dimensions)
  const {
    const std::array<int, at(Rank)> from{static_cast<int>(dimensions)...};
    Shape shape, strides, seen{};
    for (int i = 0; i < Rank; ++i) {
      const int d = from[at(i)];
      check_dimension("permute", d, Rank);
      detail::require(seen[at(d)]++ == 0, "permute: dimension ", d, " of shape ", shape_, " appears twice");
      shape[at(i)] = dim(d);
      strides[at(i)] = stride(d);
    }
    return {data_, shape, strides};
  }

  /// The element at (i, j, …); indices are checked in debug builds only.
  template <class... I>
  requires(sizeof...(I) == static_cast<std::size_t>(Rank)) T& operator()(I... indices) const {
    return data_[offset(indices...)];
  }

  /// Not to be called: fails to compile, with a message that says what fewer indices may be meant for.
  template <class... I>
  requires(sizeof...(I) != static_cast<std::size_t>(Rank)) T& operator()(I...) const {
    static_assert(sizeof...(I) == static_cast<std::size_t>(Rank),
                  "attn: an element has one index per dimension, as in t(b, h, i, d); t.select(0, b) is a part of a "
                  "tensor, and t.matrix(b, h) a matrix");
    return *data_;
  }

  /// Copies a tensor of rank 1 or 2 into an Eigen matrix, vector or array: `Eigen::MatrixXf w = layer.weight(name);`.
  /// @throws std::invalid_argument if the type has fixed sizes, or is a vector, and the tensor's shape does not fit.
  template <detail::EigenPlain M>
  operator M() const {
    constexpr bool kIsMatrix = Rank <= 2, kIsSame = std::is_same_v<typename M::Scalar, Scalar>;
    static_assert(kIsMatrix,
                  "attn: a tensor of rank 3 or 4 is not a matrix; write t.matrix(i) or t.matrix(i, j) for its last two "
                  "dimensions at these indices");
    static_assert(kIsSame || !kIsMatrix,
                  "attn: this matrix has another scalar type than the tensor; write t.matrix().cast<double>()");
    if constexpr (kIsMatrix && kIsSame) {
      constexpr bool kIsRow = M::RowsAtCompileTime == 1 && M::ColsAtCompileTime != 1;
      Index rows = dim(0), columns = Rank == 2 ? dim(Rank - 1) : 1, down = stride(0), along = stride(Rank - 1);
      if (kIsRow ? columns == 1 : M::ColsAtCompileTime == 1 && rows == 1)
        std::swap(rows, columns), std::swap(down, along);
      const auto fits = [](Index fixed, Index most, Index size) {
        return fixed == Eigen::Dynamic ? most == Eigen::Dynamic || size <= most : fixed == size;
      };
      detail::require(fits(M::RowsAtCompileTime, M::MaxRowsAtCompileTime, rows) &&
                          fits(M::ColsAtCompileTime, M::MaxColsAtCompileTime, columns),
                      "a tensor of shape ", shape_, " does not fit the type of the matrix, which has ",
                      M::RowsAtCompileTime == Eigen::Dynamic ? rows : Index(M::RowsAtCompileTime), " rows and ",
                      M::ColsAtCompileTime == Eigen::Dynamic ? columns : Index(M::ColsAtCompileTime), " columns");
      M copy;
      copy.resize(rows, columns);
      copy = Eigen::Map<const Matrix, Eigen::Unaligned, Eigen::Stride<Eigen::Dynamic, Eigen::Dynamic>>(
          data_, rows, columns, {down, along});
      return copy;
    }
  }

  /// The last two dimensions as an Eigen map, at the given leading indices: `t.matrix(b, h)` for a rank-4 tensor.
  template <class... I>
  requires(Rank >= 2 && sizeof...(I) == static_cast<std::size_t>(Rank - 2)) MatrixMap matrix(I... leading)
  const {
    T* first = size() == 0 ? data_ : data_ + offset(leading...);
    return MatrixMap(first, dim(Rank - 2), dim(Rank - 1),
                     Eigen::Stride<Eigen::Dynamic, Eigen::Dynamic>(stride(Rank - 2), stride(Rank - 1)));
  }

 private:
  void check() {
    detail::check_sizes<Rank>(shape_, sizeof(T));
    detail::require(data_ != nullptr || size() == 0, "the data pointer of a tensor of ", size(),
                    " elements must not be null");
    if (size() == 0) strides_ = {};  // no element to step to, and null pointers must not be advanced
  }

  static constexpr std::size_t at(int d) { return static_cast<std::size_t>(d); }

  void check_dimension(const char* what, int d, int count) const {
    detail::require(0 <= d && d < count, what, ": dimension must be in 0..", count - 1, ", but is ", d,
                    "; the tensor has shape ", shape_);
  }

  TensorView<T, Rank - 1> without(int d, Index offset) const {
    attn::Shape<Rank - 1> shape, strides;
    for (int i = 0, to = 0; i < Rank; ++i) {
      if (i == d) continue;
      shape[at(to)] = dim(i);
      strides[at(to++)] = stride(i);
    }
    return {size() == 0 ? data_ : data_ + offset, shape, strides};
  }

  template <class... I>
  Index offset(I... indices) const {
    Index sum = 0;
    int i = 0;
    ((assert(static_cast<Index>(indices) >= 0 && static_cast<Index>(indices) < dim(i)),
      sum += static_cast<Index>(indices) * stride(i), ++i),
     ...);
    return sum;
  }

  T* data_ = nullptr;
  Shape shape_{};
  Shape strides_{};
};

/// Prints a tensor as matrices, each after its leading indices.
template <class T, int Rank>
std::ostream& operator<<(std::ostream& out, const TensorView<T, Rank>& t) {
  if constexpr (Rank == 1) {
    return out << t.unsqueeze(0).matrix();
  } else if constexpr (Rank == 2) {
    return out << t.matrix();
  } else {
    for (Index i = 0; i < t.dim(0); ++i) {
      if constexpr (Rank == 3)
        out << (i == 0 ? "[" : "\n[") << i << "]\n" << t.select(0, i);
      else
        for (Index j = 0; j < t.dim(1); ++j)
          out << (i + j == 0 ? "[" : "\n[") << i << ", " << j << "]\n" << t.select(0, i).select(0, j);
    }
    return out;
  }
}

namespace detail {

/// Fails to compile, with a message that says what bhsd() and bshd() take.
template <class X>
auto view_of_no_pointer() {
  static_assert(std::is_pointer_v<X>, "attn: bhsd() and bshd() take a pointer to the first element: x.data(), not x");
  return TensorView<float, 4>();
}

/// Fails to compile, with a message that says which sizes bhsd() and bshd() take.
template <class X>
auto view_of_three_sizes() {
  static_assert(sizeof(X) == 0,
                "attn: pass four sizes, bhsd(ptr, batch, heads, len, dim) or bshd(ptr, batch, len, heads, dim); for a "
                "single head, heads is 1");
  return TensorView<float, 4>();
}

}  // namespace detail

/// Returns a view of memory in the order (batch, heads, len, dim), without gaps. Nothing is copied.
template <class T>
TensorView<T, 4> bhsd(T* data, Index batch, Index heads, Index len, Index dim) {
  return {data, {batch, heads, len, dim}};
}

/// Returns a view (batch, heads, len, dim) of memory in the order (batch, len, heads, dim), without gaps. Nothing is
/// copied.
template <class T>
TensorView<T, 4> bshd(T* data, Index batch, Index len, Index heads, Index dim) {
  return TensorView<T, 4>(data, {batch, len, heads, dim}).transpose(1, 2);
}

/// Not to be called: fails to compile, with a message that says that a pointer is expected.
template <class X, class... Size>
requires(std::is_class_v<X>) auto bhsd(const X&, Size...) { return detail::view_of_no_pointer<X>(); }
/// Not to be called: fails to compile, with a message that says that a pointer is expected.
template <class X, class... Size>
requires(std::is_class_v<X>) auto bshd(const X&, Size...) { return detail::view_of_no_pointer<X>(); }
/// Not to be called: fails to compile, with a message that says that a size is missing.
template <class X>
auto bhsd(const X&, Index, Index, Index) {
  return detail::view_of_three_sizes<X>();
}
/// Not to be called: fails to compile, with a message that says that a size is missing.
template <class X>
auto bshd(const X&, Index, Index, Index) {
  return detail::view_of_three_sizes<X>();
}

}  // namespace attn
