// Packing of bf16 into the order that the vector and matrix-unit products read.
#pragma once

#include <algorithm>
#include <cstddef>
#include <utility>

#include "attn/core/base/ranges.h"
#include "attn/core/kernels/bf16/instructions.h"
#include "attn/core/kernels/kernel_table.h"

#if ATTN_BF16
namespace attn::detail::inline ATTN_BUILT_FOR {

/// Here, a `float` holds two bf16 values.
struct Bf16Packing {
  static constexpr Index kColumns = Bf16Instructions::kColumns;

  /// Packs rows back to back, rounded to bf16 and padded with zeros to a multiple of 32 columns. kOthers: rows may hold
  /// types other than float.
  template <class Instructions, bool kOthers>
  ATTN_TARGET_AVX512 static void pack_rows(const RowsToRead& from, Index rows, Index columns, float* to) {
    const Index padded_columns = padded(columns, kColumns);
    auto* const packed = reinterpret_cast<std::byte*>(to);
    if (from.dtype == DType::bf16 && from.column == 1) {
      const auto bytes = static_cast<std::size_t>(2 * columns),
                 rest = static_cast<std::size_t>(2 * padded_columns) - bytes;
      for (Index r = 0; r < rows; ++r) {
        std::byte* const row = packed + r * 2 * padded_columns;
        std::memcpy(row, from.data + r * from.stride * 2, bytes);
        std::memset(row + bytes, 0, rest);
      }
      return;
    }
    alignas(64) Array<float, kKeyTile * kColumns> part;
    for (Index c = 0; c < padded_columns; c += kColumns) {
      const Index count = std::min(kColumns, columns - c);
      const std::byte* const first = from.data + c * from.column * size_of_element<float>(from.dtype);
      Rows<float> floats{part, kColumns};
      if (from.dtype == DType::native && from.column == 1 && count == kColumns)
        floats = {reinterpret_cast<const float*>(first), from.stride};
      else
        load_part<kOthers>({first, from.dtype, from.stride, from.column}, rows, count, part);
      for (Index r = 0; r < rows; ++r) {
        const float* const row = floats.data + r * floats.stride;
        V low = V::load(row);
        const V high = V::load(row + kColumns / 2);
        Instructions::round_to_bf16(low, high);
        low.store(reinterpret_cast<float*>(packed + 2 * (r * padded_columns + c)));
      }
    }
  }

  /// Arranges values for the value product: tiles of 16 columns x 32 keys, all columns of the first 32 keys, then those
  /// of the next 32. The keys are padded with zeros to a multiple of 32; the rows must hold whole tiles of columns.
  ATTN_TARGET_AVX512 static Rows<float> transpose_values(Rows<float> value, Index keys, Index v_dim, float* to) {
    const Index stride = 4 * value.stride, columns = padded(v_dim, kColumns);
    auto* block = reinterpret_cast<std::byte*>(to);
    for (Index j = 0; j < keys; j += kColumns) {
      const auto* row = reinterpret_cast<const std::byte*>(value.data) + j * stride;
      const Index count = std::min(kColumns, keys - j);
      for (Index c = 0; c < columns; c += kBlock, row += 2 * kBlock, block += kBlock * Bf16Instructions::kBytes) {
        if (count == kColumns) {
          transpose_block(row, stride, block);
          continue;
        }
        alignas(64) Array<std::byte, kColumns* 2 * kBlock> filled = {};
        for (Index i = 0; i < count; ++i) std::memcpy(filled + i * 2 * kBlock, row + i * stride, 2 * kBlock);
        transpose_block(filled, 2 * kBlock, block);
      }
    }
    return {to, 0};
  }

  /// Loads four blocks of 16 bytes, `stride` bytes apart.
  template <class Raw>
  ATTN_TARGET_AVX512 static ATTN_INLINE void load_lanes(Raw& x, const void* from, Index stride) {
    const auto* const row = static_cast<const std::byte*>(from);
    Bf16Instructions::load_sixteen(x, row);
    Bf16Instructions::insert_sixteen<1>(x, row + stride);
    Bf16Instructions::insert_sixteen<2>(x, row + 2 * stride);
    Bf16Instructions::insert_sixteen<3>(x, row + 3 * stride);
  }

  /// Pairs up two rows of 32 elements: 16-byte block i has the pairs of columns 8i to 8i + 3 in `low`, and those of
  /// columns 8i + 4 to 8i + 7 in `high`.
  ATTN_TARGET_AVX512 static ATTN_INLINE void pair_up(const std::byte* a, const std::byte* b, std::byte* low,
                                                     std::byte* high) {
    const Words first = *reinterpret_cast<const WordsAnywhere*>(a), second = *reinterpret_cast<const WordsAnywhere*>(b);
    Words x, y;
    interleave(x, y, first, second, std::make_integer_sequence<int, 32>());
    *reinterpret_cast<WordsInMemory*>(low) = x;
    *reinterpret_cast<WordsInMemory*>(high) = y;
  }

