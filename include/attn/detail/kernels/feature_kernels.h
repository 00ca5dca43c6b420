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
  using V = Vec<T, Bytes>;
  static constexpr int kLanes = V::kLanes;

  /// Numbers become x + 1 above 0 and e^x below (Katharopoulos et al. 2020, eq. 7). NaN stays NaN.
  static ATTN_INLINE void elu1(const Block<T>& b) {
    each_vector(b, [](const V& x) { return select(x > V{}, x + T(1), exp(select(x > V{}, V{}, x))); });
  }
  static ATTN_INLINE void relu(const Block<T>& b) {
    each_vector(b, [](const V& x) { return select(x < V{}, V{}, x); });
  }

  /// Numbers become e^(number - less[i]) in row i; infinite beyond what T holds.
  static ATTN_INLINE void exp_less(const Block<T>& b, const T* less) {
    for (Index i = 0; i < b.rows; ++i)
      for (Index c = 0; c < b.columns; c += kLanes) {
        const V x = V::load(b.row(i) + c) - less[i];
        V y = exp(x);
        if constexpr (V::kIsVector)
          y = select(x > -Exp2Constants<T>::kSmallest, V::broadcast(std::numeric_limits<T>::infinity()), y);
        y.store(b.row(i) + c);
      }
  }

  /// Finds the largest number of each row, ignoring NaN.
  static ATTN_INLINE void row_max(const Block<T>& b, T* largest) {
    for (Index i = 0; i < b.rows; ++i) {
      V most = V::broadcast(-std::numeric_limits<T>::infinity());
      for (Index c = 0; c < b.columns; c += kLanes) most = max(V::load(b.row(i) + c), most);
      largest[i] = most.largest();
    }
  }

  /// Multiplies each row by a power of two, `factor`, that brings its largest magnitude to 1 .. 2. This is exact,
  /// except where numbers leave the range of normal ones, and these are far below the largest.
  static ATTN_INLINE void balance(const Block<T>& b, T* factor) {
    for (Index i = 0; i < b.rows; ++i) {
      V most{};
      for (Index c = 0; c < b.columns; c += kLanes) {
        const V x = V::load(b.row(i) + c);
        most = max(select(x < V{}, -x, x), most);
      }
      const T f = inverse_power(most.largest());
      factor[i] = f;
      for (Index c = 0; c < b.columns; c += kLanes) (V::load(b.row(i) + c) * f).store(b.row(i) + c);
    }
  }

 private:
  template <class Change>
  static ATTN_INLINE void each_vector(const Block<T>& b, const Change& change) {
    for (Index i = 0; i < b.rows; ++i)
      for (Index c = 0; c < b.columns; c += kLanes) change(V::load(b.row(i) + c)).store(b.row(i) + c);
  }

  /// 2^-e for a number from 2^e to 2^(e + 1); 1 for 0 and for what is not finite. The exponent is held within the
  /// powers whose inverse is a normal number.
  static ATTN_INLINE T inverse_power(T x) {
    if (!(x > T(0)) || x > std::numeric_limits<T>::max()) return T(1);
    if constexpr (V::kIsVector) {
      using Int = typename V::Int;
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
