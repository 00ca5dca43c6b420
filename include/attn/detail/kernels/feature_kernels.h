// Kernels of feature maps, which make features of queries and keys row by row.
#pragma once

#include <bit>

#include "attn/detail/kernels/tile_memory.h"

namespace attn::detail {
inline namespace ATTN_BUILT_FOR {

/// Rows to be written: `columns` numbers of each, a multiple of the vectors' lanes.
template <class T>
struct Block {
  T* data;
  Index stride;
  Index rows;
  Index columns;

  T* row(Index i) const { return data + i * stride; }
  operator Rows<T>() const { return {data, stride}; }

  /// `count` of these rows, from row i on.
  Block from(Index i, Index count) const { return {row(i), stride, count, columns}; }
};

template <class T, int Bytes>
struct FeatureKernels {
  using S = Simd<T, Bytes>;
  using Vec = typename S::Vec;
  static constexpr int kLanes = S::kLanes;

  /// Numbers become x + 1 above 0 and e^x below (Katharopoulos et al. 2020, eq. 7). NaN stays NaN.
  static ATTN_INLINE void elu1(const Block<T>& b) {
    each_vector(b, [](Vec& x) {
      Vec below = x > Vec{} ? Vec{} : x;
      S::exp(below);
      x = x > Vec{} ? x + T(1) : below;
    });
  }
  static ATTN_INLINE void relu(const Block<T>& b) {
    each_vector(b, [](Vec& x) { x = x < Vec{} ? Vec{} : x; });
  }

  /// Numbers become e^(number - less[i]) in row i; infinite beyond what T holds.
  static ATTN_INLINE void exp_less(const Block<T>& b, const T* less) {
    for (Index i = 0; i < b.rows; ++i)
      for (Index c = 0; c < b.columns; c += kLanes) {
        Vec x, infinity;
        S::load(x, b.row(i) + c);
        S::splat(infinity, std::numeric_limits<T>::infinity());
        x -= less[i];
        if constexpr (S::kVector) {
          const Vec given = x;
          S::exp(x);
          x = given > -Exp2Constants<T>::kSmallest ? infinity : x;
        } else {
          x = std::exp(x);
        }
        S::store(b.row(i) + c, x);
      }
  }

  /// Finds the largest number of each row, ignoring NaN.
  static ATTN_INLINE void row_max(const Block<T>& b, T* max) {
    for (Index i = 0; i < b.rows; ++i) {
      Vec most;
      S::splat(most, -std::numeric_limits<T>::infinity());
      for (Index c = 0; c < b.columns; c += kLanes) {
        Vec x;
        S::load(x, b.row(i) + c);
        most = x > most ? x : most;
      }
      max[i] = S::largest(most);
    }
  }

  /// Multiplies each row by a power of two, `factor`, that brings its largest magnitude to 1 .. 2. This is exact,
  /// except where numbers leave the range of normal ones, and these are far below the largest.
  static ATTN_INLINE void balance(const Block<T>& b, T* factor) {
    for (Index i = 0; i < b.rows; ++i) {
      Vec most = {};
      for (Index c = 0; c < b.columns; c += kLanes) {
        Vec x;
        S::load(x, b.row(i) + c);
        x = x < Vec{} ? -x : x;
        most = x > most ? x : most;
      }
      const T f = inverse_power(S::largest(most));
      factor[i] = f;
      for (Index c = 0; c < b.columns; c += kLanes) {
        Vec x;
        S::load(x, b.row(i) + c);
        x *= f;
        S::store(b.row(i) + c, x);
      }
    }
  }

 private:
  template <class Change>
  static ATTN_INLINE void each_vector(const Block<T>& b, const Change& change) {
    for (Index i = 0; i < b.rows; ++i)
      for (Index c = 0; c < b.columns; c += kLanes) {
        Vec x;
        S::load(x, b.row(i) + c);
        change(x);
        S::store(b.row(i) + c, x);
      }
  }

  /// 2^-e for a number from 2^e to 2^(e + 1); 1 for 0 and for what is not finite. The exponent is held within the
  /// powers whose inverse is a normal number.
  static ATTN_INLINE T inverse_power(T x) {
    if (!(x > T(0)) || x > std::numeric_limits<T>::max()) return T(1);
    if constexpr (S::kVector) {
      using Int = typename S::Int;
      constexpr int kBits = Exp2Constants<T>::kMantissaBits;
      constexpr Int kBias = std::numeric_limits<T>::max_exponent - 1;
      const Int e = std::max<Int>(std::bit_cast<Int>(x) >> kBits, 1);
      return std::bit_cast<T>(std::max<Int>(2 * kBias - e, 1) << kBits);
    } else {
      return std::ldexp(T(1), -std::ilogb(x));
    }
  }
};

}  // namespace ATTN_BUILT_FOR
}  // namespace attn::detail
