// The vector instructions for bf16 (AVX512-BF16), which every processor with a matrix unit for bf16 has.
#pragma once

#include "attn/core/simd/avx512.h"

#if ATTN_BF16
namespace attn::detail::inline ATTN_BUILT_FOR {

struct Bf16Instructions : Avx512Instructions {
  static constexpr Index kBytes = 64;    ///< of a vector, or of a row of a matrix-unit register
  static constexpr Index kColumns = 32;  ///< bf16 values in such a vector or row
  static constexpr Index kPairs = 16;    ///< pairs of bf16 values in it, each the size of a float
};

}  // namespace attn::detail::inline ATTN_BUILT_FOR
#endif
