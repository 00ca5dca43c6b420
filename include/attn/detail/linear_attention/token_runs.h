// The masks that have a recurrent form, and the runs of tokens that they make.
#pragma once

#include <tuple>
#include <vector>

#include "attn/detail/mods/bound_mods.h"
#include "attn/mods/causal.h"
#include "attn/mods/documents.h"
#include "attn/mods/key_lengths.h"

namespace attn::detail {

using CausalMask = decltype(causal());
using LengthsMask = decltype(key_lengths(std::declval<Indices>()));
using DocumentsMask = decltype(documents(std::declval<Indices>()));

/// The requirements of a list of mods on a recurrence.
template <class M>
struct RecurrentMods;
template <class... M>
struct RecurrentMods<Mods<M...>> {
  static constexpr bool kIsRecurrent =
      ((std::is_same_v<M, CausalMask> || std::is_same_v<M, LengthsMask> || std::is_same_v<M, DocumentsMask>)&&...);
  static constexpr bool kIsCausal = (std::is_same_v<M, CausalMask> || ...);
  static constexpr bool kHasDocuments = (std::is_same_v<M, DocumentsMask> || ...);
};
template <AnyMod M>
requires(!is_mods<M>) struct RecurrentMods<M> : RecurrentMods<Mods<M>> {
};

/// Says in one sentence why mods have no recurrent form.
template <class M>
constexpr bool check_recurrent_mods() {
  if constexpr (!AnyMod<M>) {
    static_assert(check_mods<M>());
    return false;
  } else {
    constexpr bool kIsRecurrent = RecurrentMods<M>::kIsRecurrent;
    static_assert(kIsRecurrent,
                  "attn: only causal(), key_lengths(), documents() and documents_at() have a recurrent form; with any "
                  "other mod call attn::attention()");
    return kIsRecurrent;
  }
}

/// Some neighbouring query rows, and the only keys that they may see. They share a state that no other row sees.
struct TokenRun {
  Range rows;
  Range keys;
};

/// The runs of each batch element, in order. Rows that stand in none see nothing.
class TokenRuns {
 public:
  /// @throws std::invalid_argument if a mod does not fit the sizes, or a document does not lie in one piece.
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

  /// Where the keys of a batch element end, as the mask's hint knows it.
  template <class M>
  static Index length_of([[maybe_unused]] Index batch, const Problem& problem, [[maybe_unused]] const M& mod) {
    if constexpr (std::is_same_v<M, LengthsMask>)
      return std::max<Index>(
          bind_one(mod, problem).kv_range({batch, 0, {0, 1}, problem.keys()}).end - problem.kv_offset, 0);
    else
      return problem.kv_len;
  }

  /// Cuts each run where a document ends.
  template <class M>
  void split([[maybe_unused]] Index batch, [[maybe_unused]] const Problem& problem, [[maybe_unused]] std::size_t first,
             [[maybe_unused]] const M& mod) {
    if constexpr (std::is_same_v<M, DocumentsMask>) {
      const auto mask = bind_one(mod, problem);
      const std::vector<TokenRun> whole(runs_.begin() + static_cast<std::ptrdiff_t>(first), runs_.end());
      runs_.resize(first);
      for (const TokenRun& run : whole)
        for (Index begin = run.keys.begin; begin < run.keys.end;) {
          const Index position = problem.kv_offset + begin;
          const Range document = mask.kv_range({batch, 0, {position, position + 1}, problem.keys()});
          bool in_one_piece = true;
          for (Index j = document.begin; j < document.end; ++j) in_one_piece &= mask.keep({batch, 0, position, j});
          require(in_one_piece, "documents: the one of position ", position, " lies between others, in ",
                  document.begin, "..", document.end - 1, "; a recurrent form needs each in one piece");
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
  std::vector<Index> first_;  // of each batch element, and the end
};

}  // namespace attn::detail
