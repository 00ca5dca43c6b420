// Bump allocator over one block of memory. It can also measure a layout without memory.
#pragma once

#include <cstddef>
#include <utility>

#include "attn/core/base/ranges.h"
#include "attn/types.h"

namespace attn::detail {

/// Hands out consecutive arrays of T from memory that it does not own. Without memory it only counts, so that one
/// function both lays out the memory of a task and computes its size:
///
///     Index bytes() const { return Arena<T>::count([&](Arena<T>& arena) { lay_out(arena); }); }
///
/// The length of an array of T is rounded up to a multiple of kUnit elements.
template <class T, Index kUnit = 1>
class Arena {
 public:
  /// Only counts if `memory` is null.
  explicit Arena(std::byte* memory) : memory_(memory) {}

  /// Returns an uninitialised array; null while counting.
  T* take(Index numbers) { return take_as<T>(padded(numbers, kUnit)); }
  /// Returns an array of a different type; the bytes taken so far must be a multiple of its alignment.
  template <class X>
  X* take_as(Index count) {
    const Index begin = std::exchange(taken_, taken_ + count * static_cast<Index>(sizeof(X)));
    return memory_ ? reinterpret_cast<X*>(memory_ + begin) : nullptr;
  }
  /// Skips some bytes.
  void skip(Index bytes) { taken_ += bytes; }
  /// Skips the rest of a cache line.
  void align() { taken_ = padded(taken_, kAlignment); }

  Index taken() const { return taken_; }

  /// Returns the number of bytes that lay_out(arena) takes, in whole cache lines, so that two workers never write to
  /// the same line.
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
