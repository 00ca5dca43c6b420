// The NEON functions that core/simd/half_vec.h calls, in C++. With this folder in the include path, units compiled with
// ATTN_SOFTWARE_NEON have the generic kernels of 64-bit ARM on any processor: its conversions, and loops for 32
// registers. (Arm's "Neon Intrinsics Reference" defines the functions. qemu's instructions gave the same bits.)
#pragma once

#include <bit>
#include <cstdint>

#include <Eigen/Core>

typedef float float32x4_t __attribute__((vector_size(16)));
typedef std::int32_t int32x4_t __attribute__((vector_size(16)));
typedef std::uint32_t uint32x4_t __attribute__((vector_size(16)));
typedef std::int16_t int16x8_t __attribute__((vector_size(16)));
typedef std::uint16_t uint16x8_t __attribute__((vector_size(16)));
typedef std::uint8_t uint8x8_t __attribute__((vector_size(8)));
typedef std::int8_t int8x8_t __attribute__((vector_size(8)));
typedef std::int16_t int16x4_t __attribute__((vector_size(8)));
typedef std::uint16_t uint16x4_t __attribute__((vector_size(8)));
typedef std::uint32_t uint32x2_t __attribute__((vector_size(8)));
typedef uint16x4_t float16x4_t;

template <class To, class From, class Convert>
To lane_by_lane(const From& x, const Convert& convert) {
  To all{};
  for (unsigned i = 0; i < sizeof(x) / sizeof(x[0]) && i < sizeof(all) / sizeof(all[0]); ++i) all[i] = convert(x[i]);
  return all;
}

// Converted NaNs become quiet and keep the upper bits of their payload.
inline float32x4_t vcvt_f32_f16(float16x4_t x) {
  return lane_by_lane<float32x4_t>(x, [](std::uint16_t bits) {
    const float wide = static_cast<float>(std::bit_cast<Eigen::half>(bits));
    return wide == wide ? wide : std::bit_cast<float>(std::bit_cast<std::uint32_t>(wide) | 0x400000);
  });
}
inline float16x4_t vcvt_f16_f32(float32x4_t x) {
  return lane_by_lane<float16x4_t>(x, [](float wide) {
    const auto bits = std::bit_cast<std::uint32_t>(wide);
    if (wide == wide) return std::bit_cast<std::uint16_t>(Eigen::half(wide));
    return static_cast<std::uint16_t>((bits >> 16 & 0x8000) | 0x7e00 | (bits >> 13 & 0x3ff));
  });
}
inline uint32x4_t vshll_n_u16(uint16x4_t x, int bits) {
  return lane_by_lane<uint32x4_t>(x, [&](std::uint32_t lane) { return lane << bits; });
}
inline uint16x4_t vmovn_u32(uint32x4_t x) {
  return lane_by_lane<uint16x4_t>(x, [](std::uint32_t lane) { return static_cast<std::uint16_t>(lane); });
}
inline uint32x2_t vdup_n_u32(std::uint32_t x) { return uint32x2_t{x, x}; }
inline int8x8_t vreinterpret_s8_u32(uint32x2_t x) { return (int8x8_t)x; }
inline int16x8_t vmovl_s8(int8x8_t x) {
  return lane_by_lane<int16x8_t>(x, [](std::int8_t lane) { return lane; });
}
inline int16x4_t vget_low_s16(int16x8_t x) {
  return lane_by_lane<int16x4_t>(x, [](std::int16_t lane) { return lane; });
}
inline uint8x8_t vcreate_u8(std::uint64_t x) { return std::bit_cast<uint8x8_t>(x); }
inline uint16x8_t vmovl_u8(uint8x8_t x) {
  return lane_by_lane<uint16x8_t>(x, [](std::uint8_t lane) { return lane; });
}
inline uint16x4_t vget_low_u16(uint16x8_t x) {
  return lane_by_lane<uint16x4_t>(x, [](std::uint16_t lane) { return lane; });
}
inline uint32x4_t vmovl_u16(uint16x4_t x) {
  return lane_by_lane<uint32x4_t>(x, [](std::uint16_t lane) { return lane; });
}
inline int32x4_t vmovl_s16(int16x4_t x) {
  return lane_by_lane<int32x4_t>(x, [](std::int16_t lane) { return lane; });
}
inline float32x4_t vcvtq_f32_s32(int32x4_t x) {
  return lane_by_lane<float32x4_t>(x, [](std::int32_t lane) { return static_cast<float>(lane); });
}
