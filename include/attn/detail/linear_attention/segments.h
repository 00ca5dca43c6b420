// Long runs of tokens cut into segments, whose sums several threads may form side by side.
#pragma once

#include <algorithm>

#include "attn/detail/linear_attention/chunk.h"
#include "attn/detail/linear_attention/chunks_of_run.h"

namespace attn::detail {
inline namespace ATTN_BUILT_FOR {

/// The tokens of a segment, if there are not too many of these: long enough for the one addition of a state that comes
/// with each to cost nothing beside its chunks.
constexpr Index kSegment = 16 * kChunk;
/// Each segment needs memory for a state where threads share a head.
constexpr Index kMostSegments = 32;
/// So many heads of keys and values keep the cores of most machines busy by themselves, and are not cut: with a gate
/// for each token and head_dim 128, the additions that come with segments took 9 % of the time of one thread. Batch
/// elements do not count, so that none depends on how many there are.
constexpr Index kManyHeads = 8;

/// How a run is cut. It follows from sizes alone, whoever computes the segments, so that threads change no bit.
class RunSegments {
 public:
  /// Row r of queries stands where row offset + r of keys does. Keys behind the last row belong to no segment unless
  /// somebody wants `all_keys`.
  RunSegments(const TokenRun& run, Index offset, bool is_causal, bool all_keys)
      : run_(run), offset_(offset), is_causal_(is_causal) {
    Range& keys = run_.keys;
    if (is_causal && !all_keys)
      keys.end = std::clamp(run.rows.end + offset, keys.begin, std::max(keys.begin, keys.end));
    length_ = std::max(kSegment, padded(ceil_div(keys.size(), kMostSegments), kChunk));
    count_ = std::max<Index>(1, ceil_div(keys.size(), length_));
  }
  template <class T>
  RunSegments(const RecurrenceCall<T>& call, Index batch, const TokenRun& run)
      : RunSegments(run, call.problem.first_query_among_keys(batch), call.is_causal, call.state.sums != nullptr) {
    if (call.has_delta() || call.problem.kv_heads >= kManyHeads) count_ = 1;
  }

  Index count() const { return count_; }
  /// The keys of a segment, and, where the call is causal, the rows that stand among them. Rows before all keys belong
  /// to the first segment, those behind all keys to the last one.
  TokenRun at(Index segment) const {
    const Index begin = run_.keys.begin + segment * length_;
    const bool is_last = segment == count_ - 1;
    const Range keys{begin, is_last ? run_.keys.end : begin + length_};
    if (!is_causal_) return {{run_.rows.begin, run_.rows.begin}, keys};
    const auto row = [&](Index key) { return std::clamp(key - offset_, run_.rows.begin, run_.rows.end); };
    return {{segment == 0 ? run_.rows.begin : row(keys.begin), is_last ? run_.rows.end : row(keys.end)}, keys};
  }

 private:
  TokenRun run_;
  Index offset_;
  bool is_causal_;
  Index length_ = 0, count_ = 1;
};

/// The most segments of a run of a call.
template <class T>
Index most_segments(const RecurrenceCall<T>& call) {
  Index most = 1;
  for (Index b = 0; b < call.problem.batch; ++b)
    for (const TokenRun& run : call.runs.of(b)) most = std::max(most, RunSegments(call, b, run).count());
  return most;
}

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
      kernels.scale_and_add(state.sums, decay, sums.sums);
    if (call.is_normalised)
      for (Index f = 0; f < call.features(); ++f) state.normaliser[f] += sums.normaliser[f];
  }
};

}  // namespace ATTN_BUILT_FOR
}  // namespace attn::detail
