// Room for objects of which few may be needed.
#pragma once

#include <memory>
#include <span>
#include <type_traits>
#include <utility>

#include "attn/types.h"

namespace attn::detail {

/// Up to `most` objects, which are made when they are taken. An array would make all of them: for one single query that
/// was a fifth of the work.
template <class X, Index most>
class RoomFor {
  static_assert(std::is_trivially_destructible_v<X>);

 public:
  RoomFor() {}  // NOLINT: nothing is made yet

  /// The next object, made of these.
  template <class... Args>
  X& add(Args&&... args) {
    return *std::construct_at(objects_ + taken_++, std::forward<Args>(args)...);
  }
  /// All that were taken.
  std::span<X> all() { return {objects_, static_cast<std::size_t>(taken_)}; }

  /// The next `count` objects.
  std::span<X> take(Index count) {
    X* const first = objects_ + taken_;
    for (Index i = 0; i < count; ++i) std::construct_at(first + i);
    taken_ += count;
    return {first, static_cast<std::size_t>(count)};
  }

 private:
  union {
    X objects_[static_cast<std::size_t>(most)];
  };
  Index taken_ = 0;
};

}  // namespace attn::detail
