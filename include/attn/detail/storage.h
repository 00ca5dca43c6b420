// Layer 1: the types that numbers may have in a tensor, and the type in which a call computes with them.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include <Eigen/Core>

#include "attn/detail/cpu.h"
#include "attn/types.h"

namespace attn::detail {

/// How a number lies in memory: as what is computed with, as a float of 16 bits, or as a small integer.
enum class Storage : unsigned char {
  native,
  f16,   ///< IEEE 754 binary16: 5 bits of exponent, 10 of fraction
  bf16,  ///< the upper half of a float: 8 bits of exponent, 7 of fraction
  i8,    ///< an integer, -127 to 127, which a scale belongs to that lies elsewhere
};

template <class T>
constexpr Storage storage_of = Storage::native;
template <>
inline constexpr Storage storage_of<Eigen::half> = Storage::f16;
template <>
inline constexpr Storage storage_of<Eigen::bfloat16> = Storage::bf16;
// The compilers' own types, where they compute with them: clang 14 knows names that it does not let one use, and g++ 12
// has the limits of _Float16 on every processor but the type itself, in C++, on x86 alone.
#if defined(__FLT16_MANT_DIG__) && (ATTN_X86 || defined(__clang__) || __GNUC__ >= 13)
#define ATTN_HAS_FLOAT16 1
__extension__ typedef _Float16 Float16;
template <>
inline constexpr Storage storage_of<Float16> = Storage::f16;
#endif
// ARM's own, which arm_neon.h calls float16_t. Arithmetic turns it into float.
#if defined(__ARM_FP16_FORMAT_IEEE)
#define ATTN_HAS_FP16 1
typedef __fp16 Fp16;
template <>
inline constexpr Storage storage_of<Fp16> = Storage::f16;
#endif
#if defined(__BFLT16_MANT_DIG__)
#define ATTN_HAS_BFLOAT16 1
__extension__ typedef __bf16 BFloat16;
template <>
inline constexpr Storage storage_of<BFloat16> = Storage::bf16;
#endif

/// Scalars that tensors may hold. Integers would overflow or truncate in silence.
template <class T>
constexpr bool is_scalar = std::is_floating_point_v<T> || storage_of<T> != Storage::native;

/// The type that a call computes in: that of the tensors, float for those of 16 bits.
template <class T>
using computed_t = std::conditional_t<storage_of<T> == Storage::native, T, float>;

/// Bytes in memory of a number that is computed with as T.
template <class T>
constexpr Index size_of_number(Storage storage) {
  return storage == Storage::native ? static_cast<Index>(sizeof(T)) : storage == Storage::i8 ? 1 : 2;
}

/// What a number of 16 bits stands for, exactly, and the 16 bits nearest to a number, halfway cases to even.
inline float widened(Storage storage, std::uint16_t bits) {
  return storage == Storage::f16 ? static_cast<float>(Eigen::numext::bit_cast<Eigen::half>(bits))
                                 : static_cast<float>(Eigen::numext::bit_cast<Eigen::bfloat16>(bits));
}
inline std::uint16_t narrowed(Storage storage, float x) {
  return storage == Storage::f16 ? Eigen::numext::bit_cast<std::uint16_t>(Eigen::half(x))
                                 : Eigen::numext::bit_cast<std::uint16_t>(Eigen::bfloat16(x));
}

/// The same for any storage. Numbers are read and written as bytes: their type is not the one that the caller declared.
template <class T>
T load_number(Storage storage, const std::byte* from) {
  if (storage == Storage::native) {
    T x;
    std::memcpy(&x, from, sizeof(T));
    return x;
  }
  if (storage == Storage::i8) return static_cast<T>(static_cast<std::int8_t>(*from));
  std::uint16_t bits;
  std::memcpy(&bits, from, sizeof(bits));
  return static_cast<T>(widened(storage, bits));
}
template <class T>
void store_number(Storage storage, std::byte* to, T x) {
  if (storage == Storage::native) {
    std::memcpy(to, &x, sizeof(T));
    return;
  }
  if (storage == Storage::i8) {  // one that it has
    *to = static_cast<std::byte>(static_cast<std::int8_t>(std::nearbyint(x)));
    return;
  }
  const std::uint16_t bits = narrowed(storage, static_cast<float>(x));
  std::memcpy(to, &bits, sizeof(bits));
}

/// `x` as the nearest number that a storage of floats has.
template <class T>
T rounded(Storage storage, T x) {
  return storage == Storage::native ? x : static_cast<T>(widened(storage, narrowed(storage, static_cast<float>(x))));
}

}  // namespace attn::detail
