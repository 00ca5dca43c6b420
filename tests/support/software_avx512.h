// What the instructions for 64-byte vectors, and AVX-VNNI's dot products, compute, in C++. Units compiled with
// ATTN_SOFTWARE_AVX512 have the sets avx2_vnni, avx512, avx512_vnni and avx512_bf16 on any x86-64 processor with AVX2,
// with the results of the hardware, bit for bit.
//
// Included by core/simd/avx512.h and core/simd/half_vec.h, in place of their assembly and of that in
// cache/dot_kernels.h. The rest of each set is compiled for AVX2: the compilers then split 64-byte vectors in two.
// (Intel's Software Developer's Manual, volume 2, defines the instructions. AMD's processors give the same results,
// except that the payload of a NaN may differ.)
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include "attn/core/simd/avx512.h"
#include "attn/core/simd/half_vec.h"
#include "support/bf16_bits.h"

// Kernels that inlined these functions were larger by a tenth.
#define ATTN_NOT_INLINED ATTN_TARGET_AVX512 __attribute__((noinline)) static

namespace attn::detail::inline ATTN_BUILT_FOR {

/// See core/simd/avx512.h.
struct Avx512Instructions {
  using V = Vec<float, 64>;
  typedef std::int16_t Words __attribute__((vector_size(64)));

  /// VCVTNE2PS2BF16: to nearest, ties to even, in any rounding mode. NaNs become quiet.
  ATTN_NOT_INLINED void round_to_bf16(V& low, const V& high) {
    Array<std::uint32_t, 32> x;
    std::memcpy(x, &low, 64);
    std::memcpy(x + 16, &high, 64);
    Array<std::uint16_t, 32> rounded;
    for (int i = 0; i < 32; ++i) rounded[i] = test::to_bf16_bits(x[i]);
    std::memcpy(&low, rounded, 64);
  }

  /// VDPBF16PS: two fused multiply-adds, the product of the odd elements first. Operands and results that are denormal
  /// become 0. The instruction rounds to nearest in any rounding mode, these functions only in that of the program.
  ATTN_NOT_INLINED void add_products(V& sum, const V& a, const V& b) {
    constexpr std::uint32_t kUpper = 0xffff0000;
    const Bits x = (Bits)a.raw, y = (Bits)b.raw;
    Bits s = (Bits)sum.raw;
    add_flushed(s, x & kUpper, y & kUpper);
    add_flushed(s, x << 16, y << 16);
    sum.raw = (V::Raw)s;
  }

  static constexpr int kEqual = 0, kNotLessEqual = 0x16;
  /// VCMPPS: comparisons with NaN are false for kEqual and true for kNotLessEqual.
  template <int kPredicate>
  ATTN_NOT_INLINED bool any(const V& a, const V& b) {
    static_assert(kPredicate == kEqual || kPredicate == kNotLessEqual);
    bool holds = false;
    for (int i = 0; i < V::kLanes; ++i) holds |= kPredicate == kEqual ? a.raw[i] == b.raw[i] : !(a.raw[i] <= b.raw[i]);
    return holds;
  }

  /// VREDUCEPS with an immediate of 1, which rounds down, also the difference: that of equal numbers is -0.
  ATTN_NOT_INLINED void take_fraction(V& f, const V& x) {
    for (int i = 0; i < V::kLanes; ++i) f.raw[i] = fraction(x.raw[i]);
  }
  ATTN_TARGET_AVX512 static float fraction(float x) {
    if (std::isinf(x)) return 0;
    const float whole = std::floor(x), difference = x - whole;
    if (difference == 0) return -0.0f;
    const bool was_rounded_up = x < difference + whole;  // this sum is exact
    return was_rounded_up ? number(bits(difference) - 1) : difference;
  }

