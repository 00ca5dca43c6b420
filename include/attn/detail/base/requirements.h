// What a compiler must offer; checked before it reads anything else.
#pragma once

#if __cplusplus < 202002L
#error "attn needs C++20: compile with -std=c++20"
#elif !defined(__GNUC__)
#error "attn: the kernels are written in the vector extension of g++ and clang; compile with one of them"
#elif !defined(__cpp_exceptions)
#error "attn reports wrong arguments as exceptions: compile without -fno-exceptions"
#elif defined(__FAST_MATH__) || (defined(__FINITE_MATH_ONLY__) && __FINITE_MATH_ONLY__)
#error "attn: -ffast-math takes infinity out of masks and the rounding out of exponentials; compile without it"
#elif !__has_include(<Eigen/Core>)
#error "attn needs Eigen 3.4 or newer: install it (libeigen3-dev) and compile with -I/usr/include/eigen3"
#else
#include <Eigen/Core>  // the version is in one of its files, another one from release to release
#if !EIGEN_VERSION_AT_LEAST(3, 4, 0)
#error "attn needs Eigen 3.4 or newer, an older one stands in the include path: put the newer one before it, with -I"
#endif
#endif
