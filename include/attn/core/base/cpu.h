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
// flushes denormals to 0. Tests may compile the same code for other processors (tests/support/software_neon).
#if (defined(__aarch64__) && defined(__ARM_NEON) && defined(__GNUC__)) || defined(ATTN_SOFTWARE_NEON)
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

/// What CPUID returns for a leaf and a subleaf (Intel, Software Developer's Manual, volume 2A); 0 for leaves that the
/// processor lacks, and on processors without CPUID. CPUID takes tens of microseconds under a hypervisor, so each
/// feature is queried only once.
struct CpuId {
  unsigned a = 0, b = 0, c = 0, d = 0;

  explicit CpuId([[maybe_unused]] unsigned leaf, [[maybe_unused]] unsigned subleaf = 0) {
#if ATTN_X86
    __get_cpuid_count(leaf, subleaf, &a, &b, &c, &d);
#endif
  }
};

/// Whether the processor converts between float and binary16 (F16C). clang 14 has no name for this feature.
inline bool cpu_has_f16c() {
  static const bool has = (CpuId(1).c & (1u << 29)) != 0;
  return has;
}
/// Whether the processor has dot products of 8-bit integers in 64-byte vectors (AVX512-VNNI).
inline bool cpu_has_avx512_vnni() {
  static const bool has = (CpuId(7, 0).c & (1u << 11)) != 0;
  return has;
}
/// Whether the processor has dot products of 8-bit integers in 32-byte vectors (AVX-VNNI), as some processors without
/// AVX-512 do.
inline bool cpu_has_avx_vnni() {
  static const bool has = (CpuId(7, 1).a & (1u << 4)) != 0;
  return has;
}
/// Whether the processor has vector products of bf16 and vector conversions to it (AVX512-BF16).
inline bool cpu_has_bf16() {
  static const bool has = ATTN_BF16 && (CpuId(7, 1).a & (1u << 5)) != 0;
  return has;
}

/// Whether the processor has tiles of bf16 (AMX-TILE, AMX-BF16) and vector conversions to bf16 (AVX512-BF16), and the
/// operating system saves the tiles (XCR0: volume 1 of the manual, section 13.3).
inline bool cpu_has_amx() {
#if ATTN_AMX
  static const bool has = [] {
    if (software_tiles()) return true;
    constexpr unsigned kOsXsave = 1u << 27, kAmxBf16 = 1u << 22, kAmxTile = 1u << 24;
    const unsigned extended = CpuId(7, 0).d;
    if ((CpuId(1).c & kOsXsave) == 0 || (extended & kAmxBf16) == 0 || (extended & kAmxTile) == 0) return false;
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
