// Layer 2: a length for each batch element, as several masks take them.
#pragma once

#include <concepts>
#include <type_traits>
#include <vector>

#include "attn/detail/check.h"
#include "attn/types.h"

namespace attn::detail {

/// Any range of integers: std::vector<int>, Eigen::VectorXi, std::initializer_list<Index>, …
template <class X>
concept Integers = requires(const X& x) {
  requires std::integral<std::remove_cvref_t<decltype(*x.begin())>>;
  x.end();
};

template <Integers X>
std::vector<Index> as_indices(const X& numbers) {
  std::vector<Index> copy;
  for (const auto& n : numbers) copy.push_back(static_cast<Index>(n));
  return copy;
}

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
