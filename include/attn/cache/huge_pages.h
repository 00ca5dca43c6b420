// Memory in pages of 2 MiB, where the operating system supports them.
#pragma once

#include <cstddef>
#include <cstdint>

#include "attn/core/base/ranges.h"

#if defined(__linux__)
#include <sys/mman.h>
#include <unistd.h>
#endif

namespace attn::detail {

/// Requests huge pages for memory that has not been touched yet. Reading memory from end to end is then a fifth faster
/// (decoding, 4096 and 32768 keys). If the system does not grant the request, nothing changes.
inline void advise_huge_pages([[maybe_unused]] void* data, [[maybe_unused]] std::ptrdiff_t bytes) {
#if defined(__linux__) && defined(MADV_HUGEPAGE)
  constexpr std::ptrdiff_t kWorthIt = std::ptrdiff_t(4) << 20;  // two huge pages
  if (bytes < kWorthIt) return;
  const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE)),
             address = reinterpret_cast<std::uintptr_t>(data);
  const std::uintptr_t begin = padded(address, page),
                       end = (address + static_cast<std::uintptr_t>(bytes)) / page * page;
  ::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
#endif
}

}  // namespace attn::detail
