// Room for objects of which few may be needed.
#pragma once

#include <memory>
#include <span>
#include <type_traits>
#include <utility>

#include "attn/types.h"

namespace attn::detail {

/// Room for up to `most` objects, each of which is made when it is taken. An array would make all of them at once,
/// which was a fifth of the work for one single query.
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
