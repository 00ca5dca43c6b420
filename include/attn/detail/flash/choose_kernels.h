// The kernels of a call, by what its tensors hold and what the machine has.
#pragma once

#include <algorithm>
#include <initializer_list>
#include <limits>

#include "attn/detail/base/linker_hint.h"
#include "attn/detail/kernels/bf16/amx_tile_kernels.h"
#include "attn/detail/kernels/bf16/vector_kernels.h"
#include "attn/detail/kernels/sigmoid_kernels.h"
#include "attn/detail/tensor/problem.h"
#include "attn/explanation.h"
#include "attn/options.h"

namespace attn::detail {
inline namespace ATTN_BUILT_FOR {

template <class T>
struct ChosenKernels {
  const KernelFamily<T>& family;
  const KernelFamily<T>& full_precision;  ///< computes in T, whatever `family` does; its kernels serve single queries
  VectorSet vectors;                      ///< of `full_precision`, and of the mods
  Amx amx;
  const DotKernels<T>* dots = nullptr;  ///< for single queries over keys and values of 8 bits; null: as others

  bool on_matrix_unit() const { return amx == Amx::used; }
  bool in_bf16() const { return family.format.dtype == DType::bf16; }  ///< by the matrix unit or by vectors

  /// Up to so many queries are worked on one by one: a tile computes whole vectors of queries, however few there are,
  /// while single queries are multiplied four at a time. With vectors of 16 that is worth it up to 8 queries, unless
  /// rows are so short that sums over lanes weigh as much as products, or keys so few that the other costs of a query
  /// weigh as much: 8 queries of 1000 and of 256 keys took 0.77 and 0.82 of a tile's time at head_dim 64, 5 queries
  /// 0.49 of it. The matrix unit is worth it from two queries on.
  Index few_queries(const Problem& problem) const {
    constexpr Index kFew = 4, kLeastKeys = 4 * kKeyTile, kLeastVectors = 4;
    if (on_matrix_unit()) return 1;
    const Index lanes = full_precision.by_vectors[0].queries;
    return problem.kv_len >= kLeastKeys && problem.head_dim >= kLeastVectors * lanes ? std::max(kFew, lanes / 2) : kFew;
  }
};

// There are no kernels for the arithmetic of AVX512-FP16, on purpose: it does twice as many multiplications a cycle as
// float's, but sums up in binary16, which errs by several times what the naive path does and overflows at 65504.
// Binary16 is widened to float.

/// Whether products of such tensors may be formed of numbers rounded to bf16. They may not be of integers, which have
/// scales that the kernels for bf16 do not know.
inline bool fits_bf16(Compute compute, std::initializer_list<DType> dtypes) {
  return std::all_of(dtypes.begin(), dtypes.end(),
                     [&](DType s) { return s == DType::bf16 || (compute == Compute::bf16 && s != DType::i8); });
}

/// Whether scores may be scaled after the product, as the kernels for bf16 do. The scale must be large enough that
/// a product which overflows to -inf would be below -2^64 when scaled, where its weight is 0 anyway, and small enough
/// that scale * log2(e) is finite. Where only a part of a sum overflows, or a mod would shrink the score, the score
/// counts as infinite.
inline bool scales_after_products(long double scale) {
  return scale >= 0x1p-64L && scale <= std::numeric_limits<float>::max() / 2;
}

/// Whether kernels for bf16 may compute a call on such tensors.
inline bool rounds_to_bf16(const Problem& problem, const Options& options, std::initializer_list<DType> dtypes) {
  return fits_bf16(options.compute, dtypes) && scales_after_products(problem.scale);
}

/// By what products may be formed in bf16. Vectors take numbers that are bf16 already: a backward pass, for which they
/// have no kernels, would not know how a forward pass had rounded others.
enum class Bf16Products : unsigned char { none, by_matrix_unit, by_any };

inline Bf16Products bf16_products(Compute compute, std::initializer_list<DType> dtypes) {
  return fits_bf16(Compute::native, dtypes) ? Bf16Products::by_any
         : fits_bf16(compute, dtypes)       ? Bf16Products::by_matrix_unit
                                            : Bf16Products::none;
}

/// The same for a call on such tensors. Vectors multiply whole 32s of keys and leave it to others if more than a third
/// of them would be missing. On Zen 5 16 queries of 16 keys took 1.3 times as long as in float, 33 of 33 keys 1.15
/// times; 24 of 24 keys took 0.85 of the time, 48 of 48 keys 0.9, and 9 to 48 queries of 1000 keys 0.5 to 0.75.
inline Bf16Products bf16_products(const Problem& problem, const Options& options, std::initializer_list<DType> dtypes) {
  if (!scales_after_products(problem.scale)) return Bf16Products::none;
  const Bf16Products products = bf16_products(options.compute, dtypes);
  const bool fill_vectors = 3 * problem.kv_len >= 2 * padded<Index>(problem.kv_len, 32);
  return products == Bf16Products::by_any && !fill_vectors ? Bf16Products::by_matrix_unit : products;
}

#if ATTN_AMX
#if defined(ATTN_SOFTWARE_TILES)
const KernelFamily<float>& software_tiles_family();  ///< of tests, as software_tiles() is
#endif

/// The kernels of the matrix unit, or of its stand-in in tests.
template <bool kOthers>
const KernelFamily<float>& matrix_unit_family() {
#if defined(ATTN_SOFTWARE_TILES)
  if (software_tiles()) return software_tiles_family();
#endif
  return kAmxFamily<kOthers>;
}
#endif

/// See choose_kernels(). Without kOthers all numbers must lie in memory as they are computed with.
template <class T, bool kOthers>
ChosenKernels<T> chosen_kernels(const Options& options, Bf16Products products) {
  [[maybe_unused]] const auto [vectors, dots, matrix] = parts_of(isa_of(options));
  const KernelFamily<T>& full_precision = family_of<T, kOthers>(vectors);
  if (products == Bf16Products::none) return {full_precision, full_precision, vectors, Amx::not_for_these};
  Amx amx = Amx::not_there;
#if ATTN_BF16
  if constexpr (std::is_same_v<T, float>) {
#if ATTN_AMX
    if (matrix == MatrixUnit::amx) {
      if (amx_permitted()) return {matrix_unit_family<kOthers>(), full_precision, vectors, Amx::used};
      amx = Amx::refused;
    }
#endif
    // The processor is asked once more, because software in place of the matrix unit has no dot products.
    if constexpr (kOthers)  // floats alone are never rounded for vectors
      if (products == Bf16Products::by_any && dots == DotProducts::vnni_bf16 && cpu_has_bf16())
        return {kBf16VectorFamily<true>, full_precision, vectors, amx};
  }
#endif
  return {full_precision, full_precision, vectors, amx};
}

/// Chooses the kernels of a call; those of one whose numbers all lie in memory as they are computed with.
template <class T, class = include_attn_instantiate_h_in_one_unit>
ChosenKernels<T> choose_kernels(const Options& options, Bf16Products products) {
  return chosen_kernels<T, true>(options, products);
}
template <class T, class = include_attn_instantiate_h_in_one_unit>
ChosenKernels<T> choose_native_kernels(const Options& options, Bf16Products products) {
  return chosen_kernels<T, false>(options, products);
}
template <class T, bool kNative>
ChosenKernels<T> choose_kernels_for(const Options& options, Bf16Products products) {
  if constexpr (kNative)
    return choose_native_kernels<T>(options, products);
  else
    return choose_kernels<T>(options, products);
}

/// The kernels that a call may use, by the types of its tensors. Calls have a pointer to it, so that kernels for other
/// types stay out of the program.
template <class T>
struct KernelChoice {
  ChosenKernels<T> (*choose)(const Options&, Bf16Products);
  const KernelFamily<T>& (*sigmoids)(VectorSet);
};
template <class T>
inline constexpr KernelChoice<T> kKernels = {choose_kernels<T>, sigmoid_family<T>};
template <class T>
inline constexpr KernelChoice<T> kNativeKernels = {choose_native_kernels<T>, native_sigmoid_family<T>};

template <class T, bool kNative>
constexpr const KernelChoice<T>& kernels_among() {
  if constexpr (kNative)
    return kNativeKernels<T>;
  else
    return kKernels<T>;
}

}  // namespace ATTN_BUILT_FOR
}  // namespace attn::detail
