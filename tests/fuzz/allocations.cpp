// Replaces aligned allocation, which the library uses for results, workspaces and caches, so that these end at a guard
// page, too, and initially contain NaN.
#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define FUZZ_HAS_ASAN 1
#endif
#endif
#if !defined(FUZZ_HAS_ASAN) && !defined(__SANITIZE_ADDRESS__)

#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <new>

namespace {

std::size_t page_size() {
  static const auto size = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  return size;
}

}  // namespace

// Layout: a page that stores the size, a guard page, the pages of the memory, a guard page. The memory ends at the
// second guard page and begins in the first of its own pages, so operator delete finds the stored size.
void* operator new(std::size_t bytes, std::align_val_t alignment) {
  const std::size_t page = page_size(), align = static_cast<std::size_t>(alignment);
  const std::size_t aligned = (bytes + align - 1) / align * align, inside = (aligned + page - 1) / page * page;
  if (inside < bytes || align > page) throw std::bad_alloc();
  void* all = mmap(nullptr, inside + 3 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (all == MAP_FAILED) throw std::bad_alloc();
  auto* const first = static_cast<std::byte*>(all);
  if (mprotect(first, page, PROT_READ | PROT_WRITE) != 0 ||
      (inside > 0 && mprotect(first + 2 * page, inside, PROT_READ | PROT_WRITE) != 0))
    throw std::bad_alloc();
  *reinterpret_cast<std::size_t*>(first) = inside + 3 * page;
  std::memset(first + 2 * page, 0xff, inside);
  return first + 2 * page + (inside - aligned);
}
void operator delete(void* memory, std::align_val_t) noexcept {
  if (memory == nullptr) return;
  const auto at = reinterpret_cast<std::uintptr_t>(memory);
  auto* const first = static_cast<std::byte*>(memory) - at % page_size() - 2 * page_size();
  munmap(first, *reinterpret_cast<std::size_t*>(first));
}
void operator delete(void* memory, std::size_t, std::align_val_t alignment) noexcept {
  operator delete(memory, alignment);
}

#endif
