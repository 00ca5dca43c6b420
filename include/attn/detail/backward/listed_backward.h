// The backward pass of a call whose queries list their keys.
#pragma once

#include "attn/detail/backward/backward_groups.h"
#include "attn/detail/backward/listed_loop.h"
#include "attn/detail/base/linker_hint.h"

namespace attn::detail {
inline namespace ATTN_BUILT_FOR {

/// Bytes of memory that a backward pass over listed keys needs.
template <class T, class = include_attn_instantiate_h_in_one_unit>
Index listed_backward_bytes(const Problem& problem, const LearnedSizes& learned, const ListGathering& gathering,
                            const KernelChoice<T>& kernels, const Options& options) {
  const ListedPlan<T> plan(problem, learned, gathering, kernels.choose(options, Bf16Products::none));
  return backward_bytes_of(plan, Workers({plan.flops()}, options.executor).count());
}

/// Runs a backward pass over listed keys: first the queries, then the keys. See run_groups().
template <class T, class = include_attn_instantiate_h_in_one_unit>
void listed_backward(const BackwardCall<T>& call, const ListedCall<T>& listed, const Options& options) {
  const ListedPlan<T> plan(call.tensors.problem, LearnedSizes::of(call.learned), listed.gathering(),
                           call.tensors.kernels.choose(options, Bf16Products::none));
  const ListedLoop<T> loop(call, listed, plan);
  const auto run_keys = [&](const auto& for_all) {
    for_all(plan.key_tasks(), [&](std::byte* group_memory, Index group, Index task, std::byte* memory) {
      loop.run_keys(group_memory, group, task, memory);
    });
  };
  run_groups(
      call, plan, loop, Workers({plan.flops()}, options.executor), options, [](const auto&) {}, run_keys);
}

}  // namespace ATTN_BUILT_FOR
}  // namespace attn::detail
