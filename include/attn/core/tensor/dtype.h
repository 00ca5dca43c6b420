// The types that tensors may be stored in, and the type that a call computes in.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include <Eigen/Core>

#include "attn/core/base/cpu.h"
#include "attn/element_types.h"
#include "attn/isa.h"
#include "attn/types.h"

namespace attn::detail {

/// How an element is stored: in the type of the arithmetic, as a float of fewer bits, or as a small integer.
enum class DType : unsigned char {
  native,
  f16,   ///< IEEE 754 binary16: 5 bits of exponent, 10 of fraction
  bf16,  ///< the upper half of a float: 8 bits of exponent, 7 of fraction
  // Only caches have the following types. Each cache brings the kernels for its own type.
  i8,             ///< an integer from -127 to 127, whose scale is stored elsewhere
  f8_e4m3,        ///< Float8E4M3
  f8_e5m2,        ///< Float8E5M2
  i4,             ///< Int4: 32 elements with their scale
  i4_asymmetric,  ///< Int4Asymmetric
};
constexpr int kDTypes = 8;  ///< number of enumerators of DType

/// Elements that are stored in one block: several only if they share a scale in memory.
constexpr Index elements_of_block(DType dtype) {
  return dtype == DType::i4 || dtype == DType::i4_asymmetric ? Int4::kNumbers : 1;
}

template <class T>
constexpr DType dtype_of = DType::native;
template <>
inline constexpr DType dtype_of<Eigen::half> = DType::f16;
template <>
inline constexpr DType dtype_of<Eigen::bfloat16> = DType::bf16;
// The compilers' own types, if they support arithmetic: clang 14 knows names that it does not let programs use, and g++
// 12 defines the limit macros of _Float16 on every processor, but the type itself, in C++, only on x86.
#if defined(__FLT16_MANT_DIG__) && (ATTN_X86 || defined(__clang__) || __GNUC__ >= 13)
#define ATTN_HAS_FLOAT16 1
__extension__ typedef _Float16 Float16;
template <>
inline constexpr DType dtype_of<Float16> = DType::f16;
#endif
// ARM's own type, which arm_neon.h calls float16_t. Arithmetic converts it to float.
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

/// Whether tensors may hold a scalar type. Integers are rejected, because they would overflow or truncate silently.
template <class T>
constexpr bool is_scalar = std::is_floating_point_v<T> || dtype_of<T> != DType::native;

/// The type that a call computes in: the type of the tensors, or float for 16-bit tensors.
template <class T>
using computed_t = std::conditional_t<dtype_of<T> == DType::native, T, float>;

inline namespace ATTN_BUILT_FOR {

// Code that depends on the type of an element is a switch without a default, so that the compiler reports the places
// where a new type is missing: here, and for vectors in core/kernels/packing_kernels.h.

/// Bytes of a block of this type, if the arithmetic is in T.
template <class T>
constexpr Index size_of_block(DType dtype) {
  switch (dtype) {
    case DType::native:
      return static_cast<Index>(sizeof(T));
    case DType::f16:
    case DType::bf16:
      return 2;
    case DType::i8:
    case DType::f8_e4m3:
    case DType::f8_e5m2:
      return 1;
    case DType::i4:
      return sizeof(Int4);
    case DType::i4_asymmetric:
      return sizeof(Int4Asymmetric);
  }
  __builtin_unreachable();
}
/// Bytes of `count` elements from the beginning of a block on. The last block may be filled in part.
template <class T>
constexpr Index size_of_elements(DType dtype, Index count) {
  return (elements_of_block(dtype) == 1 ? count : (count + Int4::kNumbers - 1) / Int4::kNumbers) *
         size_of_block<T>(dtype);
}
/// Bytes before the block that element `index` is in.
template <class T>
constexpr Index offset_of_element(DType dtype, Index index) {
  return (elements_of_block(dtype) == 1 ? index : index / Int4::kNumbers) * size_of_block<T>(dtype);
}
/// Bytes of an element of a type that has no blocks of several, which caches alone have.
template <class T>
constexpr Index size_of_element(DType dtype) {
  if (elements_of_block(dtype) > 1) __builtin_unreachable();
  return size_of_block<T>(dtype);
}

/// Read and write an X as bytes, because the elements were not declared with this type.
template <class X>
X from_bytes(const std::byte* from) {
  X x;
  std::memcpy(static_cast<void*>(&x), from, sizeof(x));
  return x;
}
template <class X>
void to_bytes(std::byte* to, X x) {
  std::memcpy(to, &x, sizeof(x));
}

/// Loads element `index` of a block, if blocks have several, exactly, as a T. Native elements are read as they are, and
/// other types are converted.
template <class T>
T load_other_number(DType dtype, const std::byte* from, Index index = 0) {
  switch (dtype) {
    case DType::native:
      break;
    case DType::f16:
      return static_cast<T>(static_cast<float>(from_bytes<Eigen::half>(from)));
    case DType::bf16:
      return static_cast<T>(static_cast<float>(from_bytes<Eigen::bfloat16>(from)));
    case DType::i8:
      return static_cast<T>(from_bytes<std::int8_t>(from));
    case DType::f8_e4m3:
      return static_cast<T>(static_cast<float>(from_bytes<Float8E4M3>(from)));
    case DType::f8_e5m2:
      return static_cast<T>(static_cast<float>(from_bytes<Float8E5M2>(from)));
    case DType::i4:
      return static_cast<T>(from_bytes<Int4>(from)[index]);
    case DType::i4_asymmetric:
      return static_cast<T>(from_bytes<Int4Asymmetric>(from)[index]);
  }
  __builtin_unreachable();
}
template <class T>
[[gnu::always_inline]] inline T load_number(DType dtype, const std::byte* from) {
  return dtype == DType::native ? from_bytes<T>(from) : load_other_number<T>(dtype, from);
}

/// Stores an element, rounded to nearest, ties to even.
template <class T>
void store_other_number(DType dtype, std::byte* to, T x) {
  switch (dtype) {
    case DType::native:
      break;
    case DType::f16:
      return to_bytes(to, Eigen::half(static_cast<float>(x)));
    case DType::bf16:
      return to_bytes(to, Eigen::bfloat16(static_cast<float>(x)));
    case DType::i8:
    case DType::f8_e4m3:
    case DType::f8_e5m2:
    case DType::i4:
    case DType::i4_asymmetric:
      break;  // only caches write these, row by row
  }
  __builtin_unreachable();
}
template <class T>
[[gnu::always_inline]] inline void store_number(DType dtype, std::byte* to, T x) {
  dtype == DType::native ? to_bytes(to, x) : store_other_number(dtype, to, x);
}

/// Rounds `x` to the nearest value of a dtype.
template <class T>
T rounded(DType dtype, T x) {
  std::byte bytes[sizeof(T)];
  store_number(dtype, bytes, x);
  return load_number<T>(dtype, bytes);
}

}  // namespace ATTN_BUILT_FOR
}  // namespace attn::detail
