// The vector instructions for bf16 (AVX512-BF16), which every processor with a matrix unit for bf16 has. They are
// written in assembly, because intrinsics need an attribute on all functions that they are inlined into.
#pragma once

#include "attn/detail/simd/vec.h"

#if ATTN_BF16
namespace attn::detail {
inline namespace ATTN_BUILT_FOR {

struct Bf16Instructions {
  using V = Vec<float, 64>;
  static constexpr Index kBytes = 64;    ///< of a vector, or of a row of a matrix-unit register
  static constexpr Index kColumns = 32;  ///< bf16 values in such a vector or row
  static constexpr Index kPairs = 16;    ///< pairs of bf16 values in it, each the size of a float

  /// Rounds the 16 floats of `low`, followed by those of `high`, to bf16 in `low`.
  ATTN_TARGET_AVX512 static ATTN_INLINE void round_to_bf16(V& low, const V& high) {
    asm("vcvtne2ps2bf16 %0, %1, %0" : "+v"(low.raw) : "v"(high.raw));
  }

  /// sum += a(0) b(0) + a(1) b(1) in every lane; each lane of `a` and `b` is a pair. Denormals are treated as 0.
  ATTN_TARGET_AVX512 static ATTN_INLINE void add_products(V& sum, const V& a, const V& b) {
    asm("vdpbf16ps %2, %1, %0" : "+v"(sum.raw) : "v"(a.raw), "v"(b.raw));
  }
};

}  // namespace ATTN_BUILT_FOR
}  // namespace attn::detail
#endif
