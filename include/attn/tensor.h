// Tensors that own their memory, and views of Eigen's matrices and tensors.
#pragma once

#include <algorithm>
#include <concepts>
#include <memory>
#include <new>
#include <type_traits>
#include <utility>

#include <Eigen/Core>

#include "attn/mdspan.h"
#include "attn/tensor_view.h"

namespace attn {

namespace detail {

constexpr Index kAlignment = 64;  // bytes: one cache line, and the widest vector register there is

/// Says in one sentence why a temporary has no view.
template <class T, int Rank>
auto view_of_temporary() {
  static_assert(sizeof(T) == 0,
                "attn: this tensor is a temporary, whose memory is gone at the end of the line; give it a name, and "
                "view that");
  return TensorView<T, Rank>();
}

}  // namespace detail

/// A tensor that owns its memory: row-major, without gaps, aligned to 64 bytes. Copies are deep; a tensor that was
/// moved from is empty.
/// @throws std::invalid_argument for a negative size.
template <class T, int Rank>
class Tensor {
  static_assert(std::is_trivially_copyable_v<T>, "attn: Tensor holds plain numbers only");

 public:
  using Scalar = T;                   ///< the type of the elements
  static constexpr int kRank = Rank;  ///< the number of dimensions
  using Shape = attn::Shape<Rank>;    ///< sizes of all dimensions

  Tensor() = default;

  /// All elements zero.
  explicit Tensor(const Shape& shape) : Tensor(uninitialized(shape)) { std::fill_n(data(), size(), T(0)); }

  /// A deep copy of any view, row-major and without gaps.
  explicit Tensor(const TensorView<const T, Rank>& from) : Tensor(uninitialized(from.shape())) {
    T* to = data();
    if (from.is_contiguous())
      std::copy_n(from.data(), size(), to);
    else
      copy_dimension<0>(from.data(), from, to);
  }

  /// A deep copy.
  Tensor(const Tensor& other) : Tensor(TensorView<const T, Rank>(other)) {}
  /// Takes the memory of the other, which is empty afterwards.
  Tensor(Tensor&& other) noexcept : data_(std::move(other.data_)), shape_(std::exchange(other.shape_, Shape{})) {}
  /// Takes a deep copy, or the memory of a temporary.
  Tensor& operator=(Tensor other) noexcept {
    data_ = std::move(other.data_);
    shape_ = other.shape_;
    return *this;
  }
  ~Tensor() = default;

  /// A tensor whose elements are indeterminate.
  static Tensor uninitialized(const Shape& shape) {
    detail::check_sizes<Rank>(shape, sizeof(T));
    Tensor t;
    t.shape_ = shape;
    const Index n = detail::product<Rank>(shape);
    if (n > 0)
      t.data_.reset(static_cast<T*>(
          ::operator new(static_cast<std::size_t>(n) * sizeof(T), std::align_val_t(detail::kAlignment))));
    return t;
  }

  /// The elements, row-major, and the sizes: see TensorView.
  /// @{
  T* data() { return data_.get(); }
  const T* data() const { return data_.get(); }
  const Shape& shape() const { return shape_; }
  Index dim(int i) const { return shape_[static_cast<std::size_t>(i)]; }
  Index size() const { return data_ ? detail::product<Rank>(shape_) : 0; }
  /// @}

  /// A view of all elements. It must not outlive the tensor, so a temporary has none: its view would point to memory
  /// that is gone. A temporary converts to a view only because it may be passed to a function that takes one.
  /// @{
  TensorView<T, Rank> view() & { return {data(), shape_}; }
  TensorView<const T, Rank> view() const& { return {data(), shape_}; }
  auto view() const&& { return detail::view_of_temporary<T, Rank>(); }
  operator TensorView<T, Rank>() { return view(); }
  operator TensorView<const T, Rank>() const { return view(); }
  /// @}

