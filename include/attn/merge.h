// merge(): combines attention over some keys and attention over other keys into attention over all of them.
#pragma once

#include <type_traits>

#include "attn/core/flash/before_rounding.h"
#include "attn/core/simd/softmax_state.h"

namespace attn {
namespace detail::inline ATTN_BUILT_FOR {

/// merge_into() on checked arguments.
template <class T, class Out, class PartOut, class PartLse>
void merge_rows(const TensorView<Out, 4>& out, const TensorView<T, 3>& lse, const KeptLseRests<T>& rests,
                const TensorView<PartOut, 4>& part_out, const TensorView<PartLse, 3>& part_lse,
                const LseRests<T>& part_rests) {
  using State = SoftmaxState<T>;
  for (Index batch = 0; batch < out.dim(0); ++batch)
    for (Index head = 0; head < out.dim(1); ++head)
      for (Index i = 0; i < out.dim(2); ++i) {
        T& to = lse(batch, head, i);
        const T& from = part_lse(batch, head, i);
        const auto a = State::of(to, rests.of(&to)), b = State::of(from, part_rests.of(&from)), all = merged(a, b);
        if (b.sum == T(0)) continue;
        const bool empty = a.sum == T(0);  // its row of out may hold garbage, and is not read
        const T weight_a = a.sum * a.factor_in(all) / all.sum, weight_b = b.sum * b.factor_in(all) / all.sum;
        Out* x = &out(batch, head, i, 0);
        const PartOut* y = &part_out(batch, head, i, 0);
        for (Index c = 0; c < out.dim(3); ++c, x += out.stride(3), y += part_out.stride(3)) {
          const T part = weight_b * static_cast<T>(*y);
          *x = static_cast<Out>(empty ? part : weight_a * static_cast<T>(*x) + part);
        }
        // Merging with an empty part keeps the bits of the other part.
        to = empty ? from : all.lse();
        if (rests.wants(to)) rests.set(&to, empty ? part_rests.of(&from) : all.lse_rest());
      }
}

}  // namespace detail::inline ATTN_BUILT_FOR
inline namespace ATTN_BUILT_FOR {

/// Merges a part into a result in place. `out` and `lse` hold attention over some keys, and `part_out` and `part_lse`
/// hold attention of the same queries over other keys. After the call, `out` and `lse` hold attention over all of these
/// keys:
///
///     lse = log(e^lse_a + e^lse_b),  out = e^(lse_a - lse) out_a + e^(lse_b - lse) out_b
///
/// (Dao et al. 2022, section 3.1; Juravsky et al. 2024, section 3.1.) A part without keys, whose lse is -inf, changes
/// nothing. Parts may be merged in any order and grouping; the results differ only by rounding.
///
/// Each merge rounds a 16-bit out once more, unless `out` is that of a Result, which keeps the unrounded floats. To
/// merge many parts, let attention_into() write float outputs.
///
/// If the scores of a row share a large offset, the rounded lse alone loses the digits in which the parts differ. A
/// Tensor and the lse of a Result also keep the rounding error; views and plain Eigen vectors do not.
///
/// out: (q_len, v_dim) or (batch, heads, q_len, v_dim), lse: (q_len) or (batch, heads, q_len), of the types
/// attention_into() takes. Cost: out is read and written once, part_out read once.
/// @throws std::invalid_argument if shapes differ, before anything is written.
template <class Out, class Lse, class PartOut, class PartLse>
void merge_into(Out&& out, Lse&& lse, const PartOut& part_out, const PartLse& part_lse) {
  const auto a = detail::as_rank4(view(out));
  const auto b = detail::as_rank4(view(part_out));
  const auto lse_a = detail::lse_rank3(lse);
  const auto lse_b = detail::lse_rank3(part_lse);
  using Scalar = std::remove_pointer_t<decltype(a.data())>;
  using T = detail::computed_t<Scalar>;
  static_assert(std::is_same_v<T, detail::computed_t<std::remove_const_t<std::remove_pointer_t<decltype(b.data())>>>>,
                "attn::merge: both parts must have the same scalar type (float and 16-bit floats may be mixed)");
  static_assert(std::is_same_v<T, std::remove_pointer_t<decltype(lse_a.data())>> &&
                    std::is_same_v<T, std::remove_const_t<std::remove_pointer_t<decltype(lse_b.data())>>>,
                "attn::merge: lse of both parts must have the scalar type of out (float for 16-bit outputs)");
  const Shape<3> rows{a.dim(0), a.dim(1), a.dim(2)};
  detail::require(b.shape() == a.shape(), "merge: out has shape ", a.shape(), ", but the other part's out has shape ",
                  b.shape());
  detail::require(lse_a.shape() == rows, "merge: lse has shape ", lse_a.shape(), ", but its out has shape ", a.shape());
  detail::require(lse_b.shape() == rows, "merge: the other part's lse has shape ", lse_b.shape(),
                  ", but its out has shape ", b.shape());

  const auto rests = detail::kept_rests_beside<T>(lse);
  const auto merge_with = [&](const auto& to, const auto& part) {
    detail::merge_rows<T>(to, lse_a, rests, part, lse_b, detail::rests_beside<T>(part_lse));
  };
  const auto merge_part = [&](const auto& to) {
    if constexpr (detail::is_rounded<const std::remove_cvref_t<PartOut>>)
      if (const auto exact = detail::before_rounding<T>(part_out); exact.dtype() == detail::DType::native)
        return merge_with(
            to, TensorView<const T, 4>(reinterpret_cast<const T*>(exact.data()), exact.shape(), exact.strides()));
    merge_with(to, b);
  };
  if constexpr (detail::is_rounded<Out>)
    if (detail::before_rounding<T>(out).dtype() == detail::DType::native) {
      T* const exact = detail::DigitsOf::get(out)->data();
      merge_part(TensorView<T, 4>(exact, a.shape(), a.strides()));
      return detail::round_numbers(exact, out.size(), out.data(), {.executor = serial()});
    }
  merge_part(a);
}

/// Returns attention over the keys of all parts, given attention over each; see merge_into(). `a`, `b` and `more` are
/// results of attention() for the same queries.
///
///     auto all = attn::merge(attn::attention(q, prefix_k, prefix_v),
///                            attn::attention(q, suffix_k, suffix_v, attn::causal()));
template <class Out, class Lse, class... More>
Result<Out, Lse> merge(Result<Out, Lse> a, const Result<Out, Lse>& b, const More&... more) {
  merge_into(a.out, a.lse, b.out, b.lse);
  (merge_into(a.out, a.lse, more.out, more.lse), ...);
  return a;
}

}  // namespace ATTN_BUILT_FOR
}  // namespace attn
