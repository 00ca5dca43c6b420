// Counts what a program takes from the heap, by whatever means: new, malloc, aligned_alloc, …
#pragma once

#include <cstddef>

namespace attn::test {

/// Bytes in use since the last restart, counted by all threads: now, and at most.
struct Allocations {
  std::ptrdiff_t in_use = 0;
  std::ptrdiff_t peak = 0;
  std::ptrdiff_t calls = 0;
};

void restart_counting();
Allocations allocations();

/// What `call` takes at most, beyond what was in use before.
template <class Call>
Allocations allocations_of(const Call& call) {
  restart_counting();
  call();
  return allocations();
}

}  // namespace attn::test
