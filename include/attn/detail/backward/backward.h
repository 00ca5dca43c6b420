// The backward pass of attention, tile by tile (Dao et al. 2022, algorithm 4; Dao 2023, algorithm 2).
#pragma once

#include "attn/detail/backward/backward_groups.h"
#include "attn/detail/backward/backward_loop.h"
#include "attn/detail/base/linker_hint.h"
#include "attn/isa.h"
#include "attn/options.h"

namespace attn::detail {
inline namespace ATTN_BUILT_FOR {

/// The maximum number of bytes of memory that a call may need. `may_round`: whether query, key and value suit the
/// matrix unit; the call may run without that unit even then.
template <class T, class = include_attn_instantiate_h_in_one_unit>
Index backward_bytes(const Problem& problem, const LearnedSizes& learned, const KernelChoice<T>& kernels,
                     const Options& options, bool may_round) {
  Index most = 0;
  for (const bool rounds : {false, may_round}) {
    const Bf16Products products = rounds ? Bf16Products::by_matrix_unit : Bf16Products::none;
    const BackwardPlan<T> plan(problem, learned, kernels.choose(options, products));
    most = std::max(most, backward_bytes_of(plan, Workers({plan.flops()}, options.executor).count()));
  }
  return most;
}

/// Runs a backward pass over tiles: prepares queries, visits all pairs, and then sums the tasks' gradients, always in
/// the same order. See run_groups().
template <class T, class = include_attn_instantiate_h_in_one_unit>
void backward(const BackwardCall<T>& call, const Options& options) {
  const BackwardPlan<T> plan(call.tensors.problem, LearnedSizes::of(call.learned, call.tensors.score),
                             backward_kernels_for(call, options));
  const BackwardLoop<T> loop(call, plan);
  const auto prepare = [&](const auto& for_all) {
    for_all(plan.tiles_of_group(), [&](std::byte* group_memory, Index group, Index tile, std::byte* memory) {
      loop.prepare(group_memory, group, tile, memory);
    });
  };
  const auto store = [&](const auto& for_all) {
    for_all(plan.tiles_of_group(), [&](std::byte* group_memory, Index, Index tile, std::byte* memory) {
      loop.store_queries(group_memory, tile, memory);
    });
    if (plan.query_parts() > 1)
      for_all(plan.key_tiles(), [&](std::byte* group_memory, Index group, Index tile, std::byte*) {
        loop.store_keys(group_memory, group, tile);
      });
  };
  run_groups(call, plan, loop, Workers({plan.flops()}, options.executor), options, prepare, store);
}

}  // namespace ATTN_BUILT_FOR
}  // namespace attn::detail
