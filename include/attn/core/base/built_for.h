// ATTN_BUILT_FOR: the inline namespace of code that depends on how the translation unit is compiled.
//
// Its name says which instruction set the compiler's flags promise, whether the unit is compiled without exceptions or
// threads, and whether its AVX-512 is in software, as in tests. So translation units with different flags each keep
// their own version of that code. Otherwise the linker would keep only one of two functions with the same name, with
// the instructions and the Eigen alignment of whichever unit it came from. Types that a program passes between units
// (Tensor, Options, Executor, …) are declared outside this namespace.
#pragma once

#include "attn/core/base/cpu.h"
#include "attn/core/base/requirements.h"

#if ATTN_X86 && defined(__AVX512F__) && defined(__AVX512DQ__) && defined(__AVX512BW__) && defined(__AVX512VL__) && \
    defined(__FMA__)
#define ATTN_PROMISED_VECTORS avx512
#define ATTN_BUILT_FOR_VECTORS built_for_avx512
#elif ATTN_X86 && defined(__AVX2__) && defined(__FMA__)
#define ATTN_PROMISED_VECTORS avx2
#define ATTN_BUILT_FOR_VECTORS built_for_avx2
#else
#define ATTN_PROMISED_VECTORS generic
#if defined(__wasm_relaxed_simd__)
#define ATTN_BUILT_FOR_VECTORS built_for_relaxed_simd
#else
#define ATTN_BUILT_FOR_VECTORS built_for_generic
#endif
#endif

#ifdef ATTN_NO_EXCEPTIONS
#define ATTN_BUILT_WITHOUT_EXCEPTIONS _no_exceptions
#else
#define ATTN_BUILT_WITHOUT_EXCEPTIONS
#endif
#ifdef ATTN_NO_THREADS
#define ATTN_BUILT_WITHOUT_THREADS _no_threads
#else
#define ATTN_BUILT_WITHOUT_THREADS
#endif
#ifdef ATTN_SOFTWARE_AVX512
#define ATTN_BUILT_WITH_SOFTWARE _software_avx512
#else
#define ATTN_BUILT_WITH_SOFTWARE
#endif
#define ATTN_JOIN_NAMES(a, b, c, d) ATTN_JOIN_EXPANDED(a, b, c, d)
#define ATTN_JOIN_EXPANDED(a, b, c, d) a##b##c##d
#define ATTN_BUILT_FOR                                                                               \
  ATTN_JOIN_NAMES(ATTN_BUILT_FOR_VECTORS, ATTN_BUILT_WITHOUT_EXCEPTIONS, ATTN_BUILT_WITHOUT_THREADS, \
                  ATTN_BUILT_WITH_SOFTWARE)
