// The exception that a PagedKvCache throws when it runs out of pages.
#pragma once

#include <stdexcept>

#include "attn/core/base/check.h"

namespace attn {

/// Thrown when the pool does not have enough free pages. Nothing was changed: release() or truncate() a sequence and
/// try again.
class OutOfPages : public std::runtime_error {
 public:
  /// The call needs `needed` more pages; `free` of `pages` are free.
  OutOfPages(Index needed, Index free, Index pages)
      : std::runtime_error(detail::joined({"attn: ", needed, " more pages are needed, but only ", free, " of ", pages,
                                           " are free; release() or truncate() a sequence"})),
        needed_(needed),
        free_(free) {}
  /// The number of pages that the call would have taken.
  Index needed() const { return needed_; }
  /// The number of pages that were free.
  Index free() const { return free_; }

 private:
  Index needed_, free_;
};

}  // namespace attn
