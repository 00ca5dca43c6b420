// The arguments of a recurrence's loops: the tensors of a call, its form, and its runs of tokens. Masks that have a
// recurrent form make the runs, which are split into segments and chunks.
#pragma once

#include <algorithm>
#include <tuple>
#include <vector>

#include "attn/core/mods/bound_mods.h"
#include "attn/core/tensor/dtype_view.h"
#include "attn/mods/causal.h"
#include "attn/mods/documents.h"
#include "attn/mods/key_lengths.h"
#include "attn/options.h"
#include "attn/recurrent/bound_features.h"

namespace attn::detail {

using CausalMask = decltype(causal());
using LengthsMask = decltype(key_lengths(std::declval<Indices>()));
using DocumentsMask = decltype(documents(std::declval<Indices>()));
using PackedDocumentsMask = decltype(documents_at(std::declval<const Indices&>()));

template <class M>
constexpr bool splits_documents = std::is_same_v<M, DocumentsMask> || std::is_same_v<M, PackedDocumentsMask>;

/// The properties of a list of mods that a recurrence depends on.
template <class M>
struct RecurrentMods;
template <class... M>
struct RecurrentMods<Mods<M...>> {
  static constexpr bool kIsRecurrent =
      ((std::is_same_v<M, CausalMask> || std::is_same_v<M, LengthsMask> || splits_documents<M>)&&...);
  static constexpr bool kIsCausal = (std::is_same_v<M, CausalMask> || ...);
  static constexpr bool kHasDocuments = (splits_documents<M> || ...);
};
template <AnyMod M>
requires(!is_mods<M>) struct RecurrentMods<M> : RecurrentMods<Mods<M>> {
};

/// Rejects, with a one-sentence error, mods that have no recurrent form.
template <class M>
constexpr bool check_recurrent_mods() {
  if constexpr (!AnyMod<M>) {
    static_assert(check_mods<M>());
    return false;
  } else {
    constexpr bool kIsRecurrent = RecurrentMods<M>::kIsRecurrent;
    static_assert(kIsRecurrent,
                  "attn: only causal(), key_lengths(), documents() and documents_at(offsets) have a recurrent form; "
                  "with any other mod, call attn::attention()");
    return kIsRecurrent;
  }
}

/// Some consecutive query rows, and the only keys that they may see. They share a state that no other row sees.
struct TokenRun {
  Range rows;
  Range keys;
};

/// The runs of each batch element, in order. Rows outside all runs see no keys.
class TokenRuns {
 public:
  /// @throws std::invalid_argument if a mod does not fit the sizes, or a document is not contiguous.
  template <class M>
  TokenRuns(const M& mods, const Problem& problem) {
    for (Index b = 0; b < problem.batch; ++b) {
      first_.push_back(static_cast<Index>(runs_.size()));
      Problem own = problem;
      own.q_offset = problem.first_query(b);
      own.q_offsets = {};
      if (!problem.q_offsets.empty()) own.sequence = b;
      std::apply([&](const auto&... mod) { add_runs(b, own, mod...); }, detail::parts(mods));
    }
    first_.push_back(static_cast<Index>(runs_.size()));
  }

  std::span<const TokenRun> of(Index batch) const {
    const auto b = static_cast<std::size_t>(batch);
    return {runs_.data() + first_[b], static_cast<std::size_t>(first_[b + 1] - first_[b])};
  }

 private:
  template <class... M>
  void add_runs([[maybe_unused]] Index batch, const Problem& problem, const M&... mod) {
    const std::size_t first = runs_.size();
    runs_.push_back({{0, problem.q_len}, {0, problem.kv_len}});
    (split(batch, problem, first, mod), ...);
    Index length = problem.kv_len;
    ((length = std::min(length, length_of(batch, problem, mod))), ...);
    for (std::size_t i = first; i < runs_.size(); ++i) runs_[i].keys.end = std::min(runs_[i].keys.end, length);
  }

  /// Returns the end of the keys of a batch element, according to the mask's hint.
  template <class M>
  static Index length_of([[maybe_unused]] Index batch, const Problem& problem, [[maybe_unused]] const M& mod) {
    if constexpr (std::is_same_v<M, LengthsMask>)
      return std::max<Index>(
          bind_one(mod, problem).kv_range({batch, 0, {0, 1}, problem.keys()}).end - problem.kv_offset, 0);
    else
      return problem.kv_len;
  }

