// Undoes an append to a cache if a later step of the same call fails.
#pragma once

#include <type_traits>
#include <utility>

#include "attn/isa.h"

namespace attn::detail::inline ATTN_BUILT_FOR {

/// Undoes all appends made during its lifetime, unless keep() is called. Sequences get back their old tokens and pages;
/// the capacity may have grown.
template <class Cache>
class AppendUndo {
 public:
  explicit AppendUndo(Cache& cache) : cache_(&cache), marks_(cache.marks()) {}
  AppendUndo(const AppendUndo&) = delete;
  ~AppendUndo() {
    if (cache_) cache_->restore(marks_);
  }

  void keep() { cache_ = nullptr; }

 private:
  Cache* cache_;
  std::remove_cvref_t<decltype(std::declval<const Cache&>().marks())> marks_;
};

}  // namespace attn::detail::inline ATTN_BUILT_FOR
