// Lists of indices of any lengths, and their conversion from what users pass: offsets and indices (CSR), or a list of
// indices per query.
#pragma once

#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "attn/core/mods/broadcast.h"

namespace attn::detail {

/// A range that is not a tensor: std::vector, std::set, std::initializer_list …
template <class X>
concept PlainRange = !Viewable<X> && requires(const X& x) {
  x.begin();
  x.end();
  x.size();
};
template <class X>
using item_t = std::remove_cvref_t<decltype(*std::declval<const X&>().begin())>;

/// Nesting depth of ranges in X: 1 for a range of numbers, 0 for a type that is not a range.
template <class X>
constexpr int nesting = 0;
template <PlainRange X>
constexpr int nesting<X> = 1 + nesting<item_t<X>>;

/// Lists in compressed rows (CSR): list i has the entries offsets[i] .. offsets[i + 1] - 1 of `indices`. There are
/// batch x heads x rows lists; batch, heads and rows may be 1 where the call has more.
struct CompressedLists {
  Index batch = 1, heads = 1, rows = 1;
  std::vector<Index> offsets = {0}, indices;

  Index count() const { return static_cast<Index>(offsets.size()) - 1; }
  Index number(Index b, Index head, Index row) const {
    return ((batch == 1 ? 0 : b) * heads + head) * rows + (rows == 1 ? 0 : row);
  }
  Index begin(Index number) const { return offsets[static_cast<std::size_t>(number)]; }
  Index size(Index number) const { return begin(number + 1) - begin(number); }
  std::span<const Index> list(Index number) const {
    return {indices.data() + begin(number), static_cast<std::size_t>(size(number))};
  }
};

/// Integers that a user passes as a tensor or as a range, and the shape of the tensor.
struct GivenIntegers {
  std::vector<Index> shape, values;

  template <class X>
  static GivenIntegers of(const X& given) {
    GivenIntegers numbers;
    if constexpr (PlainRange<X>) {
      numbers.append(given);
      numbers.shape = {static_cast<Index>(numbers.values.size())};
    } else if constexpr (check_tensor<X>()) {
      check<scalar_t<X>>();
      if constexpr (std::is_integral_v<scalar_t<X>>) {
        const auto tensor = broadcast_tensor(given);
        numbers.shape.assign(tensor.given_shape().begin(), tensor.given_shape().end());
        for (const auto n : tensor.row_major()) numbers.values.push_back(static_cast<Index>(n));
      }
    }
    return numbers;
  }

  template <PlainRange X>
  void append(const X& range) {
    check<item_t<X>>();
    if constexpr (std::is_integral_v<item_t<X>>)
      for (const auto& n : range) values.push_back(static_cast<Index>(n));
  }