  /// Splits each run where a document ends.
  template <class M>
  void split([[maybe_unused]] Index batch, [[maybe_unused]] const Problem& problem, [[maybe_unused]] std::size_t first,
             [[maybe_unused]] const M& mod) {
    if constexpr (splits_documents<M>) {
      const auto mask = bind_one(mod, problem);
      const std::vector<TokenRun> whole(runs_.begin() + static_cast<std::ptrdiff_t>(first), runs_.end());
      runs_.resize(first);
      for (const TokenRun& run : whole)
        for (Index begin = run.keys.begin; begin < run.keys.end;) {
          const Index position = problem.kv_offset + begin;
          const Range document = mask.kv_range({batch, 0, {position, position + 1}, problem.keys()});
          bool in_one_piece = true;
          for (Index j = document.begin; j < document.end; ++j) in_one_piece &= mask.keep({batch, 0, position, j});
          require(in_one_piece, "documents: the document of position ", position, " is interleaved with others in ",
                  document.begin, "..", document.end - 1, "; a recurrent form needs each document to be contiguous");
          const Range keys =
              intersect({document.begin - problem.kv_offset, document.end - problem.kv_offset}, run.keys);
          const Index ahead = problem.first_query_among_keys(batch);
          const Range rows = intersect({keys.begin - ahead, keys.end - ahead}, run.rows);
          runs_.push_back({{rows.begin, std::max(rows.begin, rows.end)}, keys});
          begin = keys.end;
        }
    }
  }

  std::vector<TokenRun> runs_;
  std::vector<Index> first_;  // first run of each batch element, and the end
};

inline namespace ATTN_BUILT_FOR {

/// Tokens that are processed together, as matrices. Within a chunk all pairs of tokens are computed, which at head_dim
/// 64 costs as much as the products with the state. With fewer than 64 tokens the products are too small to be fast,
/// with more there are too many pairs.
constexpr Index kChunk = 64;

/// Some keys; or some query rows, which see only the state before them; or keys and rows of the same tokens, where each
/// row also sees the keys up to its own token.
struct TokenChunk {
  Range keys;
  Range rows;

  Index tokens() const { return std::max(keys.size(), rows.size()); }
};

/// Calls visit(chunk) for the chunks of a run. Row r of queries and row offset + r of keys are the same token. Unless
/// `is_causal`, all keys come before all rows. Keys after the last row are visited only with `all_keys`. A chunk has up
/// to `most` tokens.
template <class Visit>
void for_each_chunk(const TokenRun& run, Index offset, bool is_causal, bool all_keys, Index most, const Visit& visit) {
  const auto some_keys = [&](Index begin, Index end) {
    for (Index t = begin; t < end; t += most) visit(TokenChunk{{t, std::min(t + most, end)}, {0, 0}});
  };
  const auto some_rows = [&](Index begin, Index end) {
    for (Index r = begin; r < end; r += most) visit(TokenChunk{{0, 0}, {r, std::min(r + most, end)}});
  };
  // Rows before `first` precede all keys, and rows from `last` on follow all keys.
  const Range keys = run.keys, rows = run.rows;
  const Index first = is_causal ? std::clamp(keys.begin - offset, rows.begin, rows.end) : rows.begin;
  const Index last = is_causal ? std::clamp(keys.end - offset, first, rows.end) : rows.begin;
  const Index met = !is_causal || rows.empty() ? keys.end : std::clamp(rows.begin + offset, keys.begin, keys.end);
  some_rows(rows.begin, first);
  some_keys(keys.begin, met);
  for (Index r = first; r < last; r += most) {
    const Range together{r, std::min(r + most, last)};
    visit(TokenChunk{{together.begin + offset, together.end + offset}, together});
  }
  some_rows(last, rows.end);
  if (all_keys && is_causal && !rows.empty()) some_keys(std::max(met, last + offset), keys.end);
}

/// Tokens of a segment: enough that adding one state per segment costs next to nothing compared to its chunks. Segments
/// are longer if there would otherwise be more than kMostSegments.
constexpr Index kSegment = 16 * kChunk;
/// If threads share a head, each segment needs memory for a state.
constexpr Index kMostSegments = 32;
/// This many heads of keys and values keep the cores of most machines busy, and are not split: with a gate for each
/// token and head_dim 128, the additions for segments took 9 % of the time of one thread. Batch elements do not count,
/// so that their results do not depend on the batch size.
constexpr Index kManyHeads = 8;

/// How a run is split. This follows from sizes alone, so that results do not depend on the number of threads.
class RunSegments {
 public:
  /// Keys after the last row belong to no segment, unless they are added to a state of the caller.
  template <class Call>
  RunSegments(const Call& call, Index batch, const TokenRun& run)
      : run_(run), offset_(call.problem.first_query_among_keys(batch)), is_causal_(call.is_causal) {
    Range& keys = run_.keys;
    if (is_causal_ && !call.state.sums)
      keys.end = std::clamp(run.rows.end + offset_, keys.begin, std::max(keys.begin, keys.end));
    length_ = std::max(kSegment, padded(ceil_div(keys.size(), kMostSegments), kChunk));
    if (!call.has_reads() && call.problem.kv_heads < kManyHeads && !call.problem.row_invariant)
      count_ = std::max<Index>(1, ceil_div(keys.size(), length_));
  }

  Index count() const { return count_; }
  /// Returns the keys of a segment and, if the call is causal, the rows among them. Rows before all keys belong to the
  /// first segment, those after all keys to the last one.
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
  Index offset_;  // row r of queries and row offset_ + r of keys are the same token
  bool is_causal_;
  Index length_ = 0, count_ = 1;
};

/// Returns the largest number of segments of a run of a call.
template <class Call>
Index most_segments(const Call& call) {
  Index most = 1;
  for (Index b = 0; b < call.problem.batch; ++b)
    for (const TokenRun& run : call.runs.of(b)) most = std::max(most, RunSegments(call, b, run).count());
  return most;
}

}  // namespace ATTN_BUILT_FOR

}  // namespace attn::detail

