// Attention and its directional derivative tile by tile: forward-mode differentiation of the online softmax.
#pragma once

#include "attn/core/base/compiled_once.h"
#include "attn/core/kernels/sigmoid_kernels.h"
#include "attn/jvp/jvp_loop.h"

namespace attn::detail::inline ATTN_BUILT_FOR {

template <class T, class = include_attn_instantiate_h_in_one_unit>
void jvp(const JvpCall<T>& call, const Options& options) {
  const auto chosen = [&]() -> ChosenKernels<T> {
    if (!call.tensors.problem.sigmoid_bias) return choose_kernels<T>(options, Bf16Products::none);
    const VectorSet vectors = vectors_of(isa_of(options));
    return {sigmoid_family<T>(vectors), sigmoid_family<T>(vectors), vectors, Amx::unsupported};
  };
  const ChosenKernels<T> kernels = chosen();
  const JvpLoop<T> loop(call, kernels);
  const Workers workers({loop.flops()}, options.executor);
  const QueryBlocks<T> blocks = loop.blocks(workers.count());
  if (blocks.count() == 0) return;
  const Workspace workspace(loop.bytes(blocks), workers.count());
  workers.run(blocks.count(), [&](Index block, int worker) { loop.run(blocks, block, workspace.of(worker)); });
}
ATTN_COMPILED_ONCE(jvp)

}  // namespace attn::detail::inline ATTN_BUILT_FOR
