// The kernels compiled for each instruction set, and the choice among them at run time.
#pragma once

#include "attn/detail/base/linker_hint.h"
#include "attn/detail/kernels/decode_kernels.h"
#include "attn/detail/kernels/masked_kernels.h"
#include "attn/detail/kernels/packing_kernels.h"
#include "attn/detail/kernels/tile_kernels.h"
#include "attn/detail/kernels/total_kernels.h"
#include "attn/isa.h"

namespace attn::detail {
inline namespace ATTN_BUILT_FOR {

/// The kernels of one instruction set for tiles of one width, as pointers: the prefill loop is compiled once and runs with
/// any of them. Calls cost nothing next to a tile, which is tens of thousands of flops.
template <class T>
struct KernelSet {
  Index queries;  ///< in a tile
  void (*score)(const TileMemory<T>&, Rows<T>, Index keys, Index head_dim);
  bool (*softmax)(const TileMemory<T>&, Index keys, Rows<T> value, Index v_dim);
  void (*value)(const TileMemory<T>&, Rows<T>, Index keys, Index v_dim, OutUpdate, const PrefetchPlan&);
};

/// The kernels for single queries, up to 16 of them at a time.
template <class T>
struct DecodeKernelSet {
  void (*score)(const TileMemory<T>&, Index rows, const RowsToRead& key, Index keys, Index head_dim, Prefetcher&);
  void (*softmax)(const TileMemory<T>&, Index row, Index keys, Prefetcher&);
  void (*value)(const TileMemory<T>&, Index rows, const RowsToRead& value, Index keys, Index v_dim, Prefetcher&);
};

/// How the kernels of a family want the numbers of queries, keys and values.
struct Format {
  DType dtype;                ///< native, or bf16: then two of them lie in the room of a float
  Index columns;              ///< rows are padded with zeros to a multiple of it
  Index out;                  ///< room for v_dim is padded to a multiple of it
  Index keys;                 ///< keys are read by so many rows
  bool defers_value_product;  ///< do weights of several tiles of keys wait for one value product?

  Index per_number() const { return dtype == DType::native ? 1 : 2; }
  /// The numbers T that a row of so many columns takes.
  Index row(Index dim) const { return padded(dim, columns) / per_number(); }
};

/// All kernels of one instruction set: by_vectors[n - 1] for tiles of n vectors of queries, `widest` at most, row for
/// single queries, and what they share.
template <class T>
struct KernelFamily {
  Format format;
  int widest;
  DecodeKernelSet<T> row;
  KernelSet<T> by_vectors[kMaxVectors];
  void (*load_columns)(T* to, Index queries, Rows<T>, Index rows, Index dim, T factor);
  void (*store_out)(const TileMemory<T>&, Index queries, T* to, Index stride, Index rows, Index v_dim);
  void (*pack_rows)(const RowsToRead&, Index rows, Index columns, T* to);
  void (*unpack_rows)(const T* from, Index rows, Index columns, const RowsToWrite&);
  void (*find_max)(const TileMemory<T>&, Index queries, Index keys);  ///< null: softmax() finds it itself
  bool (*all_finite)(Rows<T>, Index keys, Index v_dim);
  void (*find_dropped)(const TileMemory<T>&, Index queries, Index keys);
  void (*value_by_selection)(const TileMemory<T>&, Index queries, Rows<T>, Index keys, Index v_dim, OutUpdate);
  void (*end_stretch)(const TileMemory<T>&, Index queries, Index v_dim, OutLayout, bool is_first);
  void (*finish)(const TileMemory<T>&, Index queries, Index v_dim, bool has_totals);

  // What the matrix unit needs besides; null for others.
  void (*begin)() = nullptr;  ///< before a thread's first kernel
  void (*end)() = nullptr;    ///< after its last one
  void (*scale_scores)(const TileMemory<T>&, Index keys) = nullptr;
  void (*arrange_values)(Rows<T>, Index keys, Index v_dim, T* to) = nullptr;

  const KernelSet<T>& set_for(Index rows) const {
    const Index lanes = by_vectors[0].queries;
    return by_vectors[ceil_div(rows, lanes) - 1];
  }
};

/// A family's kernels in use by the calling thread.
template <class T>
class InUse {
 public:
  explicit InUse(const KernelFamily<T>& family) : end_(family.end) {
    if (family.begin) family.begin();
  }
  InUse(const InUse&) = delete;
  ~InUse() {
    if (end_) end_();
  }

 private:
  void (*end_)();
};

// One function of the set. The text of the kernel takes on the instruction set of this function, whatever the flags of
// the program. Without a width of its own, clang would cut vectors of 512 bits in two where -march=native prefers 256.
#define ATTN_KERNEL(name, target, Result)   \
  template <class... Args>                  \
  target static Result name(Args... args) { \
    return Kernels::name(args...);          \
  }

#define ATTN_KERNEL_FAMILY(Name, target)                                                       \
  template <class T, class Kernels>                                                            \
  struct Name {                                                                                \
    ATTN_KERNEL(load_columns, target, void)                                                    \
    ATTN_KERNEL(score, target, void)                                                           \
    ATTN_KERNEL(softmax, target, auto)                                                         \
    ATTN_KERNEL(value, target, void)                                                           \
    ATTN_KERNEL(store_out, target, void)                                                       \
    ATTN_KERNEL(pack_rows, target, void)                                                       \
    ATTN_KERNEL(unpack_rows, target, void)                                                     \
    ATTN_KERNEL(find_max, target, void)                                                        \
    ATTN_KERNEL(all_finite, target, bool)                                                      \
    ATTN_KERNEL(find_dropped, target, void)                                                    \
    ATTN_KERNEL(value_by_selection, target, void)                                              \
    ATTN_KERNEL(end_stretch, target, void)                                                     \
    ATTN_KERNEL(finish, target, void)                                                          \
    static constexpr KernelSet<T> set() { return {Kernels::kQueries, score, softmax, value}; } \
    static constexpr DecodeKernelSet<T> row_set() { return {score, softmax, value}; }          \
  }

ATTN_KERNEL_FAMILY(GenericKernels, );
#if ATTN_X86
ATTN_KERNEL_FAMILY(Avx2Kernels, ATTN_TARGET_AVX2);
ATTN_KERNEL_FAMILY(Avx512Kernels, ATTN_TARGET_AVX512);
#endif
#undef ATTN_KERNEL
#undef ATTN_KERNEL_FAMILY

template <class T, template <class, class> class Compiled, int kBytes, int kRegisters>
constexpr KernelFamily<T> kFamily = {{DType::native, 1, kMaxRows, 1, false},
                                     kMaxVectors,
                                     Compiled<T, DecodeKernels<T, kBytes, kRegisters>>::row_set(),
                                     {Compiled<T, TileKernels<T, kBytes, kRegisters, 1>>::set(),
                                      Compiled<T, TileKernels<T, kBytes, kRegisters, 2>>::set(),
                                      Compiled<T, TileKernels<T, kBytes, kRegisters, 3>>::set()},
                                     Compiled<T, PackingKernels<T, kBytes>>::load_columns,
                                     Compiled<T, PackingKernels<T, kBytes>>::store_out,
                                     Compiled<T, PackingKernels<T, kBytes>>::pack_rows,
                                     Compiled<T, PackingKernels<T, kBytes>>::unpack_rows,
                                     Compiled<T, CommonKernels<T, kBytes>>::find_max,
                                     Compiled<T, CommonKernels<T, kBytes>>::all_finite,
                                     Compiled<T, CommonKernels<T, kBytes>>::find_dropped,
                                     Compiled<T, CommonKernels<T, kBytes>>::value_by_selection,
                                     Compiled<T, TotalKernels<T, kBytes>>::end_stretch,
                                     Compiled<T, TotalKernels<T, kBytes>>::finish};

/// Vector registers of what the compiler's flags allow everywhere.
constexpr int kGenericRegisters = ATTN_NEON ? 32 : 16;

/// The kernels of `isa`, which must be available. Scalars without vectors have only one kind.
template <class T, class = include_attn_instantiate_h_in_one_unit>
const KernelFamily<T>& kernel_family(Isa isa) {
#if ATTN_X86
  if constexpr (Simd<T, 16>::kVector) {
    if constexpr (kPromisedIsa == Isa::avx512) return kFamily<T, Avx512Kernels, 64, 32>;
    if (isa >= Isa::avx512) return kFamily<T, Avx512Kernels, 64, 32>;
    if constexpr (kPromisedIsa == Isa::avx2) return kFamily<T, Avx2Kernels, 32, 16>;
    if (isa == Isa::avx2) return kFamily<T, Avx2Kernels, 32, 16>;
  }
#endif
  (void)isa;
  return kFamily<T, GenericKernels, 16, kGenericRegisters>;
}

}  // namespace ATTN_BUILT_FOR
}  // namespace attn::detail
