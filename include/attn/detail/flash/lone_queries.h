// Single queries that share their keys with no other: one kernel for all that is done with one.
#pragma once

#include "attn/detail/flash/decode_tiles.h"
#include "attn/detail/flash/kv_splits.h"

namespace attn::detail {
inline namespace ATTN_BUILT_FOR {

/// The straight way through the keys of a head, for calls in which nothing comes between score, softmax and value: no
/// mod that changes scores or weights, no rows to be copied, nothing that must be fetched ahead. It gives the bits that
/// DecodeLoop does, so that a sequence has the same result by itself, where it is near, as among many others. On
/// Zen 4 with AVX-512 one token took 0.55 of the time over 8 heads of 64 keys of 32 floats, 0.7 over 128 keys of 64,
/// 0.8 over 512 of 64.
template <class T>
class LoneQueries {
 public:
  LoneQueries(const PassContext<T>& pass, const DecodeTiles<T>& tiles, const KvSplits<T>& splits)
      : pass_(pass), attend_(kernel_for(pass, tiles, splits)), are_near_(!tiles.are_far()) {}

  /// Whether the pass has such queries. One that visits keys which a mask drops is none: see serves().
  bool are_served() const { return attend_ != nullptr; }

  /// Whether, in such a pass, all keys are kept that a query visits.
  bool serves(const QueryTile& query, const Range& visited) const {
    return !visited.empty() && (pass_.mods == nullptr || pass_.coverage(query, visited, visited) == Coverage::all);
  }

  /// Returns the state of a query after its keys `visited`, and with `stores` stores its result. `is_first`: these are
  /// its first keys, before which sinks count.
  TileMemory<T> run(const QueryTile& query, const Range& visited, bool is_first, bool stores, std::byte* memory) const {
    const CallTensors<T>& tensors = pass_.tensors;
    const Problem& problem = pass_.problem();
    const TileMemory<T> m = memory_in(memory);
    if (is_first) {
      pass_.begin(query, 1, 1, m);
    } else {
      const SoftmaxState<T> later = pass_.begun_later();
      *m.max = later.max, *m.sum = later.sum, *m.sum_rest = 0;
    }
    const RowsToRead q = tensors.query(query), k = tensors.key(query, visited.begin),
                     v = tensors.value(query, visited.begin);
    const T* from = numbers(q);
    if (!is_row(q) || tensors.rotation) {
      pass_.kernels.full_precision.pack_rows(q, 1, problem.head_dim, m.query);
      if (tensors.rotation) tensors.rotation->turn(m.query, query.rows.begin);
      from = m.query;
    }
    T* result = nullptr;
    if (stores)
      if (const RowsToWrite out = tensors.output(query); is_row(out)) result = reinterpret_cast<T*>(out.data);
    attend_(m, {from,
                static_cast<T>(problem.scale),
                {numbers(k), k.stride},
                {numbers(v), v.stride},
                visited.size(),
                problem.head_dim,
                problem.v_dim,
                are_near_,
                tensors.k.is_paged() ? visited.begin % kLongStep : 0,  // as DecodeTiles::first() begins
                result});
    if (stores) {
      if (result == nullptr)
        pass_.store_result(query, 0, m);
      else
        pass_.store_lse(query, m.max, m.sum);
    }
    return m;
  }

 private:
  using Attend = decltype(DecodeKernelSet<T>::attend);

  template <class Byte>
  static bool is_row(const DTypeRows<Byte>& rows) {
    return rows.dtype == DType::native && rows.column == 1;
  }
  static const T* numbers(const RowsToRead& rows) { return reinterpret_cast<const T*>(rows.data); }

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

  /// Null: there are no such queries in a pass.
  static Attend kernel_for(const PassContext<T>& pass, const DecodeTiles<T>& tiles, const KvSplits<T>& splits) {
    const Problem& problem = pass.problem();
    const bool are_lone = problem.q_len == 1 && problem.heads == problem.kv_heads,
               are_plain =
                   !pass.resumes && (pass.mods == nullptr || !(pass.mods->has_scores() || pass.kept_factor() != T(1)));
    const DecodeKernelSet<T>& kernels = pass.kernels.full_precision.decode;
    const auto keeps_up = [&](Index dim) { return kernels.far_columns != 0 && dim % kernels.far_columns == 0; };
    const bool are_in_time = !tiles.are_far() || (keeps_up(problem.head_dim) && keeps_up(problem.v_dim) &&
                                                  tiles.lie_end_to_end() && !tiles.heads_take_turns());
    const Index most_keys = splits.keys(splits.count() - 1).size();  // no split has more than the last one
    if (!are_lone || !are_plain || !are_in_time || has_totals(most_keys) || !tiles.lie_in_rows()) return nullptr;
    return kernels.attend;
  }

  const PassContext<T>& pass_;
  Attend attend_;
  bool are_near_;
};

}  // namespace ATTN_BUILT_FOR
}  // namespace attn::detail
