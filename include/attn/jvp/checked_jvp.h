// A checked call in forward mode: the counterpart of CheckedCall.
#pragma once

#include "attn/core/flash/checked_call.h"
#include "attn/jvp/jvp_loop.h"
#include "attn/jvp/naive_jvp.h"
#include "attn/result.h"

namespace attn::detail::inline ATTN_BUILT_FOR {

/// The direction of a tensor, which must have its shape.
template <class T, class X>
DTypeView<const T> checked_direction(const X& x, const DTypeView<const T>& of, const char* name, const char* of_name) {
  static_assert(std::is_same_v<computed_t<typename Traits<X>::Scalar>, T>,
                "attn: directions must have the scalar type of the query (float and 16-bit floats may be mixed)");
  const DTypeView<const T> v = as_rank4(view(x));
  require(v.shape() == of.shape(), name, " has shape ", v.shape(), ", expected ", of.shape(),
          " as (batch, heads, len, dim), the shape of ", of_name);
  return v;
}

template <class Q, class K, class V, class DQ, class DK, class DV, class M>
class CheckedJvp {
  static_assert(!has_weight_mods<M>,
                "attn: attention_jvp() does not support weight_mod(); use attn::attention_backward()");
  const CheckedCall<Q, K, V, M> call_;
  const Held<DQ> q_held_;
  const Held<DK> k_held_;
  const Held<DV> v_held_;

 public:
  using T = typename CheckedCall<Q, K, V, M>::T;

  CheckedJvp(const Q& query, const K& key, const V& value, const DQ& direction_q, const DK& direction_k,
             const DV& direction_v, const M& mods, const Options& options)
      : call_(query, key, value, mods, options),
        q_held_(evaluated(direction_q)),
        k_held_(evaluated(direction_k)),
        v_held_(evaluated(direction_v)),
        directions_{checked_direction<T>(q_held_, call_.q, "direction_query", "query"),
                    checked_direction<T>(k_held_, call_.k, "direction_key", "key"),
                    checked_direction<T>(v_held_, call_.v, "direction_value", "value")} {}
  CheckedJvp(const CheckedJvp&) = delete;

  auto result() const {
    auto out = Answer<Q>::out(call_.problem);
    return JvpResult<decltype(out)>{std::move(out), Answer<Q>::out(call_.problem)};
  }

  template <class Out>
  void run(Out& out, Out& tangent, const Options& options) const {
    const TileModsIfAny<T, Bound<M>> tile_mods(call_.mods);
    const ModSlopesIfAny<T, Bound<M>> slopes(call_.mods);
    jvp<T>({call_.tensors(out), output_view<T>(tangent, call_.problem), directions_.q, directions_.k, directions_.v,
            tile_mods.get(), slopes.get()},
           options);
  }

  template <class Out>
  void naive(Out& out, Out& tangent, const Executor& executor) const {
    const Problem& problem = call_.problem;
    naive_jvp<T>(output_view<T>(out, problem), output_view<T>(tangent, problem), {call_.q, call_.k, call_.v},
                 directions_, naive_mods<T>(call_.mods, problem), naive_slopes<T>(call_.mods, problem), problem,
                 executor);
  }

 private:
  JvpInputs<DTypeView<const T>> directions_;
};

}  // namespace attn::detail::inline ATTN_BUILT_FOR
