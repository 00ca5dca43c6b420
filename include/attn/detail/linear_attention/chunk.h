// A chunk of tokens in the memory of a worker: its rows, its features, and how its tokens decay towards each other.
#pragma once

#include <cmath>

#include "attn/detail/base/arena.h"
#include "attn/detail/kernels/kernel_table.h"
#include "attn/detail/linear_attention/recurrence_call.h"

namespace attn::detail {
inline namespace ATTN_BUILT_FOR {

/// A worker's memory, in which every array begins on a cache line.
template <class T>
using ChunkArena = Arena<T, kRowUnit<T>>;

template <class T>
Block<T> take_block(ChunkArena<T>& arena, Index rows, Index columns) {
  return {arena.take(rows * columns), columns, rows, columns};
}

/// Reads and writes the rows of all heads.
template <class T>
class ChunkLoader {
 public:
  ChunkLoader(const RecurrenceCall<T>& call, const RecurrenceFamily<T>& kernels, const KernelFamily<T>& packing)
      : call_(call), kernels_(kernels), packing_(packing) {}

  const RecurrenceFamily<T>& kernels() const { return kernels_; }

  /// `count` rows of `dim` numbers where they lie, if kernels can read them there, else copied to `packed` and padded
  /// with zeros.
  Rows<T> rows(const RowsToRead& from, Index count, Index dim, T* packed) const {
    if (from.dtype == DType::native && from.column == 1 && dim % kRowUnit<T> == 0)
      return {reinterpret_cast<const T*>(from.data), from.stride};
    return copy(from, count, dim, packed);
  }
  Rows<T> copy(const RowsToRead& from, Index count, Index dim, T* packed) const {
    const Index stride = padded(dim, kRowUnit<T>);
    if (dim == stride) {
      packing_.pack_rows(from, count, dim, packed);
      return {packed, stride};
    }
    const Index step = from.stride * size_of_number<T>(from.dtype);
    RowsToRead row = from;
    for (Index i = 0; i < count; ++i, row.data += step) {
      packing_.pack_rows(row, 1, dim, packed + i * stride);
      std::fill(packed + i * stride + dim, packed + (i + 1) * stride, T(0));
    }
    return {packed, stride};
  }
  /// Stores `count` rows of `dim` numbers.
  void store(const Block<T>& from, Index count, Index dim, const RowsToWrite& to) const {
    if (dim == from.stride) return packing_.unpack_rows(from.data, count, dim, to);
    const Index step = to.stride * size_of_number<T>(to.dtype);
    RowsToWrite row = to;
    for (Index i = 0; i < count; ++i, row.data += step) packing_.unpack_rows(from.row(i), 1, dim, row);
  }
  /// to = rowsᵀ, `width` columns of which the first `count` are wanted.
  void transpose(T* to, Index width, Rows<T> rows, Index count, Index dim) const {
    packing_.load_columns(to, width, rows, count, dim, T(1));
  }

  /// The features of some keys. `raw` keeps the rows they come from, which gradients need.
  Rows<T> keys(const RowsToRead& from, Index count, const Block<T>& raw, const Block<T>& features, T* scratch) const {
    const Index dim = call_.problem.head_dim;
    if (call_.map.is_identity()) return rows(from, count, dim, features.data);
    const Block<T> in = input(from, count, raw, features);
    call_.map.of_keys(kernels_, in, features.from(0, count), scratch);
    return features;
  }
  /// Features of some queries; where there is no normaliser, times the scale unless that is left to the caller.
  Rows<T> queries(const RowsToRead& from, Index count, const Block<T>& raw, const Block<T>& features, T* factor,
                  bool scaled) const {
    const Index dim = call_.problem.head_dim;
    if (call_.is_normalised) {
      const Block<T> in = input(from, count, raw, features);
      call_.map.of_queries(kernels_, in, features.from(0, count), factor);
      return features;
    }
    if (!scaled || call_.scale == T(1)) return rows(from, count, dim, features.data);
    copy(from, count, dim, features.data);
    packing_.multiply(features.data, features.data, count * features.stride, call_.scale);
    return features;
  }

 private:
  /// The rows that features are made of, where the map wants them.
  Block<T> input(const RowsToRead& from, Index count, const Block<T>& raw, const Block<T>& features) const {
    const Block<T>& to = call_.map.is_apart() ? raw : features;
    copy(from, count, call_.problem.head_dim, to.data);
    return to.from(0, count);
  }

  const RecurrenceCall<T>& call_;
  const RecurrenceFamily<T>& kernels_;
  const KernelFamily<T>& packing_;
};

/// The gates of the tokens of a chunk, and the decays that they make.
template <class T>
struct ChunkGates {
  T* from_start;     ///< (tokens): of a token gate, from before the chunk to each token
  Block<T> between;  ///< (tokens, tokens): of a token gate, from token j to token i at row i, column j <= i
  Block<T> gate;     ///< (tokens, features): of a feature gate, itself
  Block<T> factor;   ///< (tokens, features): of a feature gate, e^gate
  Block<T> start;    ///< (tokens, features): of a feature gate, as from_start
  T* token;          ///< (tokens): of a token gate, itself
  T* beta;           ///< (tokens)
  Index tokens = 0;

  static ChunkGates take(ChunkArena<T>& arena, const RecurrenceCall<T>& call) {
    const bool by_token = call.gates == Gates::of_tokens, by_feature = call.gates == Gates::of_features;
    const Index row = call.row_of_features();
    const auto rows = [&] { return take_block(arena, by_feature ? kChunk : 0, row); };
    return {arena.take(kChunk),
            take_block(arena, by_token ? kChunk : 0, kChunk),
            rows(),
            rows(),
            rows(),
            arena.take(kChunk),
            arena.take(kChunk)};
  }

  /// Reads the gates of some tokens of a key and value head.
  void load(const RecurrenceCall<T>& call, const ChunkLoader<T>& loader, Index batch, Index head, Range range) {
    const RecurrenceFamily<T>& kernels = loader.kernels();
    const Index n = tokens = range.size();
    if (call.has_delta()) {
      const RowsToRead rows = call.beta.rows(batch, head, range.begin);
      for (Index i = 0; i < n; ++i) beta[i] = load_number<T>(rows, i, 0);
    }
    if (call.gates == Gates::none) return;
    const RowsToRead rows = call.gate.rows(batch, head, range.begin);
    if (call.gates == Gates::of_tokens) {
      for (Index i = 0; i < n; ++i) token[i] = load_number<T>(rows, i, 0);
      kernels.decays(token, between.from(0, n), from_start);
      return;
    }
    loader.copy(rows, n, call.features(), gate.data);
    loader.copy(rows, n, call.features(), factor.data);
    std::fill_n(token, n, T(0));
    kernels.exp_less(factor.from(0, n), token);
    kernels.decays_from(gate, start.from(0, n));
  }

  /// Reads the gates of one token, of which only decay() is wanted.
  void load_token(const RecurrenceCall<T>& call, const ChunkLoader<T>& loader, Index batch, Index head, Index at) {
    tokens = 1;
    if (call.has_delta()) beta[0] = load_number<T>(call.beta.rows(batch, head, at), 0, 0);
    from_start[0] = 1;
    if (call.gates == Gates::none) return;
    const RowsToRead rows = call.gate.rows(batch, head, at);
    if (call.gates == Gates::of_tokens) {
      from_start[0] = std::exp(load_number<T>(rows, 0, 0));
      return;
    }
    loader.copy(rows, 1, call.features(), factor.data);
    token[0] = 0;
    loader.kernels().exp_less(factor.from(0, 1), token);
  }
  /// What a step multiplies the state by: a number for each feature, or one for all.
  const T* decay(bool of_features) const { return of_features ? factor.data : from_start; }

  /// The factor by which the state decays over all tokens, for each feature or for all.
  const T* over_all() const { return start.row(tokens - 1); }
  T over_all_of_token() const { return from_start[tokens - 1]; }
  /// The decay from each token to the last one, of a token gate.
  const T* to_end() const { return between.row(tokens - 1); }
};

}  // namespace ATTN_BUILT_FOR
}  // namespace attn::detail
