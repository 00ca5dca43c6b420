// Conversions of vectors of floats to and from 16-bit floats, and from smaller types.
#pragma once

#include <bit>
#include <cstring>

#include "attn/core/base/cpu.h"
#if ATTN_NEON
#include <arm_neon.h>
#endif

#include "attn/core/simd/vec.h"
#include "attn/core/tensor/dtype.h"

namespace attn::detail::inline ATTN_BUILT_FOR {

/// Rounds to bf16 and stores the result in the lower half of each lane.
template <class Bits, class V>
ATTN_INLINE void round_to_bf16(Bits& rounded, const V& x) {
  const Bits bits = (Bits)x, is_nan = (Bits)(x != x);
  // Adds half a unit in the last place of the upper 16 bits, or slightly less if they are even (ties to even). A NaN
  // keeps its upper bits instead, because the addition could turn it into inf.
  const Bits up = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16, quiet = (bits | 0x400000u) >> 16;
  rounded = (is_nan & quiet) | (~is_nan & up);
}

/// Stores 8-bit floats as binary16; see half_of_float8().
template <DType kDType, std::size_t n>
ATTN_INLINE void halves_of_float8(const std::byte* from, std::uint16_t (&halves)[n]) {
  for (std::size_t i = 0; i < n; ++i)
    halves[i] = half_of_float8(std::to_integer<std::uint8_t>(from[i]), kDType == DType::f8_e4m3 ? 3 : 2);
}

/// Conversions of vectors of floats of `Bytes` bytes. These functions lack the instruction set of the kernels that they
/// are inlined into. In such functions, g++ 12 splits __builtin_convertvector into single lanes, and clang 14 rejects
/// inline assembly with wide registers. So each compiler gets the form that it handles.
template <int Bytes>
struct HalfVec {
  using V = Vec<float, Bytes>;
  using Raw = typename V::Raw;
  using Bits = typename RawVec<float, Bytes, std::uint32_t>::type;
  static constexpr int kLanes = V::kLanes;

  /// Converts kLanes f16 values exactly.
  static ATTN_INLINE V widen_f16(const std::byte* from) {
    if constexpr (Bytes == 16) {
      Bits bits;
      load_upper(bits, from);
      const Bits sign = bits & 0x80000000u, magnitude = (bits ^ sign) >> 3;
      // The exponent is still biased by 15 instead of 127, which kShift corrects. The highest exponent means inf or
      // NaN.
      constexpr float kShift = 0x1p112f;
      const Bits special = (Bits)(magnitude >= (31u << 23)) & 0x7f800000u;
      return {(Raw)((Bits)((Raw)magnitude * kShift) | special | sign)};
    } else {
#if defined(__clang__)
      typedef __fp16 Half __attribute__((ext_vector_type(kLanes)));
      typedef float Wide __attribute__((ext_vector_type(kLanes)));
      Half half;
      std::memcpy(&half, from, sizeof(half));
      return {(Raw) __builtin_convertvector(half, Wide)};
#else
      Raw wide;
      asm("vcvtph2ps %1, %0" : "=v"(wide) : "m"(*reinterpret_cast<const InMemory<std::uint16_t>*>(from)));
      return {wide};
#endif
    }
  }

  static ATTN_INLINE V widen_bf16(const std::byte* from) {
    Bits bits;
    load_upper(bits, from);
    return {(Raw)bits};
  }

  /// Converts kLanes 8-bit integers.
  static ATTN_INLINE V widen_i8(const std::byte* from) {
    if constexpr (Bytes == 16) {
      Array<float, kLanes> lanes;
      for (int i = 0; i < kLanes; ++i) lanes[i] = static_cast<float>(static_cast<std::int8_t>(from[i]));
      return V::load(lanes);
    } else {
#if defined(__clang__)
      typedef std::int8_t Small __attribute__((ext_vector_type(kLanes)));
      typedef float Wide __attribute__((ext_vector_type(kLanes)));
      Small small;
      std::memcpy(&small, from, sizeof(small));
      return {(Raw) __builtin_convertvector(small, Wide)};
#else
      Raw wide;
      asm("vpmovsxbd %1, %0" : "=v"(wide) : "m"(*reinterpret_cast<const InMemory<std::int8_t>*>(from)));
      asm("vcvtdq2ps %0, %0" : "+v"(wide));
      return {wide};
#endif
    }
  }

