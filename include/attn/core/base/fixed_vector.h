// Vector of fixed capacity that stores some elements inline.
#pragma once

#include <cassert>
#include <cstddef>
#include <memory>
#include <span>
#include <utility>

#include "attn/types.h"

namespace attn::detail {

/// A vector whose capacity is set at construction. Up to kInline elements need no heap memory. Each element is
/// constructed when it is added; an array would construct all of them at once, which was a fifth of the work for a
/// single query. Elements never move, so they may refer to each other; a std::deque guarantees that too, but accounted
/// for a tenth of the time of a call over one cache of a hundred tokens.
template <class X, Index kInline = 1>
class FixedVector {
 public:
  explicit FixedVector(Index capacity = kInline) : capacity_(capacity) {
    elements_ = capacity > kInline ? Heap().allocate(static_cast<std::size_t>(capacity)) : inline_;
  }
  FixedVector(const FixedVector&) = delete;
  FixedVector& operator=(const FixedVector&) = delete;
  ~FixedVector() {
    clear();
    if (capacity_ > kInline) Heap().deallocate(elements_, static_cast<std::size_t>(capacity_));
  }

  template <class... Args>
  X& add(Args&&... args) {
    assert(size_ < capacity_);
    X& made = *std::construct_at(elements_ + size_, std::forward<Args>(args)...);
    ++size_;
    return made;
  }
  /// Adds `count` value-initialised elements.
  std::span<X> add_all(Index count) {
    X* const first = elements_ + size_;
    for (Index i = 0; i < count; ++i) add();
    return {first, static_cast<std::size_t>(count)};
  }
  void clear() { std::destroy_n(elements_, std::exchange(size_, 0)); }

  std::span<const X> all() const { return {elements_, static_cast<std::size_t>(size_)}; }
  std::span<X> all() { return {elements_, static_cast<std::size_t>(size_)}; }
  X& operator[](Index i) { return elements_[i]; }

 private:
  using Heap = std::allocator<X>;

  Index capacity_, size_ = 0;
  union {
    X inline_[static_cast<std::size_t>(kInline)];
  };
  X* elements_;
};

}  // namespace attn::detail
