// Tensors that own their memory, and views of them.
#pragma once

#include <algorithm>
#include <memory>
#include <new>
#include <type_traits>
#include <utility>

#include "attn/core/base/more_digits.h"
#include "attn/core/base/ranges.h"
#include "attn/eigen_view.h"
#include "attn/mdspan.h"
#include "attn/tensor_view.h"

namespace attn {

/// A tensor that owns its memory: row-major, without gaps, aligned to 64 bytes. Copies are deep; a moved-from tensor is
/// empty. A call that rounds its result may store extra digits in the tensor; copies keep these digits, views do not.
/// @throws std::invalid_argument for a negative size.
template <class T, int Rank>
class Tensor {
  static_assert(std::is_trivially_copyable_v<T>, "attn: elements of a Tensor must be trivially copyable");

 public:
  using Scalar = T;                   ///< the type of the elements
  static constexpr int kRank = Rank;  ///< the number of dimensions
  using Shape = attn::Shape<Rank>;    ///< sizes of all dimensions

  Tensor() = default;

  /// Creates a tensor of zeros.
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
  Tensor(const Tensor& other) : Tensor(TensorView<const T, Rank>(other)) { digits_ = other.digits_; }
  /// Takes the memory of the other tensor, which is empty afterwards.
  Tensor(Tensor&& other) noexcept
      : data_(std::move(other.data_)),
        shape_(std::exchange(other.shape_, Shape{})),
        digits_(std::move(other.digits_)) {}
  /// Assigns a deep copy, or takes the memory of a temporary.
  Tensor& operator=(Tensor other) noexcept {
    data_ = std::move(other.data_);
    shape_ = other.shape_;
    digits_ = std::move(other.digits_);
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
  Index stride(int i) const { return detail::row_major_strides<Rank>(shape_)[static_cast<std::size_t>(i)]; }
  Index size() const { return data_ ? detail::product<Rank>(shape_) : 0; }
  const T* begin() const { return data(); }
  const T* end() const { return data() + size(); }
  /// @}

  /// A view of all elements. It must not outlive the tensor, so view() of a temporary does not compile. A temporary
  /// still converts to a view, so that it can be passed to a function that takes one.
  /// @{
  TensorView<T, Rank> view() & { return {data(), shape_}; }
  TensorView<const T, Rank> view() const& { return {data(), shape_}; }
  auto view() const&& { return detail::view_of_temporary<T, Rank>(); }
  operator TensorView<T, Rank>() { return view(); }
  operator TensorView<const T, Rank>() const { return view(); }
  /// Prints the tensor as TensorView does.
  friend std::ostream& operator<<(std::ostream& out, const Tensor& t) { return out << t.view(); }
  /// Copies a tensor of rank 1 or 2 into an Eigen matrix, vector or array; see TensorView.
  template <detail::EigenPlain M>
  operator M() const {
    return view();
  }
  /// @}

  /// Views, like those of TensorView. They do not compile for a temporary.
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
  /// As above, read-only.
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

  friend detail::DigitsOf;

  std::unique_ptr<T, Free> data_;
  Shape shape_{};
  [[no_unique_address]] detail::DigitsBeside<T> digits_;
};

namespace detail {

template <class T, int Rank>
constexpr bool is_temporary<Tensor<T, Rank>> = true;
template <class T, int Rank>
constexpr bool is_temporary<const Tensor<T, Rank>> = true;

}  // namespace detail

/// Returns the TensorView itself.
template <class T, int Rank>
TensorView<T, Rank> view(TensorView<T, Rank> t) {
  return t;
}
/// Returns a view of all elements of a Tensor.
template <class T, int Rank>
TensorView<T, Rank> view(Tensor<T, Rank>& t) {
  return t.view();
}
/// Returns a view of all elements of a Tensor, read-only.
template <class T, int Rank>
TensorView<const T, Rank> view(const Tensor<T, Rank>& t) {
  return t.view();
}
/// Not to be called: fails to compile, with a message that says why a temporary cannot be viewed.
template <class T, int Rank>
auto view(const Tensor<T, Rank>&&) {
  return detail::view_of_temporary<T, Rank>();
}

}  // namespace attn
