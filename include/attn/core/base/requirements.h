// Checks the compiler before any other header is read, and detects programs without exceptions or threads.
#pragma once

#if !defined(__GNUC__) && !defined(__clang__)
#error "attn uses the vector extensions of g++ and clang: compile with one of them (on Windows: clang-cl or g++)"
#elif __cplusplus < 202002L
#error "attn needs C++20: compile with -std=c++20"
#elif defined(__FAST_MATH__) || (defined(__FINITE_MATH_ONLY__) && __FINITE_MATH_ONLY__)
#error "attn: -ffast-math and -ffinite-math-only break masks (infinity) and exponentials (rounding): remove them"
#elif __FLT_EVAL_METHOD__ == 1 || __FLT_EVAL_METHOD__ == 2
#error "attn: this target computes floats with excess precision (x87): compile with -msse2 -mfpmath=sse"
#elif !__has_include(<Eigen/Core>)
#error "attn needs Eigen 3.4 or newer: install it (libeigen3-dev) and compile with -I/usr/include/eigen3"
#else
#include <Eigen/Core>  // which file defines the version depends on the release
#if !EIGEN_VERSION_AT_LEAST(3, 4, 0)
#error "attn needs Eigen 3.4 or newer, but finds an older one first: add the include path of a newer one with -I"
#endif
#endif

// Programs may define these two macros themselves. All units of a program that use attn must agree on them.
#if !defined(ATTN_NO_EXCEPTIONS) && !defined(__cpp_exceptions)
#define ATTN_NO_EXCEPTIONS
#endif
// WASI's C library has no threads unless -pthread is given. g++ 12 for Windows has a variant without std::thread.
#if !defined(ATTN_NO_THREADS)
#if defined(__wasm__) && !defined(_REENTRANT)
#define ATTN_NO_THREADS
#elif defined(__GLIBCXX__) && !defined(_GLIBCXX_HAS_GTHREADS)
#define ATTN_NO_THREADS
#elif defined(_LIBCPP_HAS_NO_THREADS) || (defined(_LIBCPP_HAS_THREADS) && !_LIBCPP_HAS_THREADS)
#define ATTN_NO_THREADS
#endif
#endif
