#include "allocations.h"

#include <malloc.h>

#include <atomic>
#include <cerrno>

namespace attn::test {
namespace {

std::atomic<std::ptrdiff_t> in_use{0}, peak{0}, calls{0};
constexpr std::ptrdiff_t kNoLimit = -1;
std::atomic<std::ptrdiff_t> left{kNoLimit};

void taken(std::size_t bytes) {
  const std::ptrdiff_t now = in_use += static_cast<std::ptrdiff_t>(bytes);
  ++calls;
  std::ptrdiff_t highest = peak;
  while (now > highest && !peak.compare_exchange_weak(highest, now)) {
  }
}

void given_back(std::size_t bytes) { in_use -= static_cast<std::ptrdiff_t>(bytes); }

}  // namespace

void limit_allocations(std::ptrdiff_t count) { left = count; }
void lift_limit() { left = kNoLimit; }

void restart_counting() { in_use = peak = calls = 0; }
Allocations allocations() { return {in_use, peak, calls}; }

}  // namespace attn::test

#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define ATTN_TEST_SANITIZER_HEAP 1
#endif
#elif defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define ATTN_TEST_SANITIZER_HEAP 1
#endif

#ifdef ATTN_TEST_SANITIZER_HEAP

bool attn::test::memory_can_run_out() { return false; }

// These sanitizers replace the heap and report every allocation.
extern "C" {
std::size_t __sanitizer_get_allocated_size(const volatile void*);
void __sanitizer_malloc_hook(const volatile void*, std::size_t bytes) { attn::test::taken(bytes); }
void __sanitizer_free_hook(const volatile void* p) {
  if (p) attn::test::given_back(__sanitizer_get_allocated_size(p));
}
}

#else

bool attn::test::memory_can_run_out() { return true; }

// The C library's heap under its internal names; operator new calls malloc and aligned_alloc.
extern "C" {
void* __libc_malloc(std::size_t);
void* __libc_calloc(std::size_t, std::size_t);
void* __libc_realloc(void*, std::size_t);
void* __libc_memalign(std::size_t, std::size_t);
void __libc_free(void*);

/// Whether the limit on allocations is exhausted. Otherwise counts this allocation against it.
static bool refused() noexcept {
  std::ptrdiff_t now = attn::test::left;
  while (now > 0 && !attn::test::left.compare_exchange_weak(now, now - 1)) {
  }
  if (now == 0) errno = ENOMEM;
  return now == 0;
}
static void* counted(void* p) noexcept {
  if (p) attn::test::taken(malloc_usable_size(p));
  return p;
}

void* malloc(std::size_t bytes) noexcept { return refused() ? nullptr : counted(__libc_malloc(bytes)); }
void* calloc(std::size_t count, std::size_t bytes) noexcept {
  return refused() ? nullptr : counted(__libc_calloc(count, bytes));
}
void* memalign(std::size_t alignment, std::size_t bytes) noexcept {
  return refused() ? nullptr : counted(__libc_memalign(alignment, bytes));
}
void* aligned_alloc(std::size_t alignment, std::size_t bytes) noexcept { return memalign(alignment, bytes); }
int posix_memalign(void** to, std::size_t alignment, std::size_t bytes) noexcept {
  *to = memalign(alignment, bytes);
  return *to ? 0 : ENOMEM;
}
void free(void* p) noexcept {
  if (p) attn::test::given_back(malloc_usable_size(p));
  __libc_free(p);
}
void* realloc(void* p, std::size_t bytes) noexcept {
  if (refused()) return nullptr;
  if (p) attn::test::given_back(malloc_usable_size(p));
  return counted(__libc_realloc(p, bytes));
}
}

#endif
