// Counts a program's heap allocations of any kind (new, malloc, aligned_alloc, …), and simulates exhausted memory.
#pragma once

#include <cstddef>
#include <new>
#include <system_error>

namespace attn::test {

/// Since the last restart, over all threads: bytes in use, their maximum, and the number of allocations.
struct Allocations {
  std::ptrdiff_t in_use = 0;
  std::ptrdiff_t peak = 0;
  std::ptrdiff_t calls = 0;
};

void restart_counting();
Allocations allocations();

/// The allocations of `call`, relative to the memory in use before it.
template <class Call>
Allocations allocations_of(const Call& call) {
  restart_counting();
  call();
  return allocations();
}

/// Whether the limit below works. It does not with a sanitizer's heap.
bool memory_can_run_out();

/// Lets all threads together make `count` more allocations, and fails all others until lift_limit().
void limit_allocations(std::ptrdiff_t count);
void lift_limit();

/// Whether `call` ran out of memory with this many allocations. Failing to start a thread (std::system_error) counts,
/// too.
template <class Call>
bool runs_out(std::ptrdiff_t allocations, const Call& call) {
  limit_allocations(allocations);
  try {
    call();
  } catch (const std::bad_alloc&) {
    lift_limit();
    return true;
  } catch (const std::system_error&) {
    lift_limit();
    return true;
  } catch (...) {
    lift_limit();
    throw;
  }
  lift_limit();
  return false;
}

}  // namespace attn::test
