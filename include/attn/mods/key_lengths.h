// Layer 2: key_lengths(), padding at the end of each batch element's keys.
#pragma once

#include <concepts>
#include <initializer_list>
#include <span>
#include <vector>

#include "attn/detail/check.h"
#include "attn/mod.h"

namespace attn {

/// Keeps keys 0 .. lengths[batch] - 1: the rest of the row is padding. One length per batch element, 0 included.
///
///     lengths {3}:  1 1 1 0 0
///                   1 1 1 0 0
///
/// @throws std::invalid_argument in the call, if there is not one length per batch element or a length is outside
/// 0..kv_len.
inline auto key_lengths(std::vector<Index> lengths) {
  return bind_mod([lengths = std::move(lengths)](const Problem& problem) {
    const Index given = static_cast<Index>(lengths.size());
    detail::require(given == problem.batch, "key_lengths has ", given, " lengths for a batch of ", problem.batch);
    for (std::size_t b = 0; b < lengths.size(); ++b)
      detail::require(lengths[b] >= 0 && lengths[b] <= problem.kv_len, "key_lengths[", b, "] = ", lengths[b],
                      " is outside 0..", problem.kv_len, " (kv_len)");
    const Index* length = lengths.data();
    return mask_mod([length](const Position& p) { return p.kv < length[p.batch]; },
                    [length](const Tile& t) {
                      if (t.kv.begin >= length[t.batch]) return Coverage::none;
                      return t.kv.end <= length[t.batch] ? Coverage::all : Coverage::some;
                    },
                    [length](const Tile& t) {
                      return Range{t.kv.begin, length[t.batch]};
                    });
  });
}

/// The same from any range of integers, e.g. std::vector<int> or Eigen::VectorXi.
template <class Lengths>
requires requires(const Lengths& l) { requires std::integral<std::remove_cvref_t<decltype(*l.begin())>>; }
auto key_lengths(const Lengths& lengths) {
  std::vector<Index> copy;
  for (const auto& length : lengths) copy.push_back(static_cast<Index>(length));
  return key_lengths(std::move(copy));
}

inline auto key_lengths(std::initializer_list<Index> lengths) { return key_lengths(std::vector<Index>(lengths)); }

}  // namespace attn
