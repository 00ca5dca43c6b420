// Parameters of an additive score, and views for their gradients.
#pragma once

#include <type_traits>

#include "attn/core/tensor/dtype_view.h"
#include "attn/core/tensor/viewable.h"

namespace attn {

/// A view of a score parameter (const T) or of the gradient of a score parameter (T): a matrix (rows, columns) if
/// `kRank` is 2, a vector (columns) if it is 1. If each head has its own parameter, heads are an extra first dimension.
/// A ScoreParameter views an Eigen matrix, vector or map, or a tensor or view, which must outlive it; row and column
/// vectors of Eigen both count as vectors. A default-constructed ScoreParameter stands for an absent parameter.
template <class T, int kRank>
class ScoreParameter {
 public:
  ScoreParameter() = default;

  /// Views `x`, whose elements have type T. If T is float, elements of a parameter may also be 16-bit floats. A
  /// gradient must be writable.
  template <class X>
  requires(detail::Viewable<std::remove_cvref_t<X>>) ScoreParameter(X&& x)  // NOLINT: implicit, as it only views x
      : ScoreParameter(view(x), Form<std::remove_cvref_t<X>>()) {}

  /// Whether the parameter is given.
  bool is_given() const { return view_.data() != nullptr; }
  /// The number of heads with their own parameter; 1 if all heads share it.
  Index heads() const { return view_.dim(1); }
  /// The rows of the matrix; 1 for a vector.
  Index rows() const { return view_.dim(2); }
  /// The columns of the matrix; the length of a vector.
  Index columns() const { return view_.dim(3); }

  /// The parameter as a view (1, heads, rows, columns).
  const detail::DTypeView<T>& tensor() const { return view_; }

 private:
  template <class X>
  struct Form {
    static constexpr bool kIsVector = [] {
      if constexpr (detail::EigenDense<X>) return bool(X::IsVectorAtCompileTime);
      return false;
    }();
  };

  template <class U, int kDims, class F>
  ScoreParameter(const TensorView<U, kDims>& x, F) {
    using Number = std::remove_const_t<T>;
    constexpr bool kIsSame = std::is_same_v<detail::computed_t<std::remove_const_t<U>>, Number>;
    constexpr bool kIsWritable = std::is_const_v<T> || std::is_same_v<U, T>;
    constexpr bool kIsRank = F::kIsVector ? kRank == 1 : kDims == kRank || kDims == kRank + 1;
    static_assert(kIsSame,
                  "attn: the parameters of an additive score must have the scalar type of the query (float and 16-bit "
                  "floats may be mixed); convert with .cast<float>() or .cast<double>()");
    static_assert(kIsWritable || !kIsSame,
                  "attn: the gradient of a parameter must be writable and have the scalar type of the query (float for "
                  "16-bit queries)");
    static_assert(kIsRank,
                  "attn: query_weight and key_weight must be matrices (hidden, features) or rank-3 tensors (heads, "
                  "hidden, features); score_weight and bias must be vectors (hidden) or matrices (heads, hidden)");
    if constexpr (kIsSame && kIsWritable && kIsRank) {
      Shape<4> shape{1, 1, 1, 1}, strides{};
      const int given = F::kIsVector ? 1 : kDims;  // an Eigen vector has an extra dimension of 1
      for (int i = 0; i < given; ++i) {
        const int from = F::kIsVector ? (x.dim(0) == 1 ? 1 : 0) : i;
        // The last dimension is the columns; with one vector per head, the dimension before it is the heads.
        const int to = kRank == 1 && i == given - 2 ? 1 : 4 - given + i;
        shape[static_cast<std::size_t>(to)] = x.dim(from);
        strides[static_cast<std::size_t>(to)] = x.stride(from);
      }
      view_ = TensorView<U, 4>(x.data(), shape, strides);
    }
  }

  detail::DTypeView<T> view_;
};

/// The parameters of an additive score; see additive_attention(). They may be 16-bit if queries are float or 16-bit.
/// Each is shared by all heads, or given per head, with heads as an extra first dimension.
template <class T>
struct AdditiveScore {
  /// (hidden, head_dim): projects queries. If absent, queries already have `hidden` features.
  ScoreParameter<const T, 2> query_weight;
  /// (hidden, key_dim): projects keys; if given per head, one for each head of the keys. If absent, keys already have
  /// `hidden` features, as when linear_into() projects them once for all steps of a decoder.
  ScoreParameter<const T, 2> key_weight;
  /// (hidden): weights of the hyperbolic tangents.
  ScoreParameter<const T, 1> score_weight;
  /// (hidden): added to the sum of projected query and key. If absent, 0.
  ScoreParameter<const T, 1> bias = {};
};

/// Views to which the gradients of the parameters are added; each has the shape of its parameter. Gradients for absent
/// views are discarded.
template <class T>
struct AdditiveScoreGradients {
  ScoreParameter<T, 2> query_weight = {};  ///< like AdditiveScore::query_weight
  ScoreParameter<T, 2> key_weight = {};    ///< like AdditiveScore::key_weight
  ScoreParameter<T, 1> score_weight = {};  ///< like AdditiveScore::score_weight
  ScoreParameter<T, 1> bias = {};          ///< like AdditiveScore::bias
};

}  // namespace attn
