// The parameters of an additive score, and where their gradients go.
#pragma once

#include <type_traits>

#include "attn/detail/tensor/dtype_view.h"
#include "attn/detail/tensor/viewable.h"

namespace attn {

/// A parameter that a call only reads, or a gradient of one: a matrix (rows, columns) for `kRank` 2, a vector (columns)
/// for 1, or one for each head, with heads as the first dimension. It views an Eigen matrix, vector or map, or a tensor
/// or view, which must outlive it; an Eigen vector is one vector, whichever way it lies. Without arguments there is no
/// parameter.
template <class T, int kRank>
class ScoreParameter {
 public:
  ScoreParameter() = default;

  /// Views what `x` holds: the scalar of T, or 16 bits where that is float. A gradient must be writable.
  template <class X>
  requires(detail::Viewable<std::remove_cvref_t<X>>) ScoreParameter(X&& x)  // NOLINT: another way to see the same
      : ScoreParameter(view(x), Form<std::remove_cvref_t<X>>()) {}

  /// Whether there is a parameter.
  bool is_given() const { return view_.data() != nullptr; }
  /// How many heads have a parameter of their own. 1: all heads share it.
  Index heads() const { return view_.dim(1); }
  /// The rows of the matrix; 1 for a vector.
  Index rows() const { return view_.dim(2); }
  /// The columns of the matrix; the length of a vector.
  Index columns() const { return view_.dim(3); }

  /// The view (1, heads, rows, columns).
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
    static_assert(
        kIsSame,
        "attn: parameters of an additive score must hold the scalar type of the query, or floats of 32 and 16 "
        "bits; convert with .cast<float>() or .cast<double>()");
    static_assert(kIsWritable || !kIsSame,
                  "attn: the gradient of a parameter must be writable and hold the scalar type of the query, float for "
                  "those of 16 bits");
    static_assert(kIsRank,
                  "attn: query_weight and key_weight are matrices (hidden, features) or rank-3 tensors (heads, hidden, "
                  "features); score_weight and bias are vectors (hidden) or matrices (heads, hidden)");
    if constexpr (kIsSame && kIsWritable && kIsRank) {
      Shape<4> shape{1, 1, 1, 1}, strides{};
      const int given = F::kIsVector ? 1 : kDims;  // an Eigen vector has a dimension of 1 more
      for (int i = 0; i < given; ++i) {
        const int from = F::kIsVector ? (x.dim(0) == 1 ? 1 : 0) : i;
        // The last dimension is the columns; in a list of vectors, the one before is the heads.
        const int to = kRank == 1 && i == given - 2 ? 1 : 4 - given + i;
        shape[static_cast<std::size_t>(to)] = x.dim(from);
        strides[static_cast<std::size_t>(to)] = x.stride(from);
      }
      view_ = TensorView<U, 4>(x.data(), shape, strides);
    }
  }

  detail::DTypeView<T> view_;
};

/// What an additive score is made of; see additive_attention(). Parameters may be in 16 bits where queries are floats
/// or in 16 bits. Each is shared by all heads, or there is one for each head in a dimension before the others.
template <class T>
struct AdditiveScore {
  /// (hidden, head_dim): what queries are multiplied by. None: queries have `hidden` features already.
  ScoreParameter<const T, 2> query_weight;
  /// (hidden, key_dim), for each head of the keys: what keys are multiplied by. None: keys have `hidden` features
  /// already, as where linear_into() multiplies them once for the many steps of a decoder.
  ScoreParameter<const T, 2> key_weight;
  /// (hidden): what the hyperbolic tangents are multiplied by.
  ScoreParameter<const T, 1> score_weight;
  /// (hidden): what is added to queries and keys. None: 0.
  ScoreParameter<const T, 1> bias = {};
};

/// Where gradients of the parameters are added, shaped as the parameters. Those that are not given are not wanted.
template <class T>
struct AdditiveScoreGradients {
  ScoreParameter<T, 2> query_weight = {};  ///< like AdditiveScore::query_weight
  ScoreParameter<T, 2> key_weight = {};    ///< like AdditiveScore::key_weight
  ScoreParameter<T, 1> score_weight = {};  ///< like AdditiveScore::score_weight
  ScoreParameter<T, 1> bias = {};          ///< like AdditiveScore::bias
};

}  // namespace attn