  /// Loads kLanes bytes, each into its own lane.
  static ATTN_INLINE void load_bytes(Bits& bits, const std::byte* from) {
    if constexpr (Bytes == 16) {
      Array<std::uint32_t, kLanes> lanes;
      for (int i = 0; i < kLanes; ++i) lanes[i] = std::to_integer<std::uint32_t>(from[i]);
      std::memcpy(&bits, lanes, sizeof(bits));
    } else {
#if defined(__clang__)
      typedef std::uint8_t Small __attribute__((ext_vector_type(kLanes)));
      typedef std::uint32_t Wide __attribute__((ext_vector_type(kLanes)));
      Small small;
      std::memcpy(&small, from, sizeof(small));
      bits = (Bits) __builtin_convertvector(small, Wide);
#else
      asm("vpmovzxbd %1, %0" : "=v"(bits) : "m"(*reinterpret_cast<const InMemory<std::uint8_t>*>(from)));
#endif
    }
  }

  /// Loads the same four bytes into every lane. g++ 12 needs three instructions for Vec::broadcast().
  static ATTN_INLINE void load_word(Bits& word, const std::byte* from) {
#if !defined(__clang__)
    if constexpr (Bytes > 16)
      asm("vpbroadcastd %1, %0" : "=v"(word) : "m"(*reinterpret_cast<const Word*>(from)));
    else
#endif
      word = from_bytes<std::uint32_t>(from) - Bits{};
  }

#if ATTN_X86
  /// x = table[the lowest four bits of index], in every lane.
  ATTN_ASSEMBLY(ATTN_TARGET_AVX512) void look_up(V& x, const V& table, const Bits& index) {
#if defined(ATTN_SOFTWARE_AVX512)
    for (int i = 0; i < kLanes; ++i) x.raw[i] = table.raw[index[i] & 15u];
#else
    Raw found;
    asm("vpermps %1, %2, %0" : "=v"(found) : "v"(table.raw), "v"(index));
    x.raw = found;
#endif
  }
#endif

  /// Converts kLanes 8-bit floats: E5M2 exactly, E4M3 to numbers that are 256 times too small.
  template <DType kDType>
  static ATTN_INLINE V widen_f16_of(const std::byte* from) {
    if constexpr (Bytes == 16) {
      Array<std::uint16_t, kLanes> halves;
      halves_of_float8<kDType>(from, halves);
      return widen_f16(reinterpret_cast<const std::byte*>(halves));
    } else {
      // The sign is extended to 16 bits. After the shift, its copies are in the sign and in the upper bit of the
      // exponent, which must be 0. In E4M3, the codes with all lower bits set are NaN.
      constexpr int kShift = kDType == DType::f8_e4m3 ? 7 : 8;
      constexpr std::int16_t kMagnitude = 0x7f << 7;
#if defined(__clang__)
      typedef std::int8_t Small __attribute__((ext_vector_type(kLanes)));
      typedef std::int16_t Halves __attribute__((ext_vector_type(kLanes)));
      typedef __fp16 Half __attribute__((ext_vector_type(kLanes)));
      typedef float Wide __attribute__((ext_vector_type(kLanes)));
      Small small;
      std::memcpy(&small, from, sizeof(small));
      Halves halves = __builtin_convertvector(small, Halves) << kShift;
#else
      typedef std::int16_t Halves __attribute__((vector_size(Bytes / 2)));
      Halves halves;
      asm("vpmovsxbw %1, %0" : "=v"(halves) : "m"(*reinterpret_cast<const InMemory<std::int8_t>*>(from)));
      halves <<= kShift;
#endif
      if constexpr (kDType == DType::f8_e4m3) {
        halves &= static_cast<std::int16_t>(~0x4000);
        halves |= (Halves)((halves & kMagnitude) == kMagnitude) & std::int16_t{0x7c00};
      }
#if defined(__clang__)
      return {(Raw) __builtin_convertvector((Half)halves, Wide)};
#else
      Raw wide;
      asm("vcvtph2ps %1, %0" : "=v"(wide) : "v"(halves));
      return {wide};
#endif
    }
  }

