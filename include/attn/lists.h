// Lists of numbers as options and mods take them.
#pragma once

#include <initializer_list>
#include <type_traits>
#include <utility>
#include <vector>

#include "attn/detail/base/short_list.h"
#include "attn/types.h"

namespace attn {

/// A list of numbers as a function takes it, copied: {1, 2}, or any range of numbers, a std::vector<int> or an
/// Eigen::VectorXi. Up to eight numbers lie in the list itself; more take memory from the heap.
template <class Number>
struct List {
  detail::ShortList<Number> values;  ///< the numbers, with data(), size(), [] and begin() as a std::vector has them

  /// Takes the vector.
  List(std::vector<Number>&& given) : values(std::move(given)) {}
  /// Copies the vector.
  List(const std::vector<Number>& given) : values(given) {}
  /// Copies the numbers in braces.
  List(std::initializer_list<Number> given) : values({given.begin(), given.size()}) {}
  /// Copies any range of numbers that convert to Number; only integers where Number is one.
  template <class X>
  requires requires(const X& x) { x.begin(), x.end(); }
  List(const X& given) {
    using Given = std::remove_cvref_t<decltype(*given.begin())>;
    constexpr bool kFits =
        std::is_integral_v<Given> || (std::is_floating_point_v<Number> && std::is_floating_point_v<Given>);
    static_assert(kFits || std::is_floating_point_v<Number>,
                  "attn: lengths, ids, offsets, positions and parents must be integers");
    static_assert(kFits || std::is_integral_v<Number>, "attn: slopes, temperatures and sinks must be numbers");
    if constexpr (kFits)
      for (const auto& n : given) values.push_back(static_cast<Number>(n));
  }
  /// Not to be called: does not compile, and says that a list of one number is {2}.
  template <class X>
  requires std::is_arithmetic_v<X> List(X) {
    static_assert(sizeof(X) == 0,
                  "attn: here stands a list, with a number for each sequence, head or token; a list of one is {2}");
  }
};
using Indices = List<Index>;   ///< lengths, ids, offsets, positions
using Numbers = List<double>;  ///< slopes, temperatures, logits

}  // namespace attn
