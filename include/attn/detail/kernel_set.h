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
  void (*score)(const TileMemory<T>&, Rows<T>, Index keys, Index head_dim);
  void (*find_max)(const TileMemory<T>&, Index keys);
  bool (*softmax)(const TileMemory<T>&, Index keys);
  void (*value)(const TileMemory<T>&, Rows<T>, Index keys, Index v_dim, bool rescale);
  bool (*all_finite)(Rows<T>, Index keys, Index v_dim);
  void (*find_dropped)(const TileMemory<T>&, Index keys);
  void (*value_by_selection)(const TileMemory<T>&, Rows<T>, Index keys, Index v_dim);
};

// The text of the kernels takes on the instruction set of these functions, whatever the flags of the program.
#define ATTN_KERNEL_SET(Name, kBytes, kRegisters, ...)                                                               \
  template <class T, int kVectors>                                                                                   \
  struct Name {                                                                                                      \
    using K = TileKernels<T, kBytes, kRegisters, kVectors>;                                                          \
    __VA_ARGS__ static void score(const TileMemory<T>& m, Rows<T> key, Index keys, Index head_dim) {                 \
      K::score(m, key, keys, head_dim);                                                                              \
    }                                                                                                                \
    __VA_ARGS__ static void find_max(const TileMemory<T>& m, Index keys) { K::find_max(m, keys); }                   \
    __VA_ARGS__ static bool softmax(const TileMemory<T>& m, Index keys) { return K::softmax(m, keys); }              \
    __VA_ARGS__ static void value(const TileMemory<T>& m, Rows<T> v, Index keys, Index v_dim, bool rescale) {        \
      K::value(m, v, keys, v_dim, rescale);                                                                          \
    }                                                                                                                \
    __VA_ARGS__ static bool all_finite(Rows<T> v, Index keys, Index v_dim) { return K::all_finite(v, keys, v_dim); } \
    __VA_ARGS__ static void find_dropped(const TileMemory<T>& m, Index keys) { K::find_dropped(m, keys); }           \
    __VA_ARGS__ static void value_by_selection(const TileMemory<T>& m, Rows<T> v, Index keys, Index v_dim) {         \
      K::value_by_selection(m, v, keys, v_dim);                                                                      \
    }                                                                                                                \
    static constexpr KernelSet<T> set() {                                                                            \
      return {K::kQueries, score, find_max, softmax, value, all_finite, find_dropped, value_by_selection};           \
    }                                                                                                                \
  }

ATTN_KERNEL_SET(GenericKernels, 16, 16, );
#if ATTN_X86
ATTN_KERNEL_SET(Avx2Kernels, 32, 16, __attribute__((target("avx2,fma"))));
ATTN_KERNEL_SET(Avx512Kernels, 64, 32, __attribute__((target("avx512f,avx512dq,avx512bw,avx512vl,avx2,fma"))));
#endif
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