  /// Rounds to nearest, ties to even.
  static ATTN_INLINE void narrow_f16(std::byte* to, const V& x) {
    if constexpr (Bytes == 16) {
      Array<float, kLanes> lanes;
      x.store(lanes);
      for (int i = 0; i < kLanes; ++i) store_number(DType::f16, to + 2 * i, lanes[i]);
    } else {
#if defined(__clang__)
      typedef __fp16 Half __attribute__((ext_vector_type(kLanes)));
      typedef float Wide __attribute__((ext_vector_type(kLanes)));
      const Half half = __builtin_convertvector((Wide)x.raw, Half);
      std::memcpy(to, &half, sizeof(half));
#else
      asm("vcvtps2ph $0, %1, %0" : "=m"(*reinterpret_cast<InMemory<std::uint16_t>*>(to)) : "v"(x.raw));
#endif
    }
  }

  static ATTN_INLINE void narrow_bf16(std::byte* to, const V& x) {
    Bits rounded;
    round_to_bf16(rounded, x.raw);
    Array<std::uint32_t, kLanes> lanes;
    std::memcpy(lanes, &rounded, sizeof(lanes));
    Array<std::uint16_t, kLanes> halves;
    for (int i = 0; i < kLanes; ++i) halves[i] = static_cast<std::uint16_t>(lanes[i]);
    std::memcpy(to, halves, sizeof(halves));
  }

 private:
  typedef std::uint32_t Word __attribute__((aligned(1), may_alias));
  template <class Number>
  struct __attribute__((may_alias)) InMemory {
    Array<Number, kLanes> numbers;
  };

  /// Loads 16-bit values into the upper halves of the lanes, which turns bf16 into float.
  static ATTN_INLINE void load_upper(Bits& bits, const std::byte* from) {
    if constexpr (Bytes == 16) {
      typedef std::uint16_t Halves __attribute__((vector_size(16)));
      typedef std::uint64_t Words __attribute__((vector_size(16)));
      Words words = {};
      std::memcpy(&words, from, 8);
      bits = (Bits)__builtin_shufflevector((Halves)words, Halves{}, 8, 0, 8, 1, 8, 2, 8, 3);
    } else {
#if defined(__clang__)
      typedef std::uint16_t Halves __attribute__((ext_vector_type(kLanes)));
      typedef std::uint32_t Wide __attribute__((ext_vector_type(kLanes)));
      Halves halves;
      std::memcpy(&halves, from, sizeof(halves));
      bits = (Bits)(__builtin_convertvector(halves, Wide) << 16);
#else
      Bits wide;
      asm("vpmovzxwd %1, %0" : "=v"(wide) : "m"(*reinterpret_cast<const InMemory<std::uint16_t>*>(from)));
      bits = wide << 16;
#endif
    }
  }
};

#if ATTN_NEON
/// NEON conversions of a few instructions each. narrow_bf16 does not use the instruction of FEAT_BF16, which needs
/// compiler flags.
template <>
struct HalfVec<16> {
  using V = Vec<float, 16>;
  using Raw = V::Raw;

