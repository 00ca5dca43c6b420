// Layer 2: the kernels compiled for each instruction set, and the choice among them at run time.
#pragma once

#include "attn/detail/kernels.h"
#include "attn/isa.h"

namespace attn::detail {

/// The kernels of one instruction set and one width of tile, as pointers: the tile loop is compiled once and runs with
/// any of them. Calls cost nothing next to a tile, which is tens of thousands of flops.
template <class T>
struct KernelSet {
  Index queries;  ///< in a tile
  void (*load_query)(const TileMemory<T>&, Rows<T>, Index rows, Index head_dim, T factor);
  void (*score)(const TileMemory<T>&, Rows<T>, Index keys, Index head_dim);
  void (*find_max)(const TileMemory<T>&, Index keys);
  bool (*softmax)(const TileMemory<T>&, Index keys);
  void (*value)(const TileMemory<T>&, Rows<T>, Index keys, Index v_dim, bool rescale);
  void (*store_out)(const TileMemory<T>&, T* to, Index stride, Index rows, Index v_dim);
  bool (*all_finite)(Rows<T>, Index keys, Index v_dim);
  void (*find_dropped)(const TileMemory<T>&, Index keys);
  void (*value_by_selection)(const TileMemory<T>&, Rows<T>, Index keys, Index v_dim);
};

// One function of the set. The text of the kernel takes on the instruction set of this function, whatever the flags of
// the program.
#define ATTN_KERNEL(name, target, Result)                               \
  template <class... Args>                                              \
  target static Result name(Args... args) {                             \
    return TileKernels<T, kBytes, kRegisters, kVectors>::name(args...); \
  }

#define ATTN_KERNEL_SET(Name, bytes, registers, target)               \
  template <class T, int kVectors>                                    \
  struct Name {                                                       \
    static constexpr int kBytes = bytes, kRegisters = registers;      \
    ATTN_KERNEL(load_query, target, void)                             \
    ATTN_KERNEL(score, target, void)                                  \
    ATTN_KERNEL(find_max, target, void)                               \
    ATTN_KERNEL(softmax, target, bool)                                \
    ATTN_KERNEL(value, target, void)                                  \
    ATTN_KERNEL(store_out, target, void)                              \
    ATTN_KERNEL(all_finite, target, bool)                             \
    ATTN_KERNEL(find_dropped, target, void)                           \
    ATTN_KERNEL(value_by_selection, target, void)                     \
    static constexpr KernelSet<T> set() {                             \
      return {TileKernels<T, kBytes, kRegisters, kVectors>::kQueries, \
              load_query,                                             \
              score,                                                  \
              find_max,                                               \
              softmax,                                                \
              value,                                                  \
              store_out,                                              \
              all_finite,                                             \
              find_dropped,                                           \
              value_by_selection};                                    \
    }                                                                 \
  }

ATTN_KERNEL_SET(GenericKernels, 16, 16, );
#if ATTN_X86
#define ATTN_TARGET_AVX2 __attribute__((target("avx2,fma")))
#define ATTN_TARGET_AVX512 __attribute__((target("avx512f,avx512dq,avx512bw,avx512vl,avx2,fma")))
ATTN_KERNEL_SET(Avx2Kernels, 32, 16, ATTN_TARGET_AVX2);
ATTN_KERNEL_SET(Avx512Kernels, 64, 32, ATTN_TARGET_AVX512);
#endif
#undef ATTN_KERNEL
#undef ATTN_KERNEL_SET

/// The kernels of `isa` for tiles of 1, 2 and 3 vectors of queries.
template <class T>
const KernelSet<T>* kernel_sets(Isa isa) {
#if ATTN_X86
  if constexpr (Simd<T, 16>::kVector) {
    if (isa == Isa::avx512) {
      static constexpr KernelSet<T> sets[] = {Avx512Kernels<T, 1>::set(), Avx512Kernels<T, 2>::set(),
                                              Avx512Kernels<T, 3>::set()};
      return sets;
    }
    if constexpr (kPromisedIsa <= Isa::avx2) {
      if (isa == Isa::avx2) {
        static constexpr KernelSet<T> sets[] = {Avx2Kernels<T, 1>::set(), Avx2Kernels<T, 2>::set(),
                                                Avx2Kernels<T, 3>::set()};
        return sets;
      }
    }
  }
#endif
  if constexpr (kPromisedIsa == Isa::generic || !Simd<T, 16>::kVector) {
    static constexpr KernelSet<T> sets[] = {GenericKernels<T, 1>::set(), GenericKernels<T, 2>::set(),
                                            GenericKernels<T, 3>::set()};
    return sets;
  }
  (void)isa;
  return nullptr;
}

}  // namespace attn::detail