  /// Views, as those of TensorView. A temporary has none.
  /// @{
  template <class... I>
  auto reshape(I... sizes) & {
    return view().reshape(sizes...);
  }
  template <class... I>
  auto reshape(I... sizes) const& {
    return view().reshape(sizes...);
  }
  template <class... I>
  auto reshape(I...) const&& {
    return detail::view_of_temporary<T, Rank>();
  }
  TensorView<T, Rank> slice(int d, Index begin, Index end) & { return view().slice(d, begin, end); }
  TensorView<const T, Rank> slice(int d, Index begin, Index end) const& { return view().slice(d, begin, end); }
  auto slice(int, Index, Index) const&& { return detail::view_of_temporary<T, Rank>(); }
  TensorView<T, Rank - 1> select(int d, Index i) & { return view().select(d, i); }
  TensorView<const T, Rank - 1> select(int d, Index i) const& { return view().select(d, i); }
  auto select(int, Index) const&& { return detail::view_of_temporary<T, Rank>(); }
  TensorView<T, Rank - 1> squeeze(int d) & { return view().squeeze(d); }
  TensorView<const T, Rank - 1> squeeze(int d) const& { return view().squeeze(d); }
  auto squeeze(int) const&& { return detail::view_of_temporary<T, Rank>(); }
  TensorView<T, Rank + 1> unsqueeze(int d) & { return view().unsqueeze(d); }
  TensorView<const T, Rank + 1> unsqueeze(int d) const& { return view().unsqueeze(d); }
  auto unsqueeze(int) const&& { return detail::view_of_temporary<T, Rank>(); }
  TensorView<T, Rank> transpose(int a, int b) & { return view().transpose(a, b); }
  TensorView<const T, Rank> transpose(int a, int b) const& { return view().transpose(a, b); }
  auto transpose(int, int) const&& { return detail::view_of_temporary<T, Rank>(); }
  template <class... I>
  TensorView<T, Rank> permute(I... dimensions) & {
    return view().permute(dimensions...);
  }
  template <class... I>
  TensorView<const T, Rank> permute(I... dimensions) const& {
    return view().permute(dimensions...);
  }
  template <class... I>
  auto permute(I...) const&& {
    return detail::view_of_temporary<T, Rank>();
  }
  /// @}

  /// The element at (i, j, …); indices are checked in debug builds only.
  /// @{
  template <class... I>
  T& operator()(I... indices) {
    return view()(indices...);
  }
  template <class... I>
  const T& operator()(I... indices) const {
    return view()(indices...);
  }
  /// @}

  /// The last two dimensions as an Eigen map; see TensorView::matrix.
  template <class... I>
  auto matrix(I... leading) {
    return view().matrix(leading...);
  }
  /// As above, to read.
  template <class... I>
  auto matrix(I... leading) const {
    return view().matrix(leading...);
  }

 private:
  struct Free {
    void operator()(T* p) const { ::operator delete(p, std::align_val_t(detail::kAlignment)); }
  };

  template <int D>
  static void copy_dimension(const T* from, const TensorView<const T, Rank>& layout, T*& to) {
    for (Index i = 0; i < layout.dim(D); ++i, from += layout.stride(D)) {
      if constexpr (D + 1 < Rank)
        copy_dimension<D + 1>(from, layout, to);
      else
        *to++ = *from;
    }
  }