  static ATTN_INLINE V widen_f16(const std::byte* from) {
    float16x4_t half;
    std::memcpy(&half, from, sizeof(half));
    return {(Raw)vcvt_f32_f16(half)};
  }
  static ATTN_INLINE V widen_bf16(const std::byte* from) {
    uint16x4_t half;
    std::memcpy(&half, from, sizeof(half));
    return {(Raw)vshll_n_u16(half, 16)};
  }
  static ATTN_INLINE V widen_i8(const std::byte* from) {
    std::uint32_t four;
    std::memcpy(&four, from, sizeof(four));
    return {(Raw)vcvtq_f32_s32(vmovl_s16(vget_low_s16(vmovl_s8(vreinterpret_s8_u32(vdup_n_u32(four))))))};
  }
  template <DType kDType>
  static ATTN_INLINE V widen_f16_of(const std::byte* from) {
    std::uint16_t halves[4];
    halves_of_float8<kDType>(from, halves);
    return widen_f16(reinterpret_cast<const std::byte*>(halves));
  }
  static ATTN_INLINE void load_bytes(RawVec<float, 16, std::uint32_t>::type& bits, const std::byte* from) {
    std::uint32_t four;
    std::memcpy(&four, from, sizeof(four));
    bits = (RawVec<float, 16, std::uint32_t>::type)vmovl_u16(vget_low_u16(vmovl_u8(vcreate_u8(four))));
  }
  static ATTN_INLINE void load_word(RawVec<float, 16, std::uint32_t>::type& word, const std::byte* from) {
    word = from_bytes<std::uint32_t>(from) - RawVec<float, 16, std::uint32_t>::type{};
  }
  static ATTN_INLINE void narrow_f16(std::byte* to, const V& x) {
    const float16x4_t half = vcvt_f16_f32((float32x4_t)x.raw);
    std::memcpy(to, &half, sizeof(half));
  }
  static ATTN_INLINE void narrow_bf16(std::byte* to, const V& x) {
    uint32x4_t rounded;
    round_to_bf16(rounded, (float32x4_t)x.raw);
    const uint16x4_t half = vmovn_u32(rounded);
    std::memcpy(to, &half, sizeof(half));
  }
};
#endif

}  // namespace attn::detail::inline ATTN_BUILT_FOR

#if ATTN_X86 && defined(ATTN_SOFTWARE_AVX512)
#include <support/software_avx512.h>
#endif

namespace attn::detail::inline ATTN_BUILT_FOR {

/// Exact conversions of elements that only caches have.
template <int Bytes>
struct SmallVec {
  using V = Vec<float, Bytes>;
  using Raw = typename V::Raw;
  using Bits = typename RawVec<float, Bytes, std::uint32_t>::type;

  /// Converts 8-bit floats, by way of f16: the same exponents for E5M2, smaller by 8 for E4M3.
  template <DType kDType>
  static ATTN_INLINE V widen_f8(const std::byte* from) {
    const V x = HalfVec<Bytes>::template widen_f16_of<kDType>(from);
    return kDType == DType::f8_e4m3 ? x * 256.0f : x;
  }

  /// Converts n vectors of numbers of a block of 4-bit integers, from number `first` on, a multiple of the lanes.
  template <DType kDType, int n>
  static ATTN_INLINE void widen_i4(V* x, const std::byte* block, Index first) {
    constexpr Index kHalf = Int4::kNumbers / 2;
    constexpr bool kZero = kDType == DType::i4_asymmetric;
    // The last two bytes of a block are in the upper half of its last word, where a bf16 has the bits of a float.
    Bits digits, word;
    HalfVec<Bytes>::load_word(word, block + kHalf + (kZero ? 0 : -2));
    const Raw last = (Raw)(word & 0xffff0000u), scale = kZero ? (Raw)(word << 16) : last;
    const auto numbers_of = [&](const Raw& numbers) __attribute__((always_inline)) {
      if constexpr (kZero)
        return V::multiply_add(numbers, scale, last);
      else
        return V{(numbers - 8.0f) * scale};
    };
    if constexpr (V::kLanes == kHalf) {
      // A table of the 16 possible numbers serves both halves of a block: it takes half of the instructions.
      constexpr Raw kDigits = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
      const V table = numbers_of(kDigits);
      HalfVec<Bytes>::load_bytes(digits, block);
      digits >>= static_cast<int>(first / kHalf * 4);
      ATTN_UNROLL for (int i = 0; i < n; ++i, digits >>= 4) HalfVec<Bytes>::look_up(x[i], table, digits);
    } else {
      ATTN_UNROLL for (int i = 0; i < n; ++i, first += V::kLanes) {
        HalfVec<Bytes>::load_bytes(digits, block + first % kHalf);
        digits = (digits >> static_cast<int>(first / kHalf * 4)) & 15u;
        x[i] = numbers_of(__builtin_convertvector((typename V::IntRaw)digits, Raw));
      }
    }
  }
};

}  // namespace attn::detail::inline ATTN_BUILT_FOR
