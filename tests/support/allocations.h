// Counts what a program takes from the heap by any means (new, malloc, aligned_alloc, …), and makes the heap run out.
#pragma once

#include <cstddef>
#include <new>
#include <system_error>

namespace attn::test {

/// The bytes in use since the last restart, counted for all threads: now, and at most.
struct Allocations {
  std::ptrdiff_t in_use = 0;
  std::ptrdiff_t peak = 0;
  std::ptrdiff_t calls = 0;
};

void restart_counting();
Allocations allocations();

/// The most that `call` takes beyond what was in use before.
template <class Call>
Allocations allocations_of(const Call& call) {
  restart_counting();
  call();
  return allocations();
}

/// Whether memory can be made to run out here. It cannot with the sanitizer's own heap.
bool memory_can_run_out();

/// Lets all threads make `count` more allocations and none after them, until there is no limit again.
void limit_allocations(std::ptrdiff_t count);
void lift_limit();

/// Whether `call` ran out of memory with this many allocations. A thread that cannot be started is a std::system_error.
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