 private:
  template <class Number>
  static constexpr void check() {
    static_assert(std::is_integral_v<Number> && !std::is_same_v<Number, bool>,
                  "attn: list offsets and indices must be integers");
  }
};

/// Makes lists from offsets and indices.
/// @throws std::invalid_argument if the offsets do not split the indices into lists, or an index is negative.
inline CompressedLists lists_of(const char* mod, GivenIntegers offsets, GivenIntegers indices) {
  const std::vector<Index>& shape = offsets.shape;
  require(shape.size() <= 3 && shape.back() > 0, mod, ": the offsets have shape ", std::span(shape),
          ", expected (q_len + 1), (heads, q_len + 1) or (batch, heads, q_len + 1)");
  require(indices.shape.size() == 1, mod, ": the indices have shape ", std::span(indices.shape),
          ", but must have rank 1 if offsets are given");
  CompressedLists lists;
  lists.rows = shape.back() - 1;
  if (shape.size() > 1) lists.heads = shape[shape.size() - 2];
  if (shape.size() > 2) lists.batch = shape[0];
  lists.indices = std::move(indices.values);
  const Index count = static_cast<Index>(lists.indices.size());
  for (std::size_t i = 0; i < offsets.values.size(); ++i) {
    const Index offset = offsets.values[i], before = lists.offsets.back();
    if (static_cast<Index>(i) % shape.back() == 0) {
      require(offset == before, mod, ": offsets[", i, "] must be ", before,
              i == 0 ? ", but is " : ", where the previous head ends, but is ", offset);
      continue;
    }
    require(offset >= before, mod, ": offsets[", i, "] is ", offset, " after ", before, "; offsets must not decrease");
    lists.offsets.push_back(offset);
  }
  require(lists.offsets.back() == count, mod, ": the last offset is ", lists.offsets.back(), ", but there are ", count,
          " indices");
  for (std::size_t i = 0; i < lists.indices.size(); ++i)
    require(lists.indices[i] >= 0, mod, ": indices[", i, "] must not be negative, but is ", lists.indices[i]);
  return lists;
}

/// Makes lists from nested ranges: by query, by head and query, or by batch element, head and query.
/// @throws std::invalid_argument unless all heads have the same number of lists.
template <class X>
CompressedLists nested_lists(const char* mod, const X& given) {
  constexpr std::size_t kDepth = nesting<X>;
  static_assert(kDepth <= 4,
                "attn: lists of keys must be nested by query, by head and query, or by batch element, head and query");
  GivenIntegers offsets, indices;
  std::vector<Index>& shape = offsets.shape;
  const auto add = [&]<class Part>(const auto& self, const Part& part, std::size_t depth) -> void {
    if constexpr (nesting<Part> == 1) {
      indices.append(part);
      offsets.values.push_back(static_cast<Index>(indices.values.size()));
    } else {
      constexpr Index kMore = nesting<Part> == 2 ? 1 : 0;  // one more offset than lists
      const Index size = static_cast<Index>(part.size()) + kMore;
      if (shape.size() == depth) shape.push_back(size);
      require(shape[depth] == size, mod, kMore == 1 ? ": one head has " : ": one batch element has ",
              shape[depth] - kMore, kMore == 1 ? " lists, another has " : " heads, another has ", size - kMore);
      if constexpr (nesting<Part> == 2) offsets.values.push_back(static_cast<Index>(indices.values.size()));
      for (const auto& inner : part) self(self, inner, depth + 1);
    }
  };
  add(add, given, 0);
  while (shape.size() < kDepth - 1) shape.push_back(shape.size() == kDepth - 2 ? 1 : 0);  // for an empty range
  indices.shape = {static_cast<Index>(indices.values.size())};
  return lists_of(mod, std::move(offsets), std::move(indices));
}

/// Returns how many neighbouring query heads share a list, if there are lists for `heads` heads.
inline Index heads_of_list(Index heads, const Problem& call) {
  return heads == 1 ? call.heads : heads == call.heads ? 1 : call.heads / call.kv_heads;
}

/// Checks lists, whose keys ascend, against a call. `columns` is the number of columns of the tensor that the lists
/// were given in, or -1 if they were given one by one.
/// @throws std::invalid_argument unless there is a list for each query of the call, and all listed keys exist.
inline void check_lists(const char* mod, const CompressedLists& lists, Index columns, const Problem& p) {
  require(!p.interleaved_heads || lists.heads == p.heads || lists.heads == 1, mod, ": lists of ", lists.heads,
          " key heads need consecutive query heads that share them, but interleaved_heads is true; pass lists of all ",
          p.heads, " query heads");
  const Index shape[] = {lists.batch, lists.heads, lists.rows, columns};
  const bool heads_fit = lists.heads == p.heads || lists.heads == p.kv_heads || lists.heads == 1,
             one_by_one = columns < 0;
  require((lists.batch == p.batch || lists.batch == 1) && heads_fit && (lists.rows == p.q_len || lists.rows == 1), mod,
          one_by_one ? ": there are lists for " : ": the indices have shape ",
          std::span<const Index>(shape).first(one_by_one ? 3 : 4), ", but the call has (", p.batch, ", ", p.heads,
          " or ", p.kv_heads, ", ", p.q_len,
          one_by_one ? ") as (batch, heads or kv_heads, q_len)" : ", n) as (batch, heads or kv_heads, q_len, n)");
  for (Index i = 0; i < lists.count(); ++i) {
    const std::span<const Index> list = lists.list(i);
    const Index batch = i / (lists.heads * lists.rows);
    if (list.empty() || (lists.batch > 1 && p.sequence && batch != *p.sequence)) continue;
    require(list.back() < p.kv_len || p.has_part_of_keys, mod, ": index ", list.back(), " is out of range; there are ",
            p.kv_len, " keys");
  }
}

}  // namespace attn::detail
