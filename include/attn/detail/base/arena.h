// Bump allocator over one block of memory, which can also count what would be taken.
#pragma once

#include <cstddef>
#include <utility>

#include "attn/detail/base/ranges.h"
#include "attn/types.h"

namespace attn::detail {

/// Hands out arrays of numbers of T, one after the other, from memory that it does not own. Without memory it only
/// counts, so that one function lays out the memory of a task and tells its size:
///
///     Index bytes() const { return Arena<T>::count([&](Arena<T>& arena) { lay_out(arena); }); }
///
/// An array of T takes a multiple of kUnit numbers.
template <class T, Index kUnit = 1>
class Arena {
 public:
  /// Null memory: counts.
  explicit Arena(std::byte* memory) : memory_(memory) {}

  /// An array of indeterminate numbers; null while counting.
  T* take(Index numbers) { return take_as<T>(padded(numbers, kUnit)); }
  /// An array of another type, to which the memory so far must be aligned.
  template <class X>
  X* take_as(Index count) {
    const Index begin = std::exchange(taken_, taken_ + count * static_cast<Index>(sizeof(X)));
    return memory_ ? reinterpret_cast<X*>(memory_ + begin) : nullptr;
  }
  /// Leaves out some bytes.
  void skip(Index bytes) { taken_ += bytes; }
  /// Leaves out the rest of a cache line.
  void align() { taken_ = padded(taken_, kAlignment); }

  Index taken() const { return taken_; }

  /// The bytes that lay_out(arena) takes, in whole cache lines, so that two workers never write to the same one.
  template <class LayOut>
  static Index count(const LayOut& lay_out) {
    Arena counting(nullptr);
    lay_out(counting);
    counting.align();
    return counting.taken();
  }

 private:
  std::byte* memory_;
  Index taken_ = 0;
};

}  // namespace attn::detail