namespace attn::detail::inline ATTN_BUILT_FOR {

enum class Gates : unsigned char {
  none,
  of_tokens,   ///< one per token
  of_features  ///< one per feature of each token
};

/// The states of a call in memory that outlives it: `sums` (batch, kv_heads, features, padded v_dim) and `normaliser`
/// (batch, kv_heads, padded features), both contiguous. Null if there is none.
template <class T>
struct StateMemory {
  T* sums = nullptr;
  T* normaliser = nullptr;
};

/// One rule covers all recurrent forms. With the state S (features, v_dim) of a head,
///
///     S_t = diag(e^gate_t) * S_(t - 1) + b_t * (a_tᵀ * S_(t - 1)) + key_t * value_tᵀ,   out_t = scale * S_tᵀ * query_t
///
/// where the forms differ in the following:
///
///     linear attention    no gate, a or b; keys and queries are features, and a normaliser divides the output
///     gated attention     no a or b; the gate has one value per token (RetNet, Mamba-2) or per feature (GLA)
///     gated delta rule    a = e^gate * k, b = -beta * k, key = beta * k, with a gate per token (gated DeltaNet) or per
///                         feature (Kimi delta attention, KDA)
///     DPLR delta rule     any a and b (RWKV-7, GDN-2): the transition is diagonal plus low rank
///
/// The delta rule's two products with k are computed as one, k * (beta * (value - aᵀ * S)).
template <class T>
struct RecurrenceCall {
  const Problem& problem;
  DTypeView<const T> q, k, v;
  DTypeView<T> out;
  const BoundFeatures<T>& map;
  const TokenRuns& runs;
  bool is_causal = true;
  bool is_normalised = false;
  T scale = 1;  ///< of query * key
  Gates gates = Gates::none;
  DTypeView<const T> gate{};    ///< (batch, kv_heads, len, 1 or features)
  DTypeView<const T> beta{};    ///< (batch, kv_heads, len, 1), for the gated delta rule; null in other forms
  DTypeView<const T> a{}, b{};  ///< (batch, kv_heads, len, features), for the DPLR delta rule; null in other forms
  StateMemory<T> state{};

  /// Maximum number of tokens per chunk in the forward pass. Chunks begin where calls do, so with
  /// Options::row_invariant they are single tokens: results then do not depend on where calls begin.
  Index chunk() const { return problem.row_invariant ? 1 : kChunk; }
  bool has_beta() const { return beta.data() != nullptr; }
  /// Whether tokens read the state before they change it.
  bool has_reads() const { return has_beta() || a.data() != nullptr; }
  /// Number of products of a key and a value that a token adds to the state.
  int terms() const { return a.data() ? 2 : 1; }
  Index group() const { return problem.heads / problem.kv_heads; }
  /// Number of heads of keys and values, each with its own state.
  Index states() const { return problem.batch * problem.kv_heads; }
  Index features() const { return map.features(); }
  Index row_of_features() const { return padded(features(), kRowUnit<T>); }
  Index row_of_values() const { return padded(problem.v_dim, kRowUnit<T>); }
  /// Number of elements of a state, with the padding of its rows.
  Index size_of_state() const { return features() * row_of_values(); }
  Index row_of_inputs() const { return padded(problem.head_dim, kRowUnit<T>); }
  /// The memory of state number `i` of all states.
  template <class Number>
  StateMemory<Number> state_in(const StateMemory<Number>& all, Index i) const {
    return {all.sums + i * size_of_state(), all.normaliser + i * row_of_features()};
  }

  /// Estimates the flops of all heads, erring on the high side.
  double flops() const {
    const double pairs = static_cast<double>(states()) *
                         (static_cast<double>(problem.kv_len) + static_cast<double>(group() * problem.q_len));
    return pairs * static_cast<double>(features()) * 2.0 * static_cast<double>(problem.v_dim + problem.head_dim);
  }
};

}  // namespace attn::detail::inline ATTN_BUILT_FOR
