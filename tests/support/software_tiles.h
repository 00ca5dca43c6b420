// Software emulation of the registers and instructions of core/kernels/bf16/amx_registers.h: with it, the matrix
// unit's kernels run on any x86-64 processor with AVX-512, or with AVX2 where AVX-512 is in software too.
#pragma once

#include "attn/core/kernels/bf16/amx_registers.h"

#if ATTN_AMX
namespace attn::test {

/// Gives, bit for bit, the results that Intel's Software Developer's Manual specifies for LDTILECFG, TILELOADD,
/// TILESTORED, TILEZERO, TDPBF16PS, VDPBF16PS and VCVTNE2PS2BF16 (volume 2), except for the payload of NaNs. Each
/// thread has its own registers. Misuse that would fault on the processor ends the program with a message: a register
/// used on a thread that is not between begin() and end(), or end() without begin().
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
    static_assert(sum != a && sum != b && a != b, "the processor faults if two operands are the same register");
    multiply(sum, a, b);
  }

  template <class V>
  static void round_to_bf16(V& low, const V& high) {
    static_assert(sizeof(V) == 64);
    round_floats_to_bf16(&low, &high);
  }
  template <class V>
  static void add_products(V& sum, const V& a, const V& b) {
    static_assert(sizeof(V) == 64);
    add_pairs(&sum, &a, &b);
  }

 private:
  static void load(int number, const void* from, Index stride);
  static void store(int number, void* to, Index stride);
  static void zero(int number);
  static void multiply(int sum, int a, int b);
  static void round_floats_to_bf16(void* low, const void* high);
  static void add_pairs(void* sum, const void* a, const void* b);
};

}  // namespace attn::test
#endif
