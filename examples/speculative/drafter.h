// Drafts the next tokens of a text from the n-grams that it has seen.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include <Eigen/Core>

namespace speculative {

using Index = Eigen::Index;

/// A tree of drafted tokens. Node 0 is the last token of the text; every other node continues its parent, which comes
/// before it.
struct Draft {
  std::vector<Index> tokens;
  std::vector<Index> parents;  // -1 for node 0
};

/// Counts which token follows the last 0, 1, … kOrder tokens, and drafts the likeliest continuations.
class Drafter {
 public:
  static constexpr std::size_t kOrder = 3;
  static constexpr Index kMostTokens = 1 << 16;  // of a vocabulary: a context of kOrder tokens fits into 64 bits

  /// Counts the token that follows `text`.
  void learn(std::span<const Index> text, Index next);

  /// Returns a tree of at most `nodes` nodes after `text`, which has at least one token: the continuations with the
  /// highest estimated probabilities, without those below `least`.
  Draft draft(std::span<const Index> text, Index nodes, double least = 0) const;

 private:
  struct Count {
    Index token, times;
  };
  struct Counts {
    Index all = 0;
    std::vector<Count> tokens;  // the most frequent first
  };
  struct Guess {
    Index token;
    double probability;
  };

  /// Returns the likeliest tokens after `context`, in any order. A longer context has more weight if it was seen more
  /// often and fewer different tokens followed it (Witten-Bell smoothing).
  std::vector<Guess> guesses(std::span<const Index> context) const;

  std::unordered_map<std::uint64_t, Counts> counts_;  // by the packed tokens of a context
};

}  // namespace speculative