  /// Returns elements in column order, 0 to 15 (kFirst 0) or 16 to 31 (kFirst 8). `low` and `high` have one element for
  /// each pair of pair_up().
  template <int kFirst>
  ATTN_TARGET_AVX512 static ATTN_INLINE Vec<float, 64> in_order(const Vec<float, 64>& low, const Vec<float, 64>& high) {
    return fours_in_turn<kFirst>(low, high, std::make_integer_sequence<int, 16>());
  }

 private:
  using V = Vec<float, 64>;
  using Words = Bf16Instructions::Words;
  typedef Words WordsAnywhere __attribute__((may_alias, aligned(1)));
  typedef Words WordsInMemory __attribute__((may_alias));
  static constexpr Index kBlock = 8;  // columns of values that fill 16 bytes
  static_assert(2 * kColumns == Bf16Instructions::kBytes && V::kLanes == Bf16Instructions::kPairs,
                "a row of pairs must fill one vector");

  /// Loads rows of up to 32 columns as floats, padded with zeros.
  template <bool kOthers>
  ATTN_TARGET_AVX512 static void load_part(const RowsToRead& from, Index rows, Index count, float* part) {
    compiled<VectorSet::avx512, PackingKernels<float, 64, kOthers>::pack_rows>(from, rows, count, part);
    // Pads in place, which moves rows apart, so the last row comes first.
    for (Index r = rows; count < kColumns && r-- > 0;) {
      std::copy_backward(part + r * count, part + (r + 1) * count, part + r * kColumns + count);
      std::fill(part + r * kColumns + count, part + (r + 1) * kColumns, 0.0f);
    }
  }

  template <int first, int... e>
  ATTN_TARGET_AVX512 static ATTN_INLINE V fours_in_turn(const V& a, const V& b, std::integer_sequence<int, e...>) {
    return {__builtin_shufflevector(a.raw, b.raw, (first + e / 8 * 4 + e % 4 + e / 4 % 2 * 16)...)};
  }

  /// Interleaves words of a and b: `low` takes those in the lower half of each 16-byte block, `high` those in the upper
  /// half.
  template <int... i>
  ATTN_TARGET_AVX512 static ATTN_INLINE void interleave(Words& low, Words& high, const Words& a, const Words& b,
                                                        std::integer_sequence<int, i...>) {
    low = __builtin_shufflevector(a, b, (i / 8 * 8 + i % 8 / 2 + i % 2 * 32)...);
    high = __builtin_shufflevector(a, b, (i / 8 * 8 + i % 8 / 2 + i % 2 * 32 + 4)...);
  }

  /// Transposes 32 rows of 8 elements to 8 rows of 32. Each vector has 8 elements of four rows that are 8 apart; the
  /// words of pairs of vectors are interleaved three times.
  ATTN_TARGET_AVX512 static ATTN_INLINE void transpose_block(const std::byte* from, Index stride, std::byte* to) {
    constexpr auto kAll = std::make_integer_sequence<int, 32>();
    Array<Words, 8> x, y;
    ATTN_UNROLL for (int i = 0; i < 8; ++i) load_lanes(x[i], from + i * stride, 8 * stride);
    // y[2i], y[2i + 1]: pairs of rows (i, i + 4), columns 0 to 3 and 4 to 7
    ATTN_UNROLL for (int i = 0; i < 4; ++i) interleave(y[2 * i], y[2 * i + 1], x[i], x[i + 4], kAll);
    // x[4i + 2c + e]: rows (i, i + 2, i + 4, i + 6), columns 4c + 2e and the next
    ATTN_UNROLL for (int i = 0; i < 2; ++i) {
      ATTN_UNROLL for (int c = 0; c < 2; ++c)
          interleave(x[4 * i + 2 * c], x[4 * i + 2 * c + 1], y[2 * i + c], y[2 * (i + 2) + c], kAll);
    }
    ATTN_UNROLL for (int c = 0; c < 4; ++c) interleave(y[2 * c], y[2 * c + 1], x[c], x[4 + c], kAll);
    ATTN_UNROLL for (int c = 0; c < 8; ++c) * reinterpret_cast<WordsInMemory*>(to + c * Bf16Instructions::kBytes) =
        y[c];
  }
};

}  // namespace attn::detail::inline ATTN_BUILT_FOR
#endif
