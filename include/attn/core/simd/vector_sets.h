// The vector instruction sets that kernels and mods are compiled for.
#pragma once

#include <type_traits>

#include "attn/isa.h"
#include "attn/types.h"

// Attributes that compile a function for an instruction set, regardless of the program's flags. That of AVX-512 also
// states the width of its vectors: where flags such as -march=native prefer 256-bit vectors, clang would otherwise
// split 512-bit vectors in two, and g++ would vectorise the loops over mods with narrow ones.
#define ATTN_TARGET_GENERIC
#define ATTN_TARGET_AVX2 __attribute__((target("avx2,fma,f16c")))
#if defined(ATTN_SOFTWARE_AVX512)
#define ATTN_TARGET_AVX512 ATTN_TARGET_AVX2
#elif defined(__clang__)
#define ATTN_TARGET_AVX512 \
  __attribute__((target("avx512f,avx512dq,avx512bw,avx512vl,avx2,fma,f16c"), min_vector_width(512)))
#else
#define ATTN_TARGET_AVX512 \
  __attribute__((target("avx512f,avx512dq,avx512bw,avx512vl,avx2,fma,f16c,prefer-vector-width=512")))
#endif

// Expands to use(name, attribute of its functions, bytes of a vector, vector registers) for each set.
#if ATTN_X86
#define ATTN_FOR_EACH_VECTOR_SET(use) \
  use(generic, ATTN_TARGET_GENERIC, 16, 16) use(avx2, ATTN_TARGET_AVX2, 32, 16) use(avx512, ATTN_TARGET_AVX512, 64, 32)
#elif defined(__wasm__)
// V8 reserves one of the 16 registers.
#define ATTN_FOR_EACH_VECTOR_SET(use) use(generic, ATTN_TARGET_GENERIC, 16, 15)
#else
#define ATTN_FOR_EACH_VECTOR_SET(use) use(generic, ATTN_TARGET_GENERIC, 16, ATTN_NEON ? 32 : 16)
#endif

namespace attn::detail::inline ATTN_BUILT_FOR {

/// Whether vectors of this size fit a register. In software, AVX-512's do not: the compilers split them.
template <int Bytes>
constexpr bool kFitsRegister = !(kSoftwareAvx512 && Bytes == 64);

template <VectorSet>
constexpr int kVectorBytes = 0;
template <VectorSet>
constexpr int kVectorRegisters = 0;
#define ATTN_VECTOR_SET(set, target, bytes, registers)       \
  template <>                                                \
  inline constexpr int kVectorBytes<VectorSet::set> = bytes; \
  template <>                                                \
  inline constexpr int kVectorRegisters<VectorSet::set> = registers;
ATTN_FOR_EACH_VECTOR_SET(ATTN_VECTOR_SET)
#undef ATTN_VECTOR_SET

/// Whether T has vectors. A scalar without them (long double) is its own vector with one lane.
template <class T>
constexpr bool kHasVectors = std::is_same_v<T, float> || std::is_same_v<T, double>;

/// Calls use.template operator()<VectorSet>() for `vectors`, which must have kernels, and returns its result. A scalar
/// T without vectors has only the generic kernels.
template <class T, class Use>
decltype(auto) with_vectors([[maybe_unused]] VectorSet vectors, const Use& use) {
  if constexpr (!kHasVectors<T>) {
    return use.template operator()<VectorSet::generic>();
  } else {
#define ATTN_VECTOR_SET(set, ...)                                                  \
  if constexpr (has_kernels(VectorSet::set) && VectorSet::set != kPromisedVectors) \
    if (vectors == VectorSet::set) return use.template operator()<VectorSet::set>();
    ATTN_FOR_EACH_VECTOR_SET(ATTN_VECTOR_SET)
#undef ATTN_VECTOR_SET
    return use.template operator()<kPromisedVectors>();
  }
}

// With UBSan's check of calls through function pointers, clang would compile kernels as separate functions, without
// their instruction set.
#if defined(__clang__)
#define ATTN_UNCHECKED_CALL __attribute__((no_sanitize("function")))
#else
#define ATTN_UNCHECKED_CALL
#endif

/// A kernel compiled for an instruction set. Kernels are forced inline into call(), whose attribute selects the
/// instructions that they may use, regardless of the program's flags. call_flattened() also inlines the caller's
/// lambdas; it is not inlined itself, because in its callers vectors would become as narrow as -march=native prefers.
template <VectorSet, auto kKernel>
struct Compiled;
#define ATTN_COMPILED(set, target, ...)                                                                        \
  template <class Result, class... Args, Result (*kKernel)(Args...)>                                           \
  struct Compiled<VectorSet::set, kKernel> {                                                                   \
    target ATTN_UNCHECKED_CALL static Result call(Args... args) { return kKernel(args...); }                   \
    target ATTN_UNCHECKED_CALL __attribute__((flatten, noinline)) static Result call_flattened(Args... args) { \
      return kKernel(args...);                                                                                 \
    }                                                                                                          \
  };
ATTN_FOR_EACH_VECTOR_SET(ATTN_COMPILED)
#undef ATTN_COMPILED
#undef ATTN_UNCHECKED_CALL

template <VectorSet kSet, auto kKernel>
inline constexpr auto compiled = Compiled<kSet, kKernel>::call;
template <VectorSet kSet, auto kKernel>
inline constexpr auto flattened = Compiled<kSet, kKernel>::call_flattened;

}  // namespace attn::detail::inline ATTN_BUILT_FOR
