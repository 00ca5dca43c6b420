// A worker's memory for a recurrence: the state of a head, and the rows, features and decays of a chunk of tokens.
#pragma once

#include <cmath>

#include "attn/core/base/arena.h"
#include "attn/core/kernels/kernel_table.h"
#include "attn/recurrent/recurrence_call.h"

namespace attn::detail::inline ATTN_BUILT_FOR {

/// A worker's memory. Every array in it begins on a cache line.
template <class T>
using ChunkArena = Arena<T, kRowUnit<T>>;

template <class T>
Block<T> take_block(ChunkArena<T>& arena, Index rows, Index columns) {
  return {arena.take(rows * columns), columns, rows, columns};
}

/// Copies rows of `dim` elements to rows `stride` apart, padded with zeros.
template <class T>
void copy_rows(const KernelFamily<T>& packing, RowsToRead from, Index count, Index dim, T* to, Index stride) {
  if (dim == stride) return packing.pack_rows(from, count, dim, to);
  const Index step = from.stride * size_of_element<T>(from.dtype);
  for (Index i = 0; i < count; ++i, from.data += step, to += stride) {
    packing.pack_rows(from, 1, dim, to);
    std::fill(to + dim, to + stride, T(0));
  }
}
/// Stores rows of `dim` elements.
template <class T>
void store_rows(const KernelFamily<T>& packing, const Block<T>& from, Index count, Index dim, RowsToWrite to) {
  if (dim == from.stride) return packing.unpack_rows(from.data, count, dim, to);
  const Index step = to.stride * size_of_element<T>(to.dtype);
  for (Index i = 0; i < count; ++i, to.data += step) packing.unpack_rows(from.row(i), 1, dim, to);
}

/// Reads and writes the rows of all heads.
template <class T>
class ChunkLoader {
 public:
  ChunkLoader(const RecurrenceCall<T>& call, const RecurrenceFamily<T>& kernels, const KernelFamily<T>& packing)
      : call_(call), kernels_(kernels), packing_(packing) {}

  const RecurrenceFamily<T>& kernels() const { return kernels_; }

  /// Returns `count` rows of `dim` elements, in place if kernels can read them there, otherwise copied to `packed` and
  /// padded with zeros.
  Rows<T> rows(const RowsToRead& from, Index count, Index dim, T* packed) const {
    if (from.dtype == DType::native && from.column == 1 && dim % kRowUnit<T> == 0)
      return {reinterpret_cast<const T*>(from.data), from.stride};
    return copy(from, count, dim, packed);
  }
  Rows<T> copy(const RowsToRead& from, Index count, Index dim, T* packed) const {
    const Index stride = padded(dim, kRowUnit<T>);
    copy_rows(packing_, from, count, dim, packed, stride);
    return {packed, stride};
  }
  /// Stores `count` rows of `dim` elements.
  void store(const Block<T>& from, Index count, Index dim, const RowsToWrite& to) const {
    store_rows(packing_, from, count, dim, to);
  }
  /// Computes to = rowsᵀ, with `width` columns of which the first `count` are needed.
  void transpose(T* to, Index width, Rows<T> rows, Index count, Index dim) const {
    packing_.load_columns(to, width, rows, count, dim, T(1));
  }

  /// Returns the features of some keys. `raw` receives the rows they are computed from, if the map does not overwrite
  /// them.
  Rows<T> keys(const RowsToRead& from, Index count, const Block<T>& raw, const Block<T>& features) const {
    const Index dim = call_.problem.head_dim;
    if (call_.map.is_identity()) return rows(from, count, dim, features.data);
    const Block<T> in = input(from, count, raw, features);
    call_.map.map(kernels_, in, features.from(0, count), nullptr);
    return features;
  }
  /// Returns the features of some queries. Without a normaliser they are multiplied by the scale; unless `scaled`, that
  /// is left to the caller.
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
  /// Copies the rows that features are computed from into the memory from which the map reads them.
  Block<T> input(const RowsToRead& from, Index count, const Block<T>& raw, const Block<T>& features) const {
    const Block<T>& to = call_.map.is_apart() ? raw : features;
    copy(from, count, call_.problem.head_dim, to.data);
    return to.from(0, count);
  }

