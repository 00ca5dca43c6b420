#include "merges.h"

namespace translation {

void join_all(Ids& ids, const std::array<std::int32_t, 2>& parts, std::int32_t joined) {
  std::size_t to = 0;
  for (std::size_t from = 0; from < ids.size(); ++from, ++to) {
    const bool found = from + 1 < ids.size() && ids[from] == parts[0] && ids[from + 1] == parts[1];
    ids[to] = found ? joined : ids[from];
    if (found) ++from;
  }
  ids.resize(to);
}

MergeLearner::MergeLearner(const UnitCounts& counts) {
  for (const auto& [unit, times] : counts) {
    units_.push_back({{}, times});
    for (const char c : unit) units_.back().ids.push_back(static_cast<unsigned char>(c));
    count(units_.size() - 1, 1);
  }
}

void MergeLearner::count(std::size_t unit, Index sign) {
  const auto& [ids, times] = units_[unit];
  for (std::size_t i = 0; i + 1 < ids.size(); ++i) {
    Occurrences& seen = pairs_[{ids[i], ids[i + 1]}];
    seen.times += sign * times;
    if (sign > 0) seen.units.insert(unit);
  }
}

std::optional<MergeLearner::IdPair> MergeLearner::most_frequent() const {
  std::optional<IdPair> best;
  Index times = 1;
  for (const auto& [parts, seen] : pairs_)
    if (seen.times > times) times = seen.times, best = parts;
  return best;
}

void MergeLearner::join(const IdPair& parts, std::int32_t joined) {
  const std::set<std::size_t> units = std::move(pairs_[parts].units);
  for (const std::size_t unit : units) {
    count(unit, -1);
    join_all(units_[unit].ids, parts, joined);
    count(unit, 1);
  }
  pairs_.erase(parts);
}

}  // namespace translation