  std::unique_ptr<T, Free> data_;
  Shape shape_{};
};

namespace detail {

/// Says in one sentence what bhsd() and bshd() take.
template <class X>
auto view_of_no_pointer() {
  static_assert(std::is_pointer_v<X>, "attn: bhsd() and bshd() take a pointer to the first element: x.data(), not x");
  return TensorView<float, 4>();
}

}  // namespace detail

/// The view of memory in the order (batch, heads, len, dim), without gaps. Nothing is copied.
template <class T>
TensorView<T, 4> bhsd(T* data, Index batch, Index heads, Index len, Index dim) {
  return {data, {batch, heads, len, dim}};
}

/// The view (batch, heads, len, dim) of memory in the order (batch, len, heads, dim), without gaps. Nothing is copied.
template <class T>
TensorView<T, 4> bshd(T* data, Index batch, Index len, Index heads, Index dim) {
  return TensorView<T, 4>(data, {batch, len, heads, dim}).transpose(1, 2);
}

/// Not to be called: does not compile, and says that a pointer is wanted.
template <class X>
requires(std::is_class_v<X>) auto bhsd(const X&, Index, Index, Index, Index) { return detail::view_of_no_pointer<X>(); }
/// Not to be called: does not compile, and says that a pointer is wanted.
template <class X>
requires(std::is_class_v<X>) auto bshd(const X&, Index, Index, Index, Index) { return detail::view_of_no_pointer<X>(); }

namespace detail {

template <class X>
concept EigenDense = requires(const std::remove_cvref_t<X>& x) {
  []<class D>(const Eigen::DenseBase<D>&) {}(x);
};

// Eigen's own tensors are recognised by their members, so that their header need not be included.
template <class X>
concept EigenTensor = !EigenDense<X> && requires(X & x) {
  x.data();
  x.dimensions();
  { std::remove_cvref_t<X>::NumDimensions } -> std::convertible_to<int>;
  { std::remove_cvref_t<X>::Layout } -> std::convertible_to<int>;
};

// The pointer is to const if the object is const, or if it maps const memory (Map<const …>).
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

/// Whether an X, deduced from X&&, is a temporary that owns its numbers, which end with it.
template <class X>
constexpr bool is_temporary = false;
template <class X>
requires(!std::is_reference_v<X> && (EigenTensor<X> || EigenDense<X>)) constexpr bool is_temporary<X> = [] {
  if constexpr (EigenTensor<X>) return requires(X & x) {
      x.resize(x.dimensions());
    };  // maps cannot be resized
  else
    return std::is_base_of_v<Eigen::PlainObjectBase<std::remove_const_t<X>>, X>;
}();
template <class T, int Rank>
constexpr bool is_temporary<Tensor<T, Rank>> = true;
template <class T, int Rank>
constexpr bool is_temporary<const Tensor<T, Rank>> = true;

}  // namespace detail

/// The view of a TensorView is the same view; the view of a Tensor is that of its elements.
template <class T, int Rank>
TensorView<T, Rank> view(TensorView<T, Rank> t) {
  return t;
}
/// The view of all elements of a Tensor.
template <class T, int Rank>
TensorView<T, Rank> view(Tensor<T, Rank>& t) {
  return t.view();
}
/// The view of all elements of a Tensor, to read.
template <class T, int Rank>
TensorView<const T, Rank> view(const Tensor<T, Rank>& t) {
  return t.view();
}
/// Not to be called: does not compile, and says that a temporary has no view.
template <class T, int Rank>
auto view(const Tensor<T, Rank>&&) {
  return detail::view_of_temporary<T, Rank>();
}

/// The view (rows, cols) of an Eigen matrix, array, map, block or transpose, whatever its storage order. Nothing is
/// copied, and the object must outlive the view. Expressions without memory of their own (sums, products) do not
/// compile: evaluate them first.
template <detail::EigenDense X>
auto view(X&& x) {
  static_assert(detail::has_memory<X>,
                "attn::view: this Eigen expression has no memory of its own; evaluate it first, e.g. with .eval()");
  if constexpr (detail::is_temporary<X>) {
    return detail::view_of_temporary<typename X::Scalar, 2>();
  } else {
    constexpr bool row_major = std::remove_cvref_t<X>::IsRowMajor;
    const Index inner = x.innerStride(), outer = x.outerStride();
    using View = TensorView<detail::element_t<X>, 2>;
    return View(x.data(), {x.rows(), x.cols()}, {row_major ? outer : inner, row_major ? inner : outer});
  }
}

/// The view of an Eigen::Tensor or TensorMap with the same indices, in either layout.
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
