// A feature map bound to a call, which maps rows of queries and keys to rows of features and gradients back, and matrix
// products of blocks of rows.
#pragma once

#include <algorithm>
#include <type_traits>
#include <utility>

#include "attn/feature_maps.h"
#include "attn/recurrent/recurrence_kernels.h"

namespace attn::detail::inline ATTN_BUILT_FOR {

/// The left factor of a product: rows, or transposed rows.
template <class T>
struct LeftFactor {
  const T* data;
  Index row, step;  ///< strides: element (i, s) is data[i * row + s * step]

  LeftFactor(Rows<T> rows) : data(rows.data), row(rows.stride), step(1) {}
  LeftFactor(const Block<T>& rows) : LeftFactor(Rows<T>(rows)) {}

  LeftFactor transposed() const {
    LeftFactor factor = *this;
    std::swap(factor.row, factor.step);
    return factor;
  }
};

/// Computes to = before * to + left * right, where `right` has `steps` rows; see Product.
template <class T>
void matrix_product(const RecurrenceFamily<T>& kernels, const Block<T>& to, std::type_identity_t<LeftFactor<T>> left,
                    std::type_identity_t<Rows<T>> right, Index steps, std::type_identity_t<T> before = 0,
                    Steps taken = Steps::all) {
  kernels.product({to.data, to.stride, left.data, left.row, left.step, right.data, right.stride, to.rows, to.columns,
                   steps, before, taken});
}

/// The type-erased lambda of a map. Calls to it are compiled with the flags of the program, not for an instruction set.
template <class T>
struct NumberMap {
  const void* map = nullptr;
  void (*apply)(const void* map, T* numbers, Index count) = nullptr;
  void (*slopes)(const void* map, T* numbers, Index count) = nullptr;  ///< replaces numbers with the map's slopes

  NumberMap() = default;
  template <class F>
  explicit NumberMap(const F& f)
      : map(&f),
        apply([](const void* m, T* x, Index count) {
          for (Index i = 0; i < count; ++i) x[i] = static_cast<T>((*static_cast<const F*>(m))(x[i]));
        }),
        slopes([](const void* m, T* x, Index count) {
          for (Index i = 0; i < count; ++i) {
            const Dual<T> y = (*static_cast<const F*>(m))(Dual<T>(x[i], T(1)));
            x[i] = y.slope;
          }
        }) {}
};

/// A feature map as the loops call it. Rows passed to it must be padded with zeros to whole cache lines (kRowUnit); the
/// rows that it returns are padded in the same way.
template <class T>
class BoundFeatures {
 public:
  /// `scale` multiplies query * key if the map estimates a softmax; other maps ignore it. Keeps a reference to the map.
  template <class Map>
  BoundFeatures(const Map& map, Index head_dim, long double scale)
      : dim_(head_dim), features_(head_dim), scale_(static_cast<T>(scale)) {
    if constexpr (std::is_same_v<Map, Elu1Features>) kind_ = FeatureKind::elu1;
    if constexpr (std::is_same_v<Map, ReluFeatures>) kind_ = FeatureKind::relu;
    if constexpr (std::is_same_v<Map, FavorFeatures>) {
      kind_ = FeatureKind::favor;
      features_ = map.features;
      projection_ = map.projections->template get<T>(map.features, head_dim, map.seed, scale, kRowUnit<T>);
    }
    if constexpr (requires { map.map; }) {
      kind_ = FeatureKind::lambda;
      lambda_ = NumberMap<T>(map.map);
    }
  }
  /// For gated forms, in which queries and keys are their own features.
  explicit BoundFeatures(Index head_dim) : BoundFeatures(IdentityFeatures(), head_dim, 1) {}

  Index dim() const { return dim_; }
  Index features() const { return features_; }
  bool is_identity() const { return kind_ == FeatureKind::identity; }
  /// Whether features are written apart from the rows they are computed from. Otherwise they overwrite these rows.
  bool is_apart() const { return kind_ == FeatureKind::favor; }

