// Counts what a program takes from the heap, by whatever means: new, malloc, aligned_alloc, …; and has it run out.
#pragma once

#include <cstddef>
#include <new>
#include <system_error>

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

/// Can memory be made to run out here? Not with the sanitizer's own heap.
bool memory_can_run_out();

/// So many allocations are made from now on, of all threads; none after them, until there is no limit again.
void limit_allocations(std::ptrdiff_t count);
void lift_limit();

/// Was there too little memory for `call` with so many allocations? A thread that cannot be started is a
/// std::system_error.
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
