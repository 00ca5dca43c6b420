// The registers and instructions of the matrix unit (AMX), written in assembly, because the compilers' intrinsics
// differ and need attributes on all functions that they are inlined into.
#pragma once

#include <cstdint>
#include <type_traits>

#include "attn/core/kernels/bf16/instructions.h"

#if ATTN_AMX
namespace attn::detail::inline ATTN_BUILT_FOR {

template <int number>
using TileRegister = std::integral_constant<int, number>;
inline constexpr TileRegister<0> tmm0;
inline constexpr TileRegister<1> tmm1;
inline constexpr TileRegister<2> tmm2;
inline constexpr TileRegister<3> tmm3;
inline constexpr TileRegister<4> tmm4;
inline constexpr TileRegister<5> tmm5;
inline constexpr TileRegister<6> tmm6;
inline constexpr TileRegister<7> tmm7;

/// Eight registers of 16 rows of 64 bytes: 16 floats, or 16 pairs of bf16. The compilers do not know about these
/// registers and keep the order of the statements. Kernels take this type as `Tiles`; tests pass an emulation in
/// software.
struct AmxTiles : Bf16Instructions {
  static constexpr Index kRows = 16;

  /// Configures the registers for the calling thread. A mod may itself call attention, between two kernels: the
  /// registers are then already configured, and stay so until the outer call ends.
  static void begin() {
    if (depth()++ > 0) return;
    struct alignas(64) Configuration {
      std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
      std::uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
      std::uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
    };
    const Configuration configuration;
    asm volatile("ldtilecfg %0" : : "m"(configuration));
  }
  /// Releases the registers, which the operating system would otherwise keep saving with the thread.
  static void end() {
    if (--depth() == 0) asm volatile("tilerelease");
  }

  /// Number of calls of this thread that use the registers.
  static int& depth() {
    thread_local int calls = 0;
    return calls;
  }

  template <int number>
  static ATTN_INLINE void load(TileRegister<number>, const void* from, Index stride) {
    asm volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(from), "r"(stride), "i"(number) : "memory");
  }
  template <int number>
  static ATTN_INLINE void store(TileRegister<number>, void* to, Index stride) {
    asm volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(to), "r"(stride), "i"(number) : "memory");
  }
  template <int number>
  static ATTN_INLINE void zero(TileRegister<number>) {
    asm volatile("tilezero %%tmm%c0" : : "i"(number));
  }
  /// sum(i, j) += a(i, 2k) b(k, j, 0) + a(i, 2k + 1) b(k, j, 1), summed over k. Denormals are treated as 0.
  template <int sum, int a, int b>
  static ATTN_INLINE void multiply(TileRegister<sum>, TileRegister<a>, TileRegister<b>) {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(sum), "i"(a), "i"(b));
  }
};

}  // namespace attn::detail::inline ATTN_BUILT_FOR
#endif
