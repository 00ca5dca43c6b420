// What a worker has in memory: the state of a head, and of a chunk of tokens the rows, the features, and the decays
// between tokens.
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
  Rows<T> keys(const RowsToRead& from, Index count, const Block<T>& raw, const Block<T>& features) const {
    const Index dim = call_.problem.head_dim;
    if (call_.map.is_identity()) return rows(from, count, dim, features.data);
    const Block<T> in = input(from, count, raw, features);
    call_.map.map(kernels_, in, features.from(0, count), nullptr);
    return features;
  }
  /// Features of some queries; where there is no normaliser, times the scale unless that is left to the caller.
  Rows<T> queries(const RowsToRead& from, Index count, const Block<T>& raw, const Block<T>& features, T* factor,
                  bool scaled) const {
    const Index dim = call_.problem.head_dim;
    if (call_.is_normalised) {
      const Block<T> in = input(from, count, raw, features);
      call_.map.map(kernels_, in, features.from(0, count), factor);
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

/// The state of one key and value head: sums (features, v_dim) of key * valueᵀ, and of keys alone where there is a
/// normaliser.
template <class T>
struct HeadState {
  Block<T> sums;
  T* normaliser;

  static HeadState take(ChunkArena<T>& arena, const RecurrenceCall<T>& call) {
    const Block<T> sums = take_block(arena, call.features(), call.row_of_values());
    return {sums, arena.take(call.row_of_features())};
  }
  void clear(const RecurrenceCall<T>& call) const {
    std::fill_n(sums.data, call.size_of_state(), T(0));
    std::fill_n(normaliser, call.row_of_features(), T(0));
  }
  void copy_from(const HeadState& other, const RecurrenceCall<T>& call) const {
    std::copy_n(other.sums.data, call.size_of_state(), sums.data);
    std::copy_n(other.normaliser, call.row_of_features(), normaliser);
  }
};

/// What a segment does to a state: state = decay * state + sums.
template <class T>
struct SegmentSums {
  HeadState<T> sums;  ///< of the segment's own tokens
  T* decay;           ///< (features): of all its gates

  static SegmentSums take(ChunkArena<T>& arena, const RecurrenceCall<T>& call) {
    const Index f = call.row_of_features();
    return {HeadState<T>::take(arena, call), arena.take(f)};
  }

  void clear(const RecurrenceCall<T>& call) const {
    sums.clear(call);
    std::fill_n(decay, call.row_of_features(), T(1));
  }
  /// The segment goes by. A state that is forgotten altogether is not read, so that no NaN of it stays.
  void advance(const RecurrenceFamily<T>& kernels, const RecurrenceCall<T>& call, const HeadState<T>& state) const {
    if (call.gates == Gates::of_tokens && decay[0] == T(0))
      std::copy_n(sums.sums.data, call.size_of_state(), state.sums.data);
    else
      kernels.scale(state.sums, decay, state.sums, sums.sums);
    if (call.is_normalised)
      for (Index f = 0; f < call.features(); ++f) state.normaliser[f] += sums.normaliser[f];
  }
};

/// The decays of features from each of some tokens to the last one: to_i = e^(gate_(i + 1) + .. + gate_(rows - 1)).
template <class T>
void decays_to_last(const RecurrenceFamily<T>& kernels, std::type_identity_t<Rows<T>> gate, const Block<T>& to) {
  const Index last = to.rows - 1;
  std::fill_n(to.row(last), to.columns, T(1));
  if (last > 0)
    kernels.running_sums(to.from(0, last).backward(), {gate.data + last * gate.stride, -gate.stride},
                         Stored::exponential);
}

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

  /// Reads the gates of some tokens of a key and value head. `for_step`: of one token, of which only decay() is wanted.
  void load(const RecurrenceCall<T>& call, const ChunkLoader<T>& loader, Index batch, Index head, Range range,
            bool for_step) {
    const RecurrenceFamily<T>& kernels = loader.kernels();
    const Index n = tokens = range.size();
    if (call.has_delta()) {
      const RowsToRead rows = call.beta.rows(batch, head, range.begin);
      for (Index i = 0; i < n; ++i) beta[i] = load_number<T>(rows, i, 0);
    }
    if (for_step) from_start[0] = 1;
    if (call.gates == Gates::none) return;
    const RowsToRead rows = call.gate.rows(batch, head, range.begin);
    if (call.gates == Gates::of_tokens) {
      for (Index i = 0; i < n; ++i) token[i] = load_number<T>(rows, i, 0);
      if (for_step)
        from_start[0] = std::exp(token[0]);
      else
        kernels.token_decays(token, between.from(0, n), from_start);
      return;
    }
    loader.copy(rows, n, call.features(), gate.data);
    kernels.running_sums(factor.from(0, n).as_row(), gate, Stored::exponential);
    if (!for_step) kernels.running_sums(start.from(0, n), gate, Stored::exponential);
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
