// Counts heap memory by replacing the C allocator: Eigen allocates with malloc and posix_memalign, the library with
// operator new, and all of these calls end up here.
#include "memory.h"

#include <malloc.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <exception>
#include <thread>

#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) || __has_feature(memory_sanitizer)
#define ATTN_BENCH_SANITIZED
#endif
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define ATTN_BENCH_SANITIZED
#endif

namespace {

std::atomic<std::ptrdiff_t> live{0};
std::atomic<std::ptrdiff_t> peak{0};

}  // namespace

#if defined(__GLIBC__) && !defined(ATTN_BENCH_SANITIZED)

namespace {

constexpr bool kCounted = true;

void* counted(void* p) {
  if (!p) return p;
  const auto bytes = static_cast<std::ptrdiff_t>(malloc_usable_size(p));
  const std::ptrdiff_t now = live.fetch_add(bytes, std::memory_order_relaxed) + bytes;
  std::ptrdiff_t highest = peak.load(std::memory_order_relaxed);
  while (now > highest && !peak.compare_exchange_weak(highest, now, std::memory_order_relaxed)) {
  }
  return p;
}

void uncount(void* p) {
  if (p) live.fetch_sub(static_cast<std::ptrdiff_t>(malloc_usable_size(p)), std::memory_order_relaxed);
}

}  // namespace

// glibc provides its allocator under these names for programs that replace the public ones. Its manual ("Replacing
// malloc") requires a replacement to define every name below.
extern "C" {
void* __libc_malloc(std::size_t size) noexcept;
void* __libc_calloc(std::size_t count, std::size_t size) noexcept;
void* __libc_realloc(void* p, std::size_t size) noexcept;
void* __libc_memalign(std::size_t alignment, std::size_t size) noexcept;
void* __libc_valloc(std::size_t size) noexcept;
void* __libc_pvalloc(std::size_t size) noexcept;
void __libc_free(void* p) noexcept;

void* malloc(std::size_t size) noexcept { return counted(__libc_malloc(size)); }
void* calloc(std::size_t count, std::size_t size) noexcept { return counted(__libc_calloc(count, size)); }
void* memalign(std::size_t alignment, std::size_t size) noexcept { return counted(__libc_memalign(alignment, size)); }
void* aligned_alloc(std::size_t alignment, std::size_t size) noexcept { return memalign(alignment, size); }
void* valloc(std::size_t size) noexcept { return counted(__libc_valloc(size)); }
void* pvalloc(std::size_t size) noexcept { return counted(__libc_pvalloc(size)); }

int posix_memalign(void** out, std::size_t alignment, std::size_t size) noexcept {
  if (alignment % sizeof(void*) != 0 || alignment == 0 || (alignment & (alignment - 1)) != 0) return EINVAL;
  void* p = memalign(alignment, size);
  if (!p) return ENOMEM;
  *out = p;
  return 0;
}

void free(void* p) noexcept {
  uncount(p);
  __libc_free(p);
}

void* realloc(void* p, std::size_t size) noexcept {
  const auto before = p ? static_cast<std::ptrdiff_t>(malloc_usable_size(p)) : 0;
  void* moved = __libc_realloc(p, size);
  // A failed realloc keeps the old block; one to size 0 frees it and also returns null.
  if (moved || size == 0) live.fetch_sub(before, std::memory_order_relaxed);
  return counted(moved);
}
}

#else

namespace {
constexpr bool kCounted = false;
}

#endif

namespace bench {

bool memory_is_counted() { return kCounted; }

std::ptrdiff_t extra_memory(const std::function<void()>& call) {
  std::ptrdiff_t extra = 0;
  std::exception_ptr error;
  std::thread([&] {
    const std::ptrdiff_t before = live.load();
    peak.store(before);
    try {
      call();
    } catch (...) {
      error = std::current_exception();
    }
    extra = peak.load() - before;
  }).join();
  if (error) std::rethrow_exception(error);
  return extra;
}

}  // namespace bench
