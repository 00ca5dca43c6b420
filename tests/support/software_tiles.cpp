// Software emulation of the matrix unit, used if the environment variable ATTN_SOFTWARE_TILES is set.
#include "software_tiles.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>

#include "attn/core/kernels/bf16/backward_kernels.h"
#include "bf16_bits.h"
#include "emulation.h"

namespace attn::detail {

bool software_tiles() {
  static const bool asked = ATTN_AMX && test::emulates_matrix_unit();
  return asked;
}

}  // namespace attn::detail

#if ATTN_AMX
namespace attn::detail::inline ATTN_BUILT_FOR {

extern template const KernelFamily<float>& kernel_family<float>(VectorSet);  // in loops.cpp

const KernelFamily<float>& software_tiles_family() {
  static const KernelFamily<float> family = amx_family<test::SoftwareTiles>(kernel_family<float>(VectorSet::avx512));
  return family;
}

BackwardKernelSet<float> software_tiles_backward_kernels() {
  return bf16_backward_kernels<AmxPanels<test::SoftwareTiles>>(backward_kernels<float>(VectorSet::avx512));
}

}  // namespace attn::detail::inline ATTN_BUILT_FOR

namespace attn::test {
namespace {

constexpr int kRegisters = 8, kRows = 16, kFloats = 16;
constexpr std::size_t kBytes = 64;

struct TileData {
  alignas(kBytes) std::uint32_t rows[kRows][kFloats];
};

struct Registers {
  int depth = 0;
  TileData tiles[kRegisters];
};
thread_local Registers registers;

[[noreturn]] void abort_with(const char* what) {
  std::fprintf(stderr, "attn: software tiles: %s\n", what);
  std::abort();
}

TileData& tile(int number) {
  if (registers.depth == 0) abort_with("a register is used on a thread that is not between begin() and end()");
  return registers.tiles[number];
}

const std::byte* row_at(const void* from, Index stride, int row) {
  return static_cast<const std::byte*>(from) + row * stride;
}

using V = detail::Vec<float, 32>;

/// sum += x * y, rounded once.
ATTN_TARGET_AVX2 ATTN_INLINE void add_product(V& sum, const V::IntRaw& x, const V::IntRaw& y) {
  sum = V::multiply_add((V::Raw)x, (V::Raw)y, sum.raw);
}

/// TDPBF16PS by its pseudo-code: the products of even and of odd elements are summed separately, each from 0 by fused
/// multiply-adds, and their sum is added to the previous value. Not inlined, because the caller's control word must not
/// change between its instructions.
ATTN_TARGET_AVX2 __attribute__((noinline)) void add_dot_products(TileData& sum, const TileData& a, const TileData& b) {
  for (int i = 0; i < kRows; ++i)
    for (int j = 0; j < kFloats; j += V::kLanes) {
      V even{}, odd{};
      for (int k = 0; k < kFloats; ++k) {
        const std::uint32_t pair = a.rows[i][k];
        V::IntRaw pairs;
        std::memcpy(&pairs, b.rows[k] + j, sizeof(pairs));
        add_product(even, V::IntRaw{} + static_cast<std::int32_t>(pair << 16), pairs << 16);
        add_product(odd, V::IntRaw{} + static_cast<std::int32_t>(pair & 0xffff0000), pairs & -0x10000);
      }
      V before;
      std::memcpy(&before, sum.rows[i] + j, sizeof(before));
      const V after = before + (even + odd);
      std::memcpy(sum.rows[i] + j, &after, sizeof(after));
    }
}

/// VDPBF16PS: the products of odd elements are added first. Not inlined, as above.
ATTN_TARGET_AVX2 __attribute__((noinline)) void add_pair_products(std::byte* sum, const std::byte* a,
                                                                  const std::byte* b) {
  for (std::size_t i = 0; i < kBytes; i += sizeof(V)) {
    V s;
    V::IntRaw x, y;
    std::memcpy(&s, sum + i, sizeof(s));
    std::memcpy(&x, a + i, sizeof(x));
    std::memcpy(&y, b + i, sizeof(y));
    add_product(s, x & -0x10000, y & -0x10000);
    add_product(s, x << 16, y << 16);
    std::memcpy(sum + i, &s, sizeof(s));
  }
}

/// Makes vectors compute as tiles do for its lifetime: all exceptions masked, rounding to nearest, ties to even (bits
/// 13 and 14 are 0), denormal results become 0 (bit 15), and denormal inputs count as 0 (bit 6).
class ControlWordOfTiles {
 public:
  ControlWordOfTiles() {
    constexpr std::uint32_t kMasked = 0x1f80, kFlushToZero = 1u << 15, kDenormalsAreZeros = 1u << 6;
    const std::uint32_t word = kMasked | kFlushToZero | kDenormalsAreZeros;
    asm volatile("stmxcsr %0" : "=m"(before_) : : "memory");
    asm volatile("ldmxcsr %0" : : "m"(word) : "memory");
  }
  ControlWordOfTiles(const ControlWordOfTiles&) = delete;
  ~ControlWordOfTiles() { asm volatile("ldmxcsr %0" : : "m"(before_) : "memory"); }

 private:
  std::uint32_t before_;
};

}  // namespace

void SoftwareTiles::begin() {
  if (registers.depth++ > 0) return;
  for (TileData& t : registers.tiles) t = {};
}
void SoftwareTiles::end() {
  if (registers.depth == 0) abort_with("end() without begin() on this thread");
  --registers.depth;
}

void SoftwareTiles::load(int number, const void* from, Index stride) {
  TileData& to = tile(number);
  for (int i = 0; i < kRows; ++i) std::memcpy(to.rows[i], row_at(from, stride, i), kBytes);
}
void SoftwareTiles::store(int number, void* to, Index stride) {
  const TileData& from = tile(number);
  for (int i = 0; i < kRows; ++i) std::memcpy(static_cast<std::byte*>(to) + i * stride, from.rows[i], kBytes);
}
void SoftwareTiles::zero(int number) { tile(number) = {}; }

void SoftwareTiles::multiply(int sum, int a, int b) {
  TileData& t = tile(sum);
  const ControlWordOfTiles control_word;
  add_dot_products(t, tile(a), tile(b));
}

void SoftwareTiles::round_floats_to_bf16(void* low, const void* high) {
  std::uint32_t x[2 * kFloats];
  std::memcpy(x, low, kBytes);
  std::memcpy(x + kFloats, high, kBytes);
  std::uint16_t rounded[2 * kFloats];
  std::transform(std::begin(x), std::end(x), rounded, to_bf16_bits);
  std::memcpy(low, rounded, kBytes);
}

void SoftwareTiles::add_pairs(void* sum, const void* a, const void* b) {
  const ControlWordOfTiles control_word;
  add_pair_products(static_cast<std::byte*>(sum), static_cast<const std::byte*>(a), static_cast<const std::byte*>(b));
}

}  // namespace attn::test
#endif
