// Requirements on the compiler, checked before any other header is read.
#pragma once

#if __cplusplus < 202002L
#error "attn needs C++20: compile with -std=c++20"
#elif !defined(__GNUC__)
#error "attn: the kernels use the vector extensions of g++ and clang; compile with one of them"
#elif !defined(__cpp_exceptions)
#error "attn throws exceptions for invalid arguments: compile without -fno-exceptions"
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
