// Learns the merges of byte-pair encoding.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "characters.h"

namespace translation {

using UnitCounts = std::map<std::string, Index>;

/// Replaces each occurrence of two neighbouring ids by one id.
void join_all(Ids& ids, const std::array<std::int32_t, 2>& parts, std::int32_t joined);

/// Counts the pairs of neighbours in all units, and updates the counts as pairs are joined.
class MergeLearner {
 public:
  using IdPair = std::array<std::int32_t, 2>;

  explicit MergeLearner(const UnitCounts& counts);

  /// Returns the most frequent pair, the smallest of equally frequent ones; none if no pair occurs twice.
  std::optional<IdPair> most_frequent() const;
  void join(const IdPair& parts, std::int32_t joined);

 private:
  struct Unit {
    Ids ids;
    Index times;
  };
  struct Occurrences {
    Index times = 0;
    std::set<std::size_t> units;  // units that contain, or contained, the pair
  };
  void count(std::size_t unit, Index sign);

  std::vector<Unit> units_;
  std::map<IdPair, Occurrences> pairs_;
};

}  // namespace translation
