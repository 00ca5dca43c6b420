// The types that numbers may have in a tensor, and the type in which a call computes with them.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include <Eigen/Core>

#include "attn/detail/base/cpu.h"
#include "attn/types.h"

namespace attn::detail {

/// How a number lies in memory: as what is computed with, as a float of 16 bits, or as a small integer.
enum class DType : unsigned char {
  native,
  f16,   ///< IEEE 754 binary16: 5 bits of exponent, 10 of fraction
  bf16,  ///< the upper half of a float: 8 bits of exponent, 7 of fraction
  i8,    ///< an integer, -127 to 127, which a scale belongs to that lies elsewhere
};

template <class T>
constexpr DType dtype_of = DType::native;
template <>
inline constexpr DType dtype_of<Eigen::half> = DType::f16;
template <>
inline constexpr DType dtype_of<Eigen::bfloat16> = DType::bf16;
// The compilers' own types, where they compute with them: clang 14 knows names that it does not let one use, and g++ 12
// has the limits of _Float16 on every processor but the type itself, in C++, on x86 alone.
#if defined(__FLT16_MANT_DIG__) && (ATTN_X86 || defined(__clang__) || __GNUC__ >= 13)
#define ATTN_HAS_FLOAT16 1
__extension__ typedef _Float16 Float16;
template <>
inline constexpr DType dtype_of<Float16> = DType::f16;
#endif
// ARM's own, which arm_neon.h calls float16_t. Arithmetic turns it into float.
#if defined(__ARM_FP16_FORMAT_IEEE)
#define ATTN_HAS_FP16 1
typedef __fp16 Fp16;
template <>
inline constexpr DType dtype_of<Fp16> = DType::f16;
#endif
#if defined(__BFLT16_MANT_DIG__)
#define ATTN_HAS_BFLOAT16 1
__extension__ typedef __bf16 BFloat16;
template <>
inline constexpr DType dtype_of<BFloat16> = DType::bf16;
#endif

/// Scalars that tensors may hold. Integers would overflow or truncate in silence.
template <class T>
constexpr bool is_scalar = std::is_floating_point_v<T> || dtype_of<T> != DType::native;

/// The type that a call computes in: that of the tensors, float for those of 16 bits.
template <class T>
using computed_t = std::conditional_t<dtype_of<T> == DType::native, T, float>;

/// Bytes in memory of a number that is computed with as T.
template <class T>
constexpr Index size_of_number(DType dtype) {
  return dtype == DType::native ? static_cast<Index>(sizeof(T)) : dtype == DType::i8 ? 1 : 2;
}

/// What a number of 16 bits stands for, exactly, and the 16 bits nearest to a number, halfway cases to even.
inline float widened(DType dtype, std::uint16_t bits) {
  return dtype == DType::f16 ? static_cast<float>(Eigen::numext::bit_cast<Eigen::half>(bits))
                             : static_cast<float>(Eigen::numext::bit_cast<Eigen::bfloat16>(bits));
}
inline std::uint16_t narrowed(DType dtype, float x) {
  return dtype == DType::f16 ? Eigen::numext::bit_cast<std::uint16_t>(Eigen::half(x))
                             : Eigen::numext::bit_cast<std::uint16_t>(Eigen::bfloat16(x));
}

/// The same for any storage. Numbers are read and written as bytes: their type is not the one that the caller declared.
template <class T>
T load_number(DType dtype, const std::byte* from) {
  if (dtype == DType::native) {
    T x;
    std::memcpy(&x, from, sizeof(T));
    return x;
  }
  if (dtype == DType::i8) return static_cast<T>(static_cast<std::int8_t>(*from));
  std::uint16_t bits;
  std::memcpy(&bits, from, sizeof(bits));
  return static_cast<T>(widened(dtype, bits));
}
template <class T>
void store_number(DType dtype, std::byte* to, T x) {
  if (dtype == DType::native) {
    std::memcpy(to, &x, sizeof(T));
    return;
  }
  if (dtype == DType::i8) {  // one that it has
    *to = static_cast<std::byte>(static_cast<std::int8_t>(std::nearbyint(x)));
    return;
  }
  const std::uint16_t bits = narrowed(dtype, static_cast<float>(x));
  std::memcpy(to, &bits, sizeof(bits));
}

/// `x` as the nearest number that a storage of floats has.
template <class T>
T rounded(DType dtype, T x) {
  return dtype == DType::native ? x : static_cast<T>(widened(dtype, narrowed(dtype, static_cast<float>(x))));
}

}  // namespace attn::detail
