// Lists of numbers that options and mods take.
#pragma once

#include <initializer_list>
#include <type_traits>
#include <utility>
#include <vector>

#include "attn/core/base/short_list.h"
#include "attn/types.h"

namespace attn {

/// A list of numbers as a function argument, copied from {1, 2} or any range of numbers, such as a std::vector<int>, an
/// Eigen::VectorXi or a Tensor<int, 2>. Up to eight numbers are stored inline; more are allocated on the heap.
template <class Number>
struct List {
  detail::ShortList<Number> values;  ///< the numbers, with data(), size(), [] and begin() as in std::vector

  /// Moves the vector.
  List(std::vector<Number>&& given) : values(std::move(given)) {}
  /// Copies the vector.
  List(const std::vector<Number>& given) : values(given) {}
  /// Copies the numbers in braces.
  List(std::initializer_list<Number> given) : values({given.begin(), given.size()}) {}
  /// Copies any range of numbers that convert to Number; only integers if Number is an integer type.
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
  /// Not to be called: fails to compile, with a message that says to write a list of one number in braces, as {2}.
  template <class X>
  requires std::is_arithmetic_v<X> List(X) {
    static_assert(
        sizeof(X) == 0,
        "attn: this argument must be a list with one number per sequence, head or token; write {2} for a list of one");
  }
};
using Indices = List<Index>;   ///< lengths, ids, offsets, positions
using Numbers = List<double>;  ///< slopes, temperatures, logits

}  // namespace attn