  /// VSCALEFPS.
  ATTN_NOT_INLINED void scale_by_power(V& p, const V& x) {
    for (int i = 0; i < V::kLanes; ++i) p.raw[i] = scaled(p.raw[i], x.raw[i]);
  }
  /// p * 2^floor(x), rounded once. An infinite x makes p 0 or infinite, even if p is a quiet NaN; 0 * 2^inf and
  /// inf * 2^-inf are NaN.
  ATTN_TARGET_AVX512 static float scaled(float p, float x) {
    constexpr float kInf = std::numeric_limits<float>::infinity();
    const bool quiet = std::isnan(p) && (bits(p) & kQuiet) != 0;
    if (quiet && std::isinf(x)) return x > 0 ? kInf : 0;
    if (std::isnan(p) || std::isnan(x)) return p + x;
    if (std::isinf(x)) return x > 0 ? p * kInf : p * 0.0f;
    // The product of a float and of a power of two in this range is exact in double.
    const auto exponent = static_cast<std::int64_t>(std::floor(std::clamp(x, -500.0f, 500.0f)));
    const double power = std::bit_cast<double>((exponent + 1023) << 52);
    return static_cast<float>(p * power);
  }

  /// VPERMW with a mask of the lower words.
  ATTN_NOT_INLINED void replace_lower_words(V& to, const V& from, const Words& index) {
    Array<std::int16_t, 32> words, others;
    std::memcpy(words, &to, 64);
    std::memcpy(others, &from, 64);
    for (int i = 0; i < 32; i += 2) words[i] = others[index[i] & 31];
    std::memcpy(&to, words, 64);
  }
  /// VMOVDQU32 to an XMM register.
  template <class Raw>
  ATTN_TARGET_AVX512 static ATTN_INLINE void load_sixteen(Raw& x, const void* from) {
    x = Raw{};
    std::memcpy(&x, from, 16);
  }
  /// VINSERTI32X4.
  template <int kQuarter, class Raw>
  ATTN_TARGET_AVX512 static ATTN_INLINE void insert_sixteen(Raw& x, const void* from) {
    std::memcpy(reinterpret_cast<std::byte*>(&x) + 16 * kQuarter, from, 16);
  }

 private:
  using Bits = RawVec<float, 64, std::uint32_t>::type;
  static constexpr std::uint32_t kSign = 0x80000000, kExponent = 0x7f800000, kSmallestNormal = 0x00800000,
                                 kQuiet = 0x00400000;

  /// Denormals become 0 and keep their sign.
  ATTN_TARGET_AVX512 static ATTN_INLINE void flush(Bits& x) { x &= (Bits)((x & kExponent) != 0) | kSign; }

  /// sum += a * b, rounded once.
  ATTN_TARGET_AVX512 static ATTN_INLINE void add_flushed(Bits& sum, const Bits& a, const Bits& b) {
    Bits x = a, y = b, before = sum;
    flush(x);
    flush(y);
    flush(before);
    sum = (Bits)V::multiply_add((V::Raw)x, (V::Raw)y, (V::Raw)before).raw;
    for (int i = 0; i < V::kLanes; ++i)
      if ((sum[i] & ~kSign) == kSmallestNormal) sum[i] = smallest_or_zero(x[i], y[i], before[i], sum[i]);
    flush(sum);
  }
  /// A sum is denormal if it is below the smallest normal number after being rounded to 24 bits. The smallest denormal
  /// is twice as large as the last of these bits, so the sum may have been rounded up from there.
  static std::uint32_t smallest_or_zero(std::uint32_t a, std::uint32_t b, std::uint32_t before, std::uint32_t rounded) {
    const double exact = double{number(a)} * number(b) + number(before);
    return std::abs(exact) < 0x1p-126 - 0x1p-151 ? rounded & kSign : rounded;
  }
  static float number(std::uint32_t bits) { return std::bit_cast<float>(bits); }
  static std::uint32_t bits(float number) { return std::bit_cast<std::uint32_t>(number); }
};

/// See cache/dot_kernels.h.
template <int Bytes>
struct VnniInstructions {
  using V = Vec<float, Bytes>;
  using Ints = typename V::IntRaw;

