// Processor and operating system features that the compilers' own query does not cover.
#pragma once

#include <cstddef>

#if (defined(__x86_64__) || defined(__i386__)) && defined(__GNUC__)
#define ATTN_X86 1
#include <cpuid.h>
#else
#define ATTN_X86 0
#endif

// NEON as on 64-bit ARM: 32 registers of 128 bits, and conversions of binary16. 32-bit ARM has fewer registers and
// flushes denormals to 0.
#if defined(__aarch64__) && defined(__ARM_NEON) && defined(__GNUC__)
#define ATTN_NEON 1
#else
#define ATTN_NEON 0
#endif

// The vector products of bf16 need the 32 registers of 64-bit programs.
#if defined(__x86_64__) && defined(__GNUC__)
#define ATTN_BF16 1
#else
#define ATTN_BF16 0
#endif

// The matrix unit must be requested from the operating system. The request is implemented for Linux only: see
// amx_permitted().
#if ATTN_BF16 && defined(__linux__)
#define ATTN_AMX 1
#else
#define ATTN_AMX 0
#endif

namespace attn::detail {

/// Whether software emulates the matrix unit. Only tests, compiled with ATTN_SOFTWARE_TILES, do this; they define the
/// function in tests/support/software_tiles.cpp.
#if defined(ATTN_SOFTWARE_TILES)
bool software_tiles();
#else
constexpr bool software_tiles() { return false; }
#endif

/// Bytes of a cache line, the unit of transfer from memory.
#if defined(__APPLE__) && defined(__aarch64__)
constexpr std::ptrdiff_t kCacheLine = 128;
#else
constexpr std::ptrdiff_t kCacheLine = 64;
#endif

/// Maximum bytes of one array on the stack. WebAssembly's default stack is 64 KiB; the deepest calls, of doubles over a
/// cache, need 41 KiB.
#if defined(__wasm__)
constexpr std::ptrdiff_t kMostOnStack = 16 * 1024;
#else
constexpr std::ptrdiff_t kMostOnStack = 32 * 1024;
#endif

/// Whether prefetching does anything. WebAssembly has no prefetch instruction, but clang keeps the loops around
/// prefetches: with these loops, a call with head_dim 32 took 1.08 times as long.
#if defined(__wasm__)
constexpr bool kPrefetches = false;
#else
constexpr bool kPrefetches = true;
#endif

#if ATTN_X86
/// Whether the processor converts between float and binary16 (F16C). clang 14 has no name for this feature. The
/// processor is queried only once, because CPUID takes tens of microseconds under a hypervisor.
inline bool cpu_has_f16c() {
  static const bool has = [] {
    unsigned a, b, c, d;
    return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & (1u << 29)) != 0;
  }();
  return has;
}
#endif

/// Whether the processor has dot products of 8-bit integers in 64-byte vectors (AVX512-VNNI). See cpu_has_amx() for the
/// source of the bits.
inline bool cpu_has_avx512_vnni() {
#if ATTN_X86
  static const bool has = [] {
    unsigned a, b, c, d;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (c & (1u << 11)) != 0;
  }();
  return has;
#else
  return false;
#endif
}

/// Whether the processor has dot products of 8-bit integers in 32-byte vectors (AVX-VNNI), as some processors without
/// AVX-512 do.
inline bool cpu_has_avx_vnni() {
#if ATTN_X86
  static const bool has = [] {
    unsigned a, b, c, d;
    return __get_cpuid_count(7, 1, &a, &b, &c, &d) != 0 && (a & (1u << 4)) != 0;
  }();
  return has;
#else
  return false;
#endif
}

/// Whether the processor has vector products of bf16 and vector conversions to it (AVX512-BF16). See cpu_has_amx() for
/// the source of the bits.
inline bool cpu_has_bf16() {
#if ATTN_BF16
  static const bool has = [] {
    unsigned a, b, c, d;
    return __get_cpuid_count(7, 1, &a, &b, &c, &d) != 0 && (a & (1u << 5)) != 0;
  }();
  return has;
#else
  return false;
#endif
}

/// Whether the processor has tiles of bf16 (AMX-TILE, AMX-BF16) and vector conversions to bf16 (AVX512-BF16), and the
/// operating system saves the tiles. The bits are from Intel's Software Developer's Manual, volume 2A, CPUID, and
/// volume 1, section 13.3 (XCR0).
inline bool cpu_has_amx() {
#if ATTN_AMX
  static const bool has = [] {
    if (software_tiles()) return true;
    unsigned a, b, c, d;
    constexpr unsigned kOsXsave = 1u << 27, kAmxBf16 = 1u << 22, kAmxTile = 1u << 24;
    if (__get_cpuid(1, &a, &b, &c, &d) == 0 || (c & kOsXsave) == 0) return false;
    if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0 || (d & kAmxBf16) == 0 || (d & kAmxTile) == 0) return false;
    if (!cpu_has_bf16()) return false;
    constexpr unsigned kTileState = 3u << 17;
    unsigned low, high;
    asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (low & kTileState) == kTileState;
  }();
  return has;
#else
  return false;
#endif
}

/// Whether this process may use the tiles. The first call requests them from the operating system, for all threads of
/// the process. The system may refuse, because of its policy or because some thread's signal stack is too small for the
/// tile registers.
inline bool amx_permitted() {
#if ATTN_AMX
  static const bool granted = [] {
    if (!cpu_has_amx()) return false;
    if (software_tiles()) return true;
    // Including the system's headers would add their functions to the global namespace of every program.
    constexpr long kArchPrctl = 158, kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XTILEDATA
    long result;
    asm volatile("syscall"
                 : "=a"(result)
                 : "a"(kArchPrctl), "D"(kRequestPermission), "S"(kTileData)
                 : "rcx", "r11", "memory");
    return result == 0;
  }();
  return granted;
#else
  return false;
#endif
}

}  // namespace attn::detail
