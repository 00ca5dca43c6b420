// Chooses the kernels of a call by the types of its tensors and the instruction sets of the machine.
#pragma once

#include <algorithm>
#include <initializer_list>
#include <limits>

#include "attn/core/base/compiled_once.h"
#include "attn/core/kernels/bf16/amx_tile_kernels.h"
#include "attn/core/kernels/bf16/vector_kernels.h"
#include "attn/core/kernels/sigmoid_kernels.h"
#include "attn/core/tensor/problem.h"
#include "attn/explanation.h"
#include "attn/options.h"

namespace attn::detail::inline ATTN_BUILT_FOR {

template <class T>
struct ChosenKernels {
  const KernelFamily<T>& family;
  const KernelFamily<T>& full_precision;  ///< always computes in T; its kernels also serve single queries
  VectorSet vectors;                      ///< of `full_precision`, and of the mods
  Amx amx;
  const DotKernels<T>* dots = nullptr;  ///< for single queries over 8-bit integers; null: none

  bool on_matrix_unit() const { return amx == Amx::used; }
  bool in_bf16() const { return family.format.dtype == DType::bf16; }  ///< by the matrix unit or by vectors

  /// Maximum number of queries that are processed one by one. A tile always computes whole vectors of queries, while
  /// single queries are multiplied four at a time. With 16-lane vectors, processing queries one by one pays off for up
  /// to 8 of them: at head_dim 64, 8 queries took 0.77 of a tile's time over 1000 keys and 0.82 over 256, and 5 queries
  /// took 0.49. It does not pay off if rows are so short that summing over lanes costs as much as the products, or if
  /// keys are so few that the other costs of a query do. The matrix unit is faster from two queries on.
  Index few_queries(const Problem& problem) const {
    constexpr Index kFew = 4, kLeastKeys = 4 * kKeyTile, kLeastVectors = 4;
    if (problem.row_invariant || problem.changes_weights) return 0;
    if (on_matrix_unit()) return 1;
    const Index lanes = full_precision.by_vectors[0].queries;
    return problem.kv_len >= kLeastKeys && problem.head_dim >= kLeastVectors * lanes ? std::max(kFew, lanes / 2) : kFew;
  }
};

// There are deliberately no kernels for AVX512-FP16 arithmetic. It does twice as many multiplications per cycle as
// float's, but accumulates in binary16: errors would be several times those of the naive path, and sums would overflow
// at 65504. Binary16 is widened to float.

/// Whether products of tensors of these types may be computed from values rounded to bf16. Types that only caches have
/// do not qualify: the bf16 kernels do not read them.
inline bool fits_bf16(Compute compute, std::initializer_list<DType> dtypes) {
  return std::all_of(dtypes.begin(), dtypes.end(),
                     [&](DType s) { return s == DType::bf16 || (compute == Compute::bf16 && s < DType::i8); });
}

/// Whether scores may be scaled after the product, as in the bf16 kernels. The scale must be large enough that a
/// product that overflows to -inf would be below -2^64 when scaled: its weight would be 0 anyway. The scale must also
/// be far from the largest float. A score is still infinite if only a partial sum overflows, or if a mod would have
/// shrunk the score.
inline bool scales_after_products(long double scale) {
  return scale >= 0x1p-64L && scale <= std::numeric_limits<float>::max() / 2;
}

/// Whether bf16 kernels may compute a call on tensors of these types.
inline bool rounds_to_bf16(const Problem& problem, const Options& options, std::initializer_list<DType> dtypes) {
  return fits_bf16(options.compute, dtypes) && scales_after_products(problem.scale);
}

/// Which units may compute products in bf16. Vectors only take tensors that are bf16 already.
enum class Bf16Products : unsigned char { none, by_matrix_unit, by_any };

inline Bf16Products bf16_products(Compute compute, std::initializer_list<DType> dtypes) {
  return fits_bf16(Compute::native, dtypes) ? Bf16Products::by_any
         : fits_bf16(compute, dtypes)       ? Bf16Products::by_matrix_unit
                                            : Bf16Products::none;
}

/// Which units may compute the products of a call in bf16, given its scale and number of keys as well. Vectors multiply
/// keys in groups of 32, and are not used if padding would be more than a third of the keys in these groups. On Zen 5,
/// 16 queries over 16 keys took 1.3 times as long as in float, and 33 queries over 33 keys 1.15 times; 24 queries over
/// 24 keys took 0.85 times as long, 48 over 48 keys 0.9, and 9 to 48 queries over 1000 keys 0.5 to 0.75.
inline Bf16Products bf16_products(const Problem& problem, const Options& options, std::initializer_list<DType> dtypes) {
  if (!scales_after_products(problem.scale)) return Bf16Products::none;
  const Bf16Products products = bf16_products(options.compute, dtypes);
  const bool fill_vectors = 3 * problem.kv_len >= 2 * padded<Index>(problem.kv_len, 32);
  return products == Bf16Products::by_any && !fill_vectors ? Bf16Products::by_matrix_unit : products;
}

#if ATTN_AMX
#if defined(ATTN_SOFTWARE_TILES)
const KernelFamily<float>& software_tiles_family();  ///< used by tests, like software_tiles()
#endif

/// The kernels of the matrix unit, or of its software stand-in in tests.
template <bool kOthers>
const KernelFamily<float>& matrix_unit_family() {
#if defined(ATTN_SOFTWARE_TILES)
  if (software_tiles()) return software_tiles_family();
#endif
  return kAmxFamily<kOthers>;
}
#endif

/// Chooses the kernels of a call. Without kOthers, all of its tensors must be stored as T.
template <class T, bool kOthers = true, class = include_attn_instantiate_h_in_one_unit>
ChosenKernels<T> choose_kernels(const Options& options, Bf16Products products) {
  [[maybe_unused]] const auto [vectors, dots, matrix] = parts_of(isa_of(options));
  const KernelFamily<T>& full_precision = kernel_family<T, kOthers>(vectors);
  if (products == Bf16Products::none) return {full_precision, full_precision, vectors, Amx::unsupported};
  Amx amx = Amx::unavailable;
#if ATTN_BF16
  if constexpr (std::is_same_v<T, float>) {
#if ATTN_AMX
    if (matrix == MatrixUnit::amx) {
      if (amx_permitted()) return {matrix_unit_family<kOthers>(), full_precision, vectors, Amx::used};
      amx = Amx::refused;
    }
#endif
    // The processor is checked again, because the software stand-in for the matrix unit has no dot products.
    if constexpr (kOthers)  // vectors do not round floats
      if (products == Bf16Products::by_any && dots == DotProducts::vnni_bf16 && cpu_has_bf16_dots())
        return {kBf16VectorFamily<true>, full_precision, vectors, amx};
  }
#endif
  return {full_precision, full_precision, vectors, amx};
}
ATTN_COMPILED_ONCE(choose_kernels)
ATTN_COMPILED_ONCE(choose_kernels, false)

/// The functions that choose a call's kernels, for the types of its tensors. Calls refer to them, so that kernels
/// for unused types stay out of the program.
template <class T>
struct KernelChoice {
  ChosenKernels<T> (*choose)(const Options&, Bf16Products);
  const KernelFamily<T>& (*sigmoids)(VectorSet);
};
/// Without kOthers, all tensors of the call must be stored as T.
template <class T, bool kOthers = true>
inline constexpr KernelChoice<T> kKernelChoice = {choose_kernels<T, kOthers>, sigmoid_family<T, kOthers>};

}  // namespace attn::detail::inline ATTN_BUILT_FOR