  /// VCVTPS2DQ: numbers that do not fit, and NaN, become the smallest integer.
  ATTN_NOT_INLINED void round(Ints& x, const V& from) {
    constexpr float kEnd = 0x1p31f;
    for (int i = 0; i < V::kLanes; ++i) {
      const float lane = from.raw[i];
      const bool fits = lane >= -kEnd && lane < kEnd;
      x[i] = fits ? static_cast<std::int32_t>(std::nearbyint(lane)) : std::numeric_limits<std::int32_t>::min();
    }
  }
  /// VPBROADCASTD.
  ATTN_NOT_INLINED void load_four(Ints& x, const void* from) {
    std::int32_t four;
    std::memcpy(&four, from, sizeof(four));
    x = four - Ints{};
  }
  /// VPDPBUSD: without saturation.
  ATTN_NOT_INLINED void add_dots(Ints& sum, const Ints& bytes, const Ints& signed_bytes) {
    using Bits = typename RawVec<float, Bytes, std::uint32_t>::type;
    Bits s = (Bits)sum;
    for (int byte = 0; byte < 4; ++byte)
      s += ((Bits)bytes >> 8 * byte & 0xff) * (Bits)((Ints)((Bits)signed_bytes << (24 - 8 * byte)) >> 24);
    sum = (Ints)s;
  }
};
#undef ATTN_NOT_INLINED

#if !defined(__clang__)
/// Conversions of 64-byte vectors, in two halves. clang splits them by itself.
template <>
struct HalfVec<64> {
  using V = Vec<float, 64>;
  using Bits = RawVec<float, 64, std::uint32_t>::type;

  static ATTN_INLINE V widen_f16(const std::byte* from) { return widened<Half::widen_f16>(from, 2); }
  static ATTN_INLINE V widen_bf16(const std::byte* from) { return widened<Half::widen_bf16>(from, 2); }
  static ATTN_INLINE V widen_i8(const std::byte* from) { return widened<Half::widen_i8>(from, 1); }
  template <DType kDType>
  static ATTN_INLINE V widen_f16_of(const std::byte* from) {
    return widened<Half::widen_f16_of<kDType>>(from, 1);
  }
  static ATTN_INLINE void load_bytes(Bits& bits, const std::byte* from) {
    Array<RawVec<float, 32, std::uint32_t>::type, 2> halves;
    for (int h : {0, 1}) Half::load_bytes(halves[h], from + h * kLanes);
    std::memcpy(&bits, halves, sizeof(bits));
  }
  static ATTN_INLINE void load_word(Bits& word, const std::byte* from) {
    word = from_bytes<std::uint32_t>(from) - Bits{};
  }
  /// VPERMPS.
  static ATTN_INLINE void look_up(V& x, const V& table, const Bits& index) {
    Array<float, V::kLanes> numbers;
    for (int i = 0; i < V::kLanes; ++i) numbers[i] = table.raw[index[i] & 15u];
    x = V::load(numbers);
  }
  static ATTN_INLINE void narrow_f16(std::byte* to, const V& x) { narrow<Half::narrow_f16>(to, x); }
  static ATTN_INLINE void narrow_bf16(std::byte* to, const V& x) { narrow<Half::narrow_bf16>(to, x); }

 private:
  using Half = HalfVec<32>;
  static constexpr int kLanes = Half::kLanes;

  template <auto kWiden>
  static ATTN_INLINE V widened(const std::byte* from, int bytes) {
    const Array<Half::V, 2> halves = {kWiden(from), kWiden(from + kLanes * bytes)};
    V x;
    std::memcpy(&x, halves, sizeof(x));
    return x;
  }
  template <auto kNarrow>
  static ATTN_INLINE void narrow(std::byte* to, const V& x) {
    Array<Half::V, 2> halves;
    std::memcpy(halves, &x, sizeof(x));
    for (int h : {0, 1}) kNarrow(to + h * kLanes * 2, halves[h]);
  }
};
#endif

}  // namespace attn::detail::inline ATTN_BUILT_FOR