  /// Computes the features of rows x. Those of queries are multiplied by factors, which `factor` receives for
  /// gradients(); it is null for keys.
  void map(const RecurrenceFamily<T>& kernels, const Block<T>& x, const Block<T>& to, T* factor) const {
    if (kind_ == FeatureKind::favor)
      matrix_product(kernels, to, x, {projection_->columns.data(), projection_->columns.dim(1)}, dim_);
    if (kind_ == FeatureKind::lambda)
      for (Index i = 0; i < to.rows; ++i) lambda_.apply(lambda_.map, to.row(i), dim_);
    kernels.make_features({kind_, to, features_, factor, x, scale_});
  }
  /// Computes the features of one row by their definition, without a kernel.
  void define(const T* x, T* to, bool query) const {
    if (kind_ == FeatureKind::favor) return define_favor(x, to, query);
    for (Index d = 0; d < dim_; ++d) {
      T y = x[d];
      if (kind_ == FeatureKind::elu1) y = y > T(0) ? y + 1 : std::exp(y);
      if (kind_ == FeatureKind::relu) y = y < T(0) ? T(0) : y;
      if (kind_ == FeatureKind::lambda) lambda_.apply(lambda_.map, &y, 1);
      to[d] = y;
    }
  }

  /// Computes grad_x from x, its features with their factors (1 if null), and the gradient of the features, which it
  /// overwrites.
  void gradients(const RecurrenceFamily<T>& kernels, const Block<T>& x, Rows<T> of_x, const T* factor,
                 const Block<T>& grad, const Block<T>& grad_x, bool queries) const {
    switch (kind_) {
      case FeatureKind::favor:
        return favor_gradients(kernels, x, of_x, grad, grad_x, queries);
      case FeatureKind::elu1:  // the slope below 0 is the feature itself, which already includes its factor
        return by_numbers(x, grad, grad_x, [&](Index i, Index d, T at) {
          return at > T(0) ? (factor ? factor[i] : T(1)) : of_x.data[i * of_x.stride + d];
        });
      case FeatureKind::relu:
        return by_numbers(x, grad, grad_x,
                          [&](Index i, Index, T at) { return at > T(0) ? (factor ? factor[i] : T(1)) : T(0); });
      case FeatureKind::identity:
        return by_numbers(x, grad, grad_x, [&](Index i, Index, T) { return factor ? factor[i] : T(1); });
      case FeatureKind::lambda:
        for (Index i = 0; i < x.rows; ++i) lambda_.slopes(lambda_.map, x.row(i), dim_);
        return by_numbers(x, grad, grad_x, [&](Index i, Index, T at) { return factor ? factor[i] * at : at; });
    }
  }

 private:
  void define_favor(const T* x, T* to, bool query) const {
    T less = query ? -std::numeric_limits<T>::infinity() : T(0);
    for (Index d = 0; !query && d < dim_; ++d) less += x[d] * x[d] * scale_ / 2;
    for (Index f = 0; f < features_; ++f) {
      to[f] = 0;
      for (Index d = 0; d < dim_; ++d) to[f] += projection_->rows(f, d) * x[d];
      if (query && to[f] > less) less = to[f];
    }
    for (Index f = 0; f < features_; ++f) to[f] = std::exp(to[f] - less);
  }

  template <class Slope>
  void by_numbers(const Block<T>& x, const Block<T>& grad, const Block<T>& grad_x, const Slope& slope) const {
    for (Index i = 0; i < x.rows; ++i)
      for (Index d = 0; d < dim_; ++d) grad_x.row(i)[d] = grad.row(i)[d] * slope(i, d, x.row(i)[d]);
  }

  /// The gradient of feature i with respect to x is feature_i * (w_i - scale * x), where w_i includes the square root
  /// of the scale. For queries, a common factor of all features does not change the result. So the features times their
  /// gradients sum to 0, and the term with x drops out.
  void favor_gradients(const RecurrenceFamily<T>& kernels, const Block<T>& x, Rows<T> of_x, const Block<T>& grad,
                       const Block<T>& grad_x, bool queries) const {
    kernels.multiply(grad, grad, of_x);
    const Tensor<T, 2>& w = projection_->rows;
    matrix_product(kernels, grad_x, grad, {w.data(), w.dim(1)}, features_);
    if (queries) return;
    for (Index i = 0; i < x.rows; ++i) {
      T sum = 0;
      for (Index f = 0; f < features_; ++f) sum += grad.row(i)[f];
      for (Index d = 0; d < dim_; ++d) grad_x.row(i)[d] -= sum * scale_ * x.row(i)[d];
    }
  }

  FeatureKind kind_ = FeatureKind::identity;
  Index dim_, features_;
  T scale_;
  std::shared_ptr<const FavorProjection<T>> projection_;
  NumberMap<T> lambda_;
};

}  // namespace attn::detail::inline ATTN_BUILT_FOR