  const RecurrenceCall<T>& call_;
  const RecurrenceFamily<T>& kernels_;
  const KernelFamily<T>& packing_;
};

/// The state of one head of keys and values: sums (features, v_dim) of key * valueᵀ, and of keys alone if there is a
/// normaliser.
template <class T>
struct HeadState {
  Block<T> sums;
  T* normaliser;

  static HeadState take(ChunkArena<T>& arena, const RecurrenceCall<T>& call) {
    const Block<T> sums = take_block(arena, call.features(), call.row_of_values());
    return {sums, arena.take(call.row_of_features())};
  }
  /// A state in memory that already exists.
  static HeadState in(const StateMemory<T>& memory, const RecurrenceCall<T>& call) {
    const Index v = call.row_of_values();
    return {{memory.sums, v, call.features(), v}, memory.normaliser};
  }
  void clear(const RecurrenceCall<T>& call) const {
    std::fill_n(sums.data, call.size_of_state(), T(0));
    std::fill_n(normaliser, call.row_of_features(), T(0));
  }
  void copy_from(const StateMemory<const T>& other, const RecurrenceCall<T>& call) const {
    std::copy_n(other.sums, call.size_of_state(), sums.data);
    std::copy_n(other.normaliser, call.row_of_features(), normaliser);
  }
  operator StateMemory<const T>() const { return {sums.data, normaliser}; }
};

/// The effect of a segment on a state: state = decay * state + sums.
template <class T>
struct SegmentSums {
  HeadState<T> sums;  ///< of the segment's own tokens
  T* decay;           ///< (features): over all its tokens

  static SegmentSums take(ChunkArena<T>& arena, const RecurrenceCall<T>& call) {
    const Index f = call.row_of_features();
    return {HeadState<T>::take(arena, call), arena.take(f)};
  }

  void clear(const RecurrenceCall<T>& call) const {
    sums.clear(call);
    std::fill_n(decay, call.row_of_features(), T(1));
  }
  /// Advances a state past the segment. With token gates, a state with decay 0 is not read, so that none of its NaNs
  /// remain.
  void advance(const RecurrenceFamily<T>& kernels, const RecurrenceCall<T>& call, const HeadState<T>& state) const {
    if (call.gates == Gates::of_tokens && decay[0] == T(0))
      std::copy_n(sums.sums.data, call.size_of_state(), state.sums.data);
    else
      kernels.scale(state.sums, decay, state.sums, sums.sums);
    if (call.is_normalised)
      for (Index f = 0; f < call.features(); ++f) state.normaliser[f] += sums.normaliser[f];
  }
};

/// Computes the decays of features from each of some tokens to the last one, given the decay of each token: to_i =
/// factor_(i + 1) * .. * factor_(rows - 1).
template <class T>
void decays_to_last(const RecurrenceFamily<T>& kernels, std::type_identity_t<Rows<T>> factor, const Block<T>& to) {
  const Index last = to.rows - 1;
  std::fill_n(to.row(last), to.columns, T(1));
  if (last > 0)
    kernels.running(to.from(0, last).backward(), {factor.data + last * factor.stride, -factor.stride},
                    Running::products);
}

/// Ranges of 2 * 16 and of 2 * 32 tokens of a chunk are halved, see gated_scores().
constexpr int kHalvings = 2;
static_assert(kNearTokens << kHalvings == kChunk);

/// Half of a range of tokens of a chunk, and the tokens of the other half.
struct HalvedRange {
  int halving;          ///< the range has 2 * kNearTokens << halving tokens
  Index begin, middle;  ///< of the keys
  Index queries;        ///< from the middle on
  Index half() const { return middle - begin; }
};
/// Calls visit(range) for all ranges whose second half has some of `queries` tokens.
template <class Visit>
void for_each_range(Index queries, const Visit& visit) {
  for (int h = 0; h < kHalvings; ++h) {
    const Index half = kNearTokens << h;
    for (Index begin = 0; begin + half < queries; begin += 2 * half)
      visit(HalvedRange{h, begin, begin + half, std::min(half, queries - begin - half)});
  }
}

/// The gates of the tokens of a chunk, and the resulting decays.
template <class T>
struct ChunkGates {
  T* from_start;     ///< (tokens): with token gates, decays from before the chunk to each token
  Block<T> between;  ///< (tokens, tokens): with token gates, decay from token j to token i at row i, column j <= i
  Block<T> factor;   ///< (tokens, features): with feature gates, e^gate
  Block<T> start;    ///< (tokens, features): with feature gates, as from_start
  Block<T> to_end;   ///< (tokens, features): with feature gates, decays from each token to the last one
  Block<T> to_middle[kHalvings];  ///< (tokens, features): decays between each token and the middle of its range
  T* token;                       ///< (tokens): token gates
  T* of_token;                    ///< (tokens): with token gates, e^gate
  T* written;                     ///< (tokens): factor of the values that depend on the state: -beta, or 1 without beta
  Index tokens = 0;

