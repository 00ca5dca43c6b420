// Random projections of FAVOR+.
#pragma once

#include <cmath>
#include <cstdint>
#include <memory>
#include <numbers>
#include <vector>

#include "attn/core/base/random.h"
#include "attn/core/base/ranges.h"
#include "attn/core/base/sync.h"
#include "attn/tensor.h"

namespace attn::detail {

/// Returns `features` vectors of a normal distribution in `dim` dimensions, (features, dim). Each block of `dim`
/// vectors is made orthogonal by Gram-Schmidt. Each vector then gets the length of an independent draw, so that it is
/// also distributed like one (Choromanski et al. 2021, section 2.4). This function is a template, so that only programs
/// that use its products compile them.
template <class Number = double>
Tensor<Number, 2> favor_vectors(Index features, Index dim, std::uint64_t seed) {
  std::uint64_t counter = 0;
  const auto normal = [&]() -> Number {  // Box & Muller 1958
    const double u = (random_symmetric(seed, counter) + 1) / 2, angle = random_symmetric(seed, counter + 1);
    counter += 2;
    return std::sqrt(-2 * std::log1p(-u)) * std::cos(std::numbers::pi * angle);
  };
  Tensor<Number, 2> w({features, dim});
  for (Index i = 0; i < features; ++i) {
    auto row = w.matrix().row(i);
    const Index block = i / dim * dim;
    Number length = 0, left = 0;
    do {  // the part of the row orthogonal to the rest of the block is 0 with probability 0
      for (Index d = 0; d < dim; ++d) row(d) = normal();
      length = row.norm();
      // Twice, to remove the rounding errors of the first pass.
      for (int round = 0; round < 2; ++round)
        for (Index j = block; j < i; ++j) {
          const auto other = w.matrix().row(j);
          row -= row.dot(other) / other.squaredNorm() * other;
        }
      left = row.norm();
    } while (left < 1e-9 * length || length == 0);
    // Restores the length of an independent draw, that of `row` before it was made orthogonal.
    row *= length / left;
  }
  return w;
}

/// A projection as calls in T use it: `columns` (dim, padded features) and `rows` (features, padded dim), both
/// multiplied by the square root of the scale.
template <class T>
struct FavorProjection {
  Tensor<T, 2> columns, rows;

  FavorProjection(const Tensor<double, 2>& w, long double scale, Index unit)
      : columns({w.dim(1), padded(w.dim(0), unit)}), rows({w.dim(0), padded(w.dim(1), unit)}) {
    const long double root = std::sqrt(scale);
    for (Index i = 0; i < w.dim(0); ++i)
      for (Index d = 0; d < w.dim(1); ++d) rows(i, d) = columns(d, i) = static_cast<T>(root * w(i, d));
  }
};

/// Caches the projections of a map for each scalar type, head_dim and scale: Gram-Schmidt takes O(features *
/// head_dim^2) operations, as many as the attention of O(head_dim) tokens.
class FavorProjections {
 public:
  template <class T>
  std::shared_ptr<const FavorProjection<T>> get(Index features, Index dim, std::uint64_t seed, long double scale,
                                                Index unit) {
    const Lock lock(mutex_);
    for (const Entry& e : entries_)
      if (e.type == &kTypeKey<T> && e.dim == dim && e.scale == scale)
        return std::static_pointer_cast<const FavorProjection<T>>(e.projection);
    auto made = std::make_shared<const FavorProjection<T>>(favor_vectors(features, dim, seed), scale, unit);
    entries_.push_back({&kTypeKey<T>, dim, scale, made});
    return made;
  }

 private:
  // The address of this variable identifies a type without RTTI. It is not constant, because linkers may merge equal
  // constants.
  template <class T>
  inline static char kTypeKey = 0;

  struct Entry {
    char* type;
    Index dim;
    long double scale;
    std::shared_ptr<const void> projection;
  };
  Mutex mutex_;
  std::vector<Entry> entries_;
};

}  // namespace attn::detail
