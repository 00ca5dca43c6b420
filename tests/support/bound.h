// Mods made for a call of given sizes, so that tests can evaluate their predicates, scores and hints without a call.
#pragma once

#include "attn/mod.h"

namespace attn::test {

/// Returns the mask or score mod that `mod` makes for a call of these sizes, or `mod` itself if it does not depend on
/// them.
template <class M>
auto bound(const M& mod, const Problem& problem) {
  if constexpr (requires { mod.make(problem); })
    return mod.make(problem);
  else
    return mod;
}

}  // namespace attn::test
