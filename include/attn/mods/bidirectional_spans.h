// bidirectional_spans(): a causal mask with bidirectional spans, such as images.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "attn/core/base/check.h"
#include "attn/core/mods/hints.h"

namespace attn {

namespace detail {

/// The end of the keys that each query sees, for one batch element.
class SpanEnds {
 public:
  /// @throws std::invalid_argument unless the spans are in order and do not overlap.
  explicit SpanEnds(const std::vector<Range>& spans) {
    for (std::size_t i = 0; i < spans.size(); ++i) {
      const Range& s = spans[i];
      const Index before = i == 0 ? 0 : spans[i - 1].end;
      require(s.begin >= before && s.end >= s.begin, "bidirectional_spans: span ", i, " is [", s.begin, ", ", s.end,
              "), but must begin at ", before, " or later and not end before it begins");
      require(s.end <= kLargestTable, "bidirectional_spans: span ", i, " must end at ", kLargestTable,
              " or earlier, but ends at ", s.end);
    }
    if (!spans.empty()) ends_.reserve(static_cast<std::size_t>(spans.back().end));
    for (const Range& s : spans) {
      while (static_cast<Index>(ends_.size()) < s.begin) ends_.push_back(static_cast<Index>(ends_.size()) + 1);
      ends_.resize(static_cast<std::size_t>(s.end), s.end);
    }
  }

  Index of(Index q) const {
    return q >= 0 && q < static_cast<Index>(ends_.size()) ? ends_[static_cast<std::size_t>(q)] : q + 1;
  }

 private:
  std::vector<Index> ends_;  ///< for each position up to the end of the last span
};

using SpansOfElements = std::shared_ptr<const std::vector<SpanEnds>>;

/// Returns the mask of bidirectional_spans(). With `one_for_all`, all batch elements have the same spans.
inline auto spans_mask(SpansOfElements spans, bool one_for_all) {
  return bind_mod([spans = std::move(spans), one_for_all](const Problem& problem) {
    require(one_for_all || static_cast<Index>(spans->size()) == problem.batch, "bidirectional_spans: got ",
            spans->size(), " lists of spans for a batch of ", problem.batch);
    return keep_ranges([first = spans->data(), one_for_all](const Position& p) {
      return Range{kFirstKey, first[one_for_all ? 0 : p.batch].of(p.q)};
    });
  });
}

}  // namespace detail

/// Keeps the pairs that causal() keeps and all pairs within a span: kv <= q, or both in the same span. It is meant for
/// causal prompts with images, whose tokens have no order (as in Gemma 3; Gemma Team 2025); the spans are the positions
/// of the images. A span of one token has no effect.
///
///     spans {{1, 3}}:  1 0 0 0
///                      1 1 1 0
///                      1 1 1 0
///                      1 1 1 1
///
/// Masks intersect, so combining this mask with causal() would make the spans causal again. Combining it with
/// sliding_window(left, right) limits the reach in both directions.
/// @param spans  absolute positions, ascending and without overlap; the same for all batch elements.
/// @throws std::invalid_argument unless the spans are ascending, non-negative and disjoint.
inline auto bidirectional_spans(const std::vector<Range>& spans) {
  return detail::spans_mask(
      std::make_shared<const std::vector<detail::SpanEnds>>(std::size_t(1), detail::SpanEnds(spans)), true);
}

/// bidirectional_spans() with a list of spans per batch element.
/// @throws std::invalid_argument as above, and from the attention call unless there is one list per batch element.
inline auto bidirectional_spans(const std::vector<std::vector<Range>>& spans) {
  return detail::spans_mask(std::make_shared<const std::vector<detail::SpanEnds>>(spans.begin(), spans.end()), false);
}

}  // namespace attn
