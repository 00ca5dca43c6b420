// bidirectional_spans(): images inside a causal text.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "attn/detail/base/check.h"
#include "attn/detail/base/ranges.h"
#include "attn/mod.h"

namespace attn {

namespace detail {

/// Where the keys that each query sees end, for one batch element.
class SpanEnds {
 public:
  /// @throws std::invalid_argument unless the spans are in order and do not overlap.
  explicit SpanEnds(const std::vector<Range>& spans) {
    constexpr Index kMost = Index(1) << 36;  // positions, whose table of 8 bytes each would take 512 GiB
    for (std::size_t i = 0; i < spans.size(); ++i) {
      const Range& s = spans[i];
      const Index before = i == 0 ? 0 : spans[i - 1].end;
      require(s.begin >= before && s.end >= s.begin, "bidirectional_spans: span ", i, " is [", s.begin, ", ", s.end,
              "), it must begin at ", before, " or later and not end before it begins");
      require(s.end <= kMost, "bidirectional_spans: span ", i, " ends at ", s.end, ", above ", kMost);
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

/// `one_for_all`: the same spans for all batch elements.
inline auto spans_mask(SpansOfElements spans, bool one_for_all) {
  return bind_mod([spans = std::move(spans), one_for_all](const Problem& problem) {
    require(one_for_all || static_cast<Index>(spans->size()) == problem.batch, "bidirectional_spans: ", spans->size(),
            " lists of spans for a batch of ", problem.batch);
    const auto end = [first = spans->data(), one_for_all](Index batch, Index q) {
      return first[one_for_all ? 0 : batch].of(q);
    };
    // What a query sees never ends before what an earlier query sees.
    return mask_mod([end](const Position& p) { return p.kv < end(p.batch, p.q); },
                    [end](const Tile& t) {
                      if (t.kv.begin >= end(t.batch, t.q.end - 1)) return Coverage::none;
                      return t.kv.end <= end(t.batch, t.q.begin) ? Coverage::all : Coverage::some;
                    },
                    [end](const Tile& t) {
                      return Range{t.kv.begin, end(t.batch, t.q.end - 1)};
                    });
  });
}

}  // namespace detail

/// Keeps what causal() keeps, and all pairs of tokens of one span: kv <= q, or both in the same span. It is meant for
/// prompts with images, whose tokens have no order, inside a text that has one (as in Gemma 3; Gemma Team 2025); the
/// spans are where the images lie. A span of one token changes nothing.
///
///     spans {{1, 3}}:  1 0 0 0
///                      1 1 1 0
///                      1 1 1 0
///                      1 1 1 1
///
/// Masks intersect, so a causal() beside it would drop the later tokens of spans again. A sliding_window(left, right)
/// beside it limits how far both directions reach.
/// @param spans  absolute positions, in ascending order and without overlap; the same for all batch elements.
/// @throws std::invalid_argument for spans in another order, negative or overlapping ones.
inline auto bidirectional_spans(const std::vector<Range>& spans) {
  return detail::spans_mask(
      std::make_shared<const std::vector<detail::SpanEnds>>(std::size_t(1), detail::SpanEnds(spans)), true);
}

/// As above, with a list of spans for each batch element.
/// @throws std::invalid_argument as above, and in the call, if there is not one list per batch element.
inline auto bidirectional_spans(const std::vector<std::vector<Range>>& spans) {
  return detail::spans_mask(std::make_shared<const std::vector<detail::SpanEnds>>(spans.begin(), spans.end()), false);
}

}  // namespace attn