  static ChunkGates take(ChunkArena<T>& arena, const RecurrenceCall<T>& call) {
    const bool by_token = call.gates == Gates::of_tokens, by_feature = call.gates == Gates::of_features;
    const Index row = call.row_of_features();
    ChunkGates g;
    g.between = take_block(arena, by_token ? kChunk : 0, kChunk);
    for (Block<T>* rows : {&g.factor, &g.start, &g.to_end, &g.to_middle[0], &g.to_middle[1]})
      *rows = take_block(arena, by_feature ? kChunk : 0, row);
    for (T** numbers : {&g.from_start, &g.token, &g.of_token, &g.written}) *numbers = arena.take(kChunk);
    return g;
  }

  /// Loads the gates of some tokens of a head of keys and values. `for_step`: there is one token, of which only decay()
  /// is needed.
  void load(const RecurrenceCall<T>& call, const ChunkLoader<T>& loader, Index batch, Index head, Range range,
            bool for_step) {
    const RecurrenceFamily<T>& kernels = loader.kernels();
    const Index n = tokens = range.size();
    std::fill_n(written, n, T(1));
    if (call.has_beta()) {
      const RowsToRead rows = call.beta.rows(batch, head, range.begin);
      for (Index i = 0; i < n; ++i) written[i] = -load_number<T>(rows, i, 0);
    }
    of_token[0] = 1;
    if (call.gates == Gates::none) return;
    const RowsToRead rows = call.gate.rows(batch, head, range.begin);
    if (call.gates == Gates::of_tokens) {
      for (Index i = 0; i < n; ++i) token[i] = load_number<T>(rows, i, 0);
      if (for_step) {
        of_token[0] = std::exp(token[0]);
        return;
      }
      kernels.token_decays(token, between.from(0, n), from_start);
      for (Index i = 0; i < n; ++i) of_token[i] = i == 0 ? from_start[0] : between.row(i)[i - 1];
      return;
    }
    loader.copy(rows, n, call.features(), factor.data);
    kernels.exponentials(factor.from(0, n));
    if (for_step) return;
    kernels.running(start.from(0, n), factor, Running::products);
    decays_to_last(kernels, factor, to_end.from(0, n));
    for_each_range(n, [&](const HalvedRange& r) {
      const Block<T>& to = to_middle[r.halving];
      decays_to_last(kernels, factor.from(r.begin, r.half()), to.from(r.begin, r.half()));
      kernels.running(to.from(r.middle, r.queries), factor.from(r.middle, r.queries), Running::products);
    });
  }
  /// Returns the factors by which a step multiplies the state: one per feature, or one for all.
  const T* decay(bool of_features) const { return of_features ? factor.data : of_token; }

  /// Returns the decay of the state over all tokens, for each feature or for all.
  const T* over_all() const { return start.row(tokens - 1); }
  T over_all_of_token() const { return from_start[tokens - 1]; }
  /// Returns the decays from each token to the last one, for a token gate.
  const T* to_last() const { return between.row(tokens - 1); }
};

}  // namespace attn::detail::inline ATTN_BUILT_FOR
