// A mod and its meaning, as an entry of the tables of mods.
#pragma once

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "attn/tensor_view.h"
#include "oracle.h"

namespace attn::test {

/// The lengths of a batch element, and the position of its first query.
struct Lengths {
  Index q_len, kv_len, q_offset;
};

/// Memory of a tensor that a mod reads.
struct Memory {
  virtual ~Memory() = default;
  virtual void filled() {}  ///< called once all elements are written

  void* first = nullptr;
  Shape<4> strides{};
};

/// The call for which a row builds its mods.
struct Setting {
  Sizes sizes;
  Numbers numbers;
  Random& random;
  bool one_variant = false;  ///< one random variant of each mod; else all
  std::vector<Lengths> each =
      {};                 ///< lengths per batch element, `sizes` having the shortest; empty: all have those of `sizes`
  bool has_rope = false;  ///< queries are rotated by the position of their row, which rules out trees
  /// Allocates memory for a shape and element size; elements may share an address if may_repeat. Empty: packed.
  std::function<std::shared_ptr<Memory>(const Shape<4>&, std::size_t bytes, bool may_repeat)> memory = {};

  Index first() const { return numbers.first_position(sizes); }
  Lengths of(Index batch) const {
    return each.empty() ? Lengths{sizes.q_len, sizes.kv_len, first()} : each[static_cast<std::size_t>(batch)];
  }
  /// Whether there are batch elements, all with the same sizes. Only then may a mod depend on their lengths.
  bool even() const {
    return sizes.batch > 0 && std::all_of(each.begin(), each.end(), [&](const Lengths& l) {
             return l.q_len == sizes.q_len && l.kv_len == sizes.kv_len && l.q_offset == each[0].q_offset;
           });
  }
  Index longest() const {
    Index most = sizes.kv_len;
    for (const Lengths& l : each) most = std::max(most, l.kv_len);
    return most;
  }
};

/// A tensor that a mod and its meaning read in place; the meaning keeps it alive. It has rank 4 and broadcasts over
/// (batch, heads, q_len, kv_len) where a size is 1.
template <class T>
class Held {
 public:
  template <class Draw>
  Held(const Setting& s, const Shape<4>& shape, Draw draw, bool may_repeat = true) {
    memory_ = s.memory ? s.memory(shape, sizeof(T), may_repeat) : std::make_shared<Packed>(shape);
    const TensorView<T, 4> all(static_cast<T*>(memory_->first), shape, memory_->strides);
    for (Index b = 0; b < shape[0]; ++b)
      for (Index h = 0; h < shape[1]; ++h)
        for (Index i = 0; i < shape[2]; ++i)
          for (Index j = 0; j < shape[3]; ++j) all(b, h, i, j) = static_cast<T>(draw());
    memory_->filled();
    view_ = all;
  }

  T operator()(Index b, Index h, Index i, Index j) const {
    const auto at = [&](int d, Index x) { return view_.dim(d) == 1 ? 0 : x; };
    return view_(at(0, b), at(1, h), at(2, i), at(3, j));
  }
  T operator()(const Pair& p) const { return (*this)(p.batch, p.head, p.row, p.kv); }

  Index dim(int d) const { return view_.dim(d); }
  Index size() const { return view_.size(); }
  /// A view of the last Rank dimensions; the others are 1.
  template <int Rank = 4>
  TensorView<const T, Rank> view() const {
    Shape<Rank> shape, strides;
    for (int d = 0; d < Rank; ++d) {
      shape[static_cast<std::size_t>(d)] = view_.dim(4 - Rank + d);
      strides[static_cast<std::size_t>(d)] = view_.stride(4 - Rank + d);
    }
    return TensorView<const T, Rank>(view_.data(), shape, strides);
  }

  std::string text() const {
    std::string s = "[";
    for (int d = 0; d < 4; ++d) s += std::to_string(view_.dim(d)) + " ";
    s.back() = ']';
    return s;
  }

 private:
  struct Packed : Memory {
    explicit Packed(const Shape<4>& shape)
        : elements(new T[static_cast<std::size_t>(shape[0] * shape[1] * shape[2] * shape[3])]) {
      first = elements.get();
      strides = {shape[1] * shape[2] * shape[3], shape[2] * shape[3], shape[3], 1};
    }
    std::unique_ptr<T[]> elements;
  };

  std::shared_ptr<Memory> memory_;
  TensorView<const T, 4> view_;
};

/// A mod and its meaning.
template <class M>
struct Row {
  std::string name;
  M mod;
  Meaning meaning;
};

/// The meaning of `a | b`: first `a`, then `b`.
inline Meaning both(const Meaning& a, const Meaning& b) {
  Meaning m;
  if (a.keep || b.keep) m.keep = [=](const Pair& p) { return (!a.keep || a.keep(p)) && (!b.keep || b.keep(p)); };
  if (a.score || b.score)
    m.score = [=](Real x, const Pair& p) {
      const Real y = a.score ? a.score(x, p) : x;
      return b.score ? b.score(y, p) : y;
    };
  if (a.weight || b.weight) {
    m.weight = [=](Real w, const Pair& p) {
      const Real y = a.weight ? a.weight(w, p) : w;
      return b.weight ? b.weight(y, p) : y;
    };
    m.weight_slope = [=](Real w, const Pair& p) {
      const Real slope = a.weight_slope ? a.weight_slope(w, p) : 1, y = a.weight ? a.weight(w, p) : w;
      return b.weight_slope ? slope * b.weight_slope(y, p) : slope;
    };
  }
  if (a.sink || b.sink)
    m.sink = [=](Index head) {
      return std::log((a.sink ? std::exp(a.sink(head)) : 0) + (b.sink ? std::exp(b.sink(head)) : 0));
    };
  if (a.factor || b.factor)
    m.factor = [=](const Pair& p) { return (a.factor ? a.factor(p) : 1) * (b.factor ? b.factor(p) : 1); };
  if (a.gain || b.gain) m.gain = [=](Index head) { return (a.gain ? a.gain(head) : 1) * (b.gain ? b.gain(head) : 1); };
  m.passes = std::max(a.passes, b.passes);
  return m;
}

template <class A, class B>
auto operator|(const Row<A>& a, const Row<B>& b) {
  return Row<decltype(a.mod | b.mod)>{a.name + " | " + b.name, a.mod | b.mod, both(a.meaning, b.meaning)};
}

/// The variants of one factory, which all have the same type.
template <class M>
using Rows = std::vector<Row<M>>;

}  // namespace attn::test
