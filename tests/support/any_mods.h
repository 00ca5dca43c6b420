// Calls of both paths with type-erased mods: their templates are compiled once per scalar, not in every test.
#pragma once

#include <functional>

#include "attn/attn.h"
#include "compare.h"

namespace attn::test {

template <class T>
class AnyMods {
  using In = attn::TensorView<const T, 4>;
  using Out = attn::TensorView<T, 4>;
  using Lse = attn::TensorView<Wide<T>, 3>;
  using NaiveResult = decltype(attn::naive_attention(In(), In(), In()));

 public:
  template <class M>
  explicit AnyMods(const M& mods)
      : flash([mods](const Out& out, const Lse& lse, const In& q, const In& k, const In& v,
                     const attn::Options& options) { attn::attention_into(out, lse, q, k, v, mods, options); }),
        naive([mods](const In& q, const In& k, const In& v, const attn::Options& options) {
          return attn::naive_attention(q, k, v, mods, options);
        }),
        workspace_bytes([mods](const In& q, const In& k, const In& v, const attn::Options& options) {
          return attn::workspace_bytes(q, k, v, mods, options);
        }) {}

  std::function<void(const Out&, const Lse&, const In&, const In&, const In&, const attn::Options&)> flash;
  std::function<NaiveResult(const In&, const In&, const In&, const attn::Options&)> naive;
  std::function<std::size_t(const In&, const In&, const In&, const attn::Options&)> workspace_bytes;
};

}  // namespace attn::test
