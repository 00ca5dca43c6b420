// The rope positions of the rows of a sequence.
#pragma once

#include <algorithm>
#include <span>
#include <utility>
#include <vector>

#include "attn/core/base/check.h"
#include "attn/core/tensor/problem.h"

namespace attn::detail::inline ATTN_BUILT_FOR {

/// The rope positions of the rows of a sequence. Positions are stored only from the first to the last row whose
/// position does not follow from those before it.
class ExplicitPositions {
 public:
  RowPositions rows() const { return {first_, listed_}; }

  /// Reserves memory for append().
  void reserve(Index row, Index count, const Index* given) {
    if (given == nullptr) return;
    const auto needed = static_cast<std::size_t>(listed_.empty() ? count : row + count - first_);
    if (needed > listed_.capacity()) listed_.reserve(std::max(needed, 2 * listed_.capacity()));
  }
  /// Appends `count` rows from row `row` on, at the given positions or, if `given` is null, at those that follow.
  void append(Index row, Index count, const Index* given) {
    for (Index i = 0; given && i < count; ++i) append(row + i, given[i]);
  }
  void append(Index row, Index position) {
    if (position == rows()(row)) return;
    if (listed_.empty()) first_ = row;
    for (Index next = first_ + static_cast<Index>(listed_.size()); next < row; ++next) listed_.push_back(rows()(next));
    listed_.push_back(position);
  }
  void truncate(Index length) noexcept {
    const auto left = static_cast<std::size_t>(std::max<Index>(length - first_, 0));
    if (left < listed_.size()) listed_.erase(listed_.begin() + static_cast<std::ptrdiff_t>(left), listed_.end());
  }

 private:
  Index first_ = 0;
  std::vector<Index> listed_;
};

/// Returns the positions of the appended tokens of all sequences, back to back; empty if `positions` is. If sequences
/// are packed, `tokens` is the total over all of them. Otherwise it is the number of tokens of each sequence, and
/// `positions` may hold those of one sequence, which then apply to all.
inline std::vector<Index> checked_positions(std::span<const Index> positions, Index tokens, Index sequences,
                                            bool packed, bool has_rope) {
  if (positions.empty()) return {};
  const Index given = static_cast<Index>(positions.size());
  require(has_rope, "append: got ", given,
          " positions for a cache without a rope, where they would have no effect; omit them, or construct the cache "
          "with .rope = attn::Rope(...)");
  if (packed)
    require(given == tokens, "append: got ", given, " positions for ", tokens, " tokens; give one for each");
  else
    require(given == tokens || given == tokens * sequences, "append: got ", given, " positions for ", sequences,
            " sequences of ", tokens, " tokens each; give one for each token, of one sequence or of all");
  for (Index i = 0; i < given; ++i)
    require(is_near(positions[static_cast<std::size_t>(i)]), "append: positions[", i, "] must be within ±2^",
            kIndexBits, ", but is ", positions[static_cast<std::size_t>(i)]);
  std::vector<Index> all(positions.begin(), positions.end());
  if (!packed)
    while (static_cast<Index>(all.size()) < tokens * sequences)
      all.insert(all.end(), positions.begin(), positions.end());
  return all;
}

/// Calls visit(i, positions of the lens[i] tokens of sequence i) for each sequence. `positions` has those of all
/// sequences back to back; if it is empty, visit() gets null.
template <class Visit>
void for_each_given(std::span<const Index> positions, std::span<const Index> lens, const Visit& visit) {
  const Index* next = positions.empty() ? nullptr : positions.data();
  for (std::size_t i = 0; i < lens.size(); ++i) {
    visit(i, next);
    if (next) next += lens[i];
  }
}

}  // namespace attn::detail::inline ATTN_BUILT_FOR
