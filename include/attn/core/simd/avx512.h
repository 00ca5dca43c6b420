// The instructions for 64-byte vectors that have no operator or builtin of both compilers, written in assembly.
//
// Tests may compile the set of 64-byte vectors for processors without AVX-512 (ATTN_SOFTWARE_AVX512). These functions
// are then written in C++, in tests/support/software_avx512.h.
#pragma once

#include <cstddef>
#include <cstdint>

#include "attn/core/simd/vec.h"

#if ATTN_X86

#if defined(ATTN_SOFTWARE_AVX512)
#include <support/software_avx512.h>
#else
namespace attn::detail::inline ATTN_BUILT_FOR {

struct __attribute__((may_alias)) SixteenBytes {
  Array<std::byte, 16> bytes;
};

/// Words are 16 bits, lanes 32.
struct Avx512Instructions {
  using V = Vec<float, 64>;
  typedef std::int16_t Words __attribute__((vector_size(64)));

  /// Rounds the 16 floats of `low`, followed by those of `high`, to bf16 in `low`. Denormals become 0 (AVX512-BF16).
  ATTN_TARGET_AVX512 static ATTN_INLINE void round_to_bf16(V& low, const V& high) {
    asm("vcvtne2ps2bf16 %0, %1, %0" : "+v"(low.raw) : "v"(high.raw));
  }
  /// sum += a(1) b(1), then a(0) b(0), in every lane; each lane of `a` and `b` is a pair of bf16. Denormals are treated
  /// as 0 (AVX512-BF16).
  ATTN_TARGET_AVX512 static ATTN_INLINE void add_products(V& sum, const V& a, const V& b) {
    asm("vdpbf16ps %2, %1, %0" : "+v"(sum.raw) : "v"(a.raw), "v"(b.raw));
  }

  // Predicates of any().
  static constexpr int kEqual = 0, kNotLessEqual = 0x16;
  /// Whether the predicate holds in any lane.
  template <int kPredicate>
  ATTN_TARGET_AVX512 static ATTN_INLINE bool any(const V& a, const V& b) {
    std::uint16_t lanes;
    asm("vcmpps %3, %2, %1, %0" : "=Yk"(lanes) : "v"(a.raw), "v"(b.raw), "i"(kPredicate));
    return lanes != 0;
  }
  /// f = x - floor(x), 0 for an infinite x.
  ATTN_TARGET_AVX512 static ATTN_INLINE void take_fraction(V& f, const V& x) {
    asm("vreduceps $1, %1, %0" : "=v"(f.raw) : "v"(x.raw));
  }
  /// p *= 2^floor(x).
  ATTN_TARGET_AVX512 static ATTN_INLINE void scale_by_power(V& p, const V& x) {
    asm("vscalefps %1, %0, %0" : "+v"(p.raw) : "v"(x.raw));
  }

  /// Replaces the lower word of each lane by the word of `from` at this word's index.
  ATTN_TARGET_AVX512 static ATTN_INLINE void replace_lower_words(V& to, const V& from, const Words& index) {
    asm("vpermw %1, %2, %0 %{%3%}" : "+v"(to.raw) : "v"(from.raw), "v"(index), "Yk"(0x55555555u));
  }
  /// Loads 16 bytes into the lower end of x, and sets the rest to 0.
  template <class Raw>
  ATTN_TARGET_AVX512 static ATTN_INLINE void load_sixteen(Raw& x, const void* from) {
    asm("vmovdqu32 %1, %x0" : "=v"(x) : "m"(*static_cast<const SixteenBytes*>(from)));
  }
  /// Loads 16 bytes into a quarter of x.
  template <int kQuarter, class Raw>
  ATTN_TARGET_AVX512 static ATTN_INLINE void insert_sixteen(Raw& x, const void* from) {
    asm("vinserti32x4 %2, %1, %0, %0" : "+v"(x) : "m"(*static_cast<const SixteenBytes*>(from)), "i"(kQuarter));
  }
};

}  // namespace attn::detail::inline ATTN_BUILT_FOR
#endif
#endif
