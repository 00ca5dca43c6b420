// Layer 2: lists of integers as several masks take them, and lengths, one for each batch element.
#pragma once

#include <initializer_list>
#include <type_traits>
#include <utility>
#include <vector>

#include "attn/detail/check.h"
#include "attn/types.h"

namespace attn::detail {

/// A list of integers as a function takes it, copied: {1, 2}, or any range of them, std::vector<int> or Eigen::VectorXi.
struct Indices {
  std::vector<Index> values;

  Indices(std::vector<Index> given) : values(std::move(given)) {}
  Indices(std::initializer_list<Index> given) : values(given) {}
  template <class X>
  requires requires(const X& x) { x.begin(), x.end(); }
  Indices(const X& given) {
    constexpr bool kIntegers = std::is_integral_v<std::remove_cvref_t<decltype(*given.begin())>>;
    static_assert(kIntegers, "attn: lengths, ids, offsets, positions and parents must be integers");
    if constexpr (kIntegers)
      for (const auto& n : given) values.push_back(static_cast<Index>(n));
  }
};

/// @throws std::invalid_argument unless there is one length per batch element, each in 0..most.
inline void check_lengths(const std::vector<Index>& lengths, const Problem& problem, Index most, const char* name,
                          const char* name_of_most) {
  require(static_cast<Index>(lengths.size()) == problem.batch, name, " has ", lengths.size(),
          " lengths for a batch of ", problem.batch);
  for (std::size_t b = 0; b < lengths.size(); ++b)
    require(lengths[b] >= 0 && lengths[b] <= most, name, "[", b, "] = ", lengths[b], " is outside 0..", most, " (",
            name_of_most, ")");
}

}  // namespace attn::detail
