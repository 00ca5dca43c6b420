// The registers and instructions of detail/kernels/bf16/amx_registers.h in software: with them, the kernels for the
// matrix unit run on any x86-64 that has AVX-512.
#pragma once

#include "attn/detail/kernels/bf16/amx_registers.h"

#if ATTN_AMX
namespace attn::test {

/// Does bit for bit what Intel's Software Developer's Manual says of LDTILECFG, TILELOADD, TILESTORED, TILEZERO,
/// TDPBF16PS and VCVTNE2PS2BF16 (volume 2), except for the payload of NaNs. Each thread has its own registers. What
/// would be a fault of the processor ends the program with a message: a register used outside begin() and end(), or on
/// a thread that did not begin, or an end without a beginning.
class SoftwareTiles {
 public:
  static void begin();
  static void end();

  template <int number>
  static void load(detail::TileRegister<number>, const void* from, Index stride) {
    load(number, from, stride);
  }
  template <int number>
  static void store(detail::TileRegister<number>, void* to, Index stride) {
    store(number, to, stride);
  }
  template <int number>
  static void zero(detail::TileRegister<number>) {
    zero(number);
  }
  template <int sum, int a, int b>
  static void multiply(detail::TileRegister<sum>, detail::TileRegister<a>, detail::TileRegister<b>) {
    static_assert(sum != a && sum != b && a != b, "the processor refuses products of one register twice");
    multiply(sum, a, b);
  }

  template <class V>
  static void round_to_bf16(V& low, const V& high) {
    static_assert(sizeof(V) == 64);
    round_floats_to_bf16(&low, &high);
  }

 private:
  static void load(int number, const void* from, Index stride);
  static void store(int number, void* to, Index stride);
  static void zero(int number);
  static void multiply(int sum, int a, int b);
  static void round_floats_to_bf16(void* low, const void* high);
};

}  // namespace attn::test
#endif
