// The instructions for bf16 of vectors (AVX512-BF16). Every processor with a matrix unit for bf16 has them. They are
// written in assembly, because compilers want an attribute on all functions that lead to them.
#pragma once

#include "attn/detail/simd/vec.h"

#if ATTN_BF16
namespace attn::detail {
inline namespace ATTN_BUILT_FOR {

struct Bf16Instructions {
  using V = Vec<float, 64>;
  static constexpr Index kBytes = 64;    ///< of a vector, or of a row of a register of the matrix unit
  static constexpr Index kColumns = 32;  ///< numbers of bf16 in it
  static constexpr Index kPairs = 16;    ///< pairs of them, each in the room of a float

  /// Rounds the 16 floats of each to bf16, with those of `low` before those of `high`.
  ATTN_TARGET_AVX512 static ATTN_INLINE void round_to_bf16(V& low, const V& high) {
    asm("vcvtne2ps2bf16 %0, %1, %0" : "+v"(low.raw) : "v"(high.raw));
  }

  /// sum += a(0) b(0) + a(1) b(1) in every lane, a lane of `a` and `b` being a pair. Denormal numbers count as 0.
  ATTN_TARGET_AVX512 static ATTN_INLINE void add_products(V& sum, const V& a, const V& b) {
    asm("vdpbf16ps %2, %1, %0" : "+v"(sum.raw) : "v"(a.raw), "v"(b.raw));
  }
};

}  // namespace ATTN_BUILT_FOR
}  // namespace attn::detail
#endif
