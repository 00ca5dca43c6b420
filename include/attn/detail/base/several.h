// Objects of which there is mostly one.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <utility>

namespace attn::detail {

/// Up to as many objects as it is made for. One lies in it and takes nothing from the heap: what std::deque allocates
/// was a tenth of a call over one cache of a hundred tokens. Objects do not move, so that they may refer to each other.
/// RoomFor has room for a number that is known to the compiler, and objects that need no destructor.
template <class X>
class Several {
 public:
  explicit Several(std::size_t most) : most_(most) { objects_ = most > 1 ? Heap().allocate(most) : &one_; }
  Several(const Several&) = delete;
  Several& operator=(const Several&) = delete;
  ~Several() {
    clear();
    if (objects_ != &one_) Heap().deallocate(objects_, most_);
  }

  /// The next object, made of these.
  template <class... Args>
  X& add(Args&&... args) {
    X& made = *std::construct_at(objects_ + made_, std::forward<Args>(args)...);
    ++made_;
    return made;
  }
  void clear() { std::destroy_n(objects_, std::exchange(made_, 0)); }

  std::span<X> all() { return {objects_, made_}; }
  X& operator[](std::size_t i) { return objects_[i]; }

 private:
  using Heap = std::allocator<X>;

  std::size_t most_, made_ = 0;
  union {
    X one_;
  };
  X* objects_;
};

}  // namespace attn::detail
