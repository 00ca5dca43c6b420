// The kernel family for bf16: the parts shared by its vector and matrix-unit versions.
#pragma once

#include "attn/core/kernels/bf16/packing.h"
#include "attn/core/kernels/bf16/softmax.h"
#include "attn/core/kernels/kernel_table.h"

#if ATTN_BF16
namespace attn::detail::inline ATTN_BUILT_FOR {

/// Returns the family whose tiles are multiplied by Products::score and Products::value. All tiles have the same width,
/// even if they hold fewer queries. Kernels for single queries, storing and selection come from `family`, which must be
/// AVX-512's for the same kOthers; see kernel_family().
template <class Products, class Instructions, bool kOthers>
constexpr KernelFamily<float> bf16_family(KernelFamily<float> family) {
  family.format = {.dtype = DType::bf16,
                   .columns = Bf16Instructions::kColumns,
                   .out = Bf16Instructions::kColumns,
                   .keys = Bf16Instructions::kColumns,
                   .scales_queries = false,
                   .arranges_values = true,
                   .defers_value_product = true,
                   .fetches = false};
  family.widest = 1;
  family.by_vectors[0] = {Bf16Softmax::kQueries, Products::score, Bf16Softmax::softmax<Instructions>, Products::value};
  family.pack_rows = Bf16Packing::pack_rows<Instructions, kOthers>;
  family.find_max = [](const TileMemory<float>&, Index, Index) {};  // softmax() does not use it
  family.scale_scores = Bf16Softmax::scale_scores;
  family.arrange_values = Bf16Packing::transpose_values;
  return family;
}

}  // namespace attn::detail::inline ATTN_BUILT_FOR
#endif
