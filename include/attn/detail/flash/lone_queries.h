// The direct loop: single queries that share their keys with no other, with nothing between score, softmax and value.
#pragma once

#include "attn/detail/flash/decode_tiles.h"
#include "attn/detail/flash/kv_splits.h"

namespace attn::detail {
inline namespace ATTN_BUILT_FOR {

/// The straight way through the keys of a head, for calls in which nothing comes between score, softmax and value: no
/// mod that changes scores or weights, no rows to be copied, nothing that must be fetched ahead. It gives the bits that
/// DecodeLoop does, so that a sequence has the same result by itself, where it is near, as among many others. On
/// Zen 3 with AVX2 one token took 0.78 of DecodeLoop's time over 8 heads of 64 keys of 32 floats, 0.84 over 128 keys of
/// 64, 0.9 over one head of 1000 keys.
template <class T>
class LoneQueries {
 public:
  LoneQueries(const PassContext<T>& pass, const DecodeTiles<T>& tiles, const KvSplits<T>& splits)
      : pass_(pass), are_served_(serves(pass, tiles, splits)) {}

  /// Whether the pass has such queries. One that visits keys which a mask drops is none: see serves().
  bool are_served() const { return are_served_; }

  /// Whether, in such a pass, all keys are kept that a query visits.
  bool serves(const QueryTile& query, const Range& visited) const {
    return !visited.empty() && (pass_.mods == nullptr || pass_.coverage(query, visited, visited) == Coverage::all);
  }

  /// Returns the state of a query after its keys `visited`, and with `stores` stores its result. `is_first`: these are
  /// its first keys, before which sinks count.
  TileMemory<T> run(const QueryTile& query, const Range& visited, bool is_first, bool stores, std::byte* memory) const {
    TileMemory<T> m = memory_in(memory);
    if (is_first) {
      pass_.begin(query, 1, 1, m);
    } else {
      const SoftmaxState<T> later = pass_.begun_later();
      *m.max = later.max, *m.sum = later.sum, *m.sum_rest = 0;
    }
    pass_.load_query(query, m.query);
    std::fill_n(m.out, pass_.problem().v_dim, T(0));
    visit(visited, pass_.tensors.key(query, visited.begin), pass_.tensors.value(query, visited.begin), m);
    add_rest(*m.sum, *m.sum_rest);
    if (stores) pass_.store_result(query, 0, m);
    return m;
  }

 private:
  /// The recurrence over the keys: steps of kLongStep of them, each scored, then its softmax, then its values tile by
  /// tile. Steps begin where DecodeTiles::first() has them begin. Nothing is fetched ahead.
  void visit(const Range& visited, RowsToRead key, RowsToRead value, TileMemory<T>& m) const {
    const Problem& problem = pass_.problem();
    const DecodeKernelSet<T>& kernels = pass_.kernels.full_precision.decode;
    constexpr Index kSize = sizeof(T);
    Prefetcher nothing;
    T* const scores = m.scores;
    for (Index left = visited.size(), from = pass_.tensors.k.is_paged() ? visited.begin % kLongStep : 0; left > 0;
         from = 0) {
      const Index step = std::min(left, kLongStep - from);
      m.scores = scores;
      kernels.score(m, 1, key, step, problem.head_dim, nothing);
      kernels.softmax(m, 0, step, nothing);
      for (Index done = 0, count = kKeyTile - from % kKeyTile; done < step; done += count, count = kKeyTile) {
        count = std::min(count, step - done);
        kernels.value(m, 1, value, count, problem.v_dim, nothing);
        m.scores += count;
        value.data += count * value.stride * kSize;
        *m.rescale = 1;
      }
      key.data += step * key.stride * kSize;
      left -= step;
    }
  }

  /// A part of what DecodeLoop has for 16 rows.
  TileMemory<T> memory_in(std::byte* memory) const {
    TileMemory<T> m{};
    m.scores = reinterpret_cast<T*>(memory);
    m.query = m.scores + kLongStep;
    m.out = m.query + pass_.problem().head_dim;
    m.max = m.out + pass_.problem().v_dim;
    m.sum = m.max + 1;
    m.sum_rest = m.sum + 1;
    m.rescale = m.sum_rest + 1;
    return m;
  }

  static bool serves(const PassContext<T>& pass, const DecodeTiles<T>& tiles, const KvSplits<T>& splits) {
    const Problem& problem = pass.problem();
    const bool are_lone = problem.q_len == 1 && problem.heads == problem.kv_heads,
               are_plain = !pass.resumes && !pass.tensors.score && !problem.sigmoid_bias &&
                           (pass.mods == nullptr || !(pass.mods->has_scores() || pass.kept_factor() != T(1)));
    const bool are_in_time =
        !tiles.are_far() || (pass.kernels.full_precision.decode.keeps_up && tiles.lie_end_to_end());
    const Index most_keys = splits.keys(splits.count() - 1).size();  // no split has more than the last one
    return are_lone && are_plain && are_in_time && !tiles.heads_take_turns() && !has_totals(most_keys) &&
           tiles.lie_in_rows();
  }

  const PassContext<T>& pass_;
  bool are_served_;
};

}  // namespace ATTN_BUILT_FOR
}  // namespace attn::detail
