// A checked call: its tensors as rank-4 views, its sizes, and its mods bound to them. Also distinguishes the mods from
// the options in the arguments of an entry point.
#pragma once

#include <type_traits>
#include <utility>

#include "attn/core/base/check.h"
#include "attn/core/flash/before_rounding.h"
#include "attn/core/flash/flash.h"
#include "attn/core/naive/naive.h"
#include "attn/core/tensor/arguments.h"
#include "attn/core/tensor/overlap.h"
#include "attn/mod.h"
#include "attn/options.h"

namespace attn::detail::inline ATTN_BUILT_FOR {

/// Whether no option is set.
inline bool is_default(const Options& options) {
  // Names all members, so that this fails to compile when one is added.
  const auto& [names_only, mask, attn_mask, causal, is_causal, dropout_p, enable_gqa, threads, scale, q_offset,
               q_offsets, kv_offset, interleaved_heads, accumulate, executor, workspace, compute, isa, normaliser,
               row_invariant] = options;
  return !scale && !q_offset && q_offsets.values.empty() && !kv_offset && !interleaved_heads && !accumulate &&
         executor.is_default() && workspace.empty() && compute == Compute::native && !isa &&
         !normaliser.sigmoid_bias() && !row_invariant;
}

/// The mods and the options among the last two arguments of every call, `const M& mods = {}, const Options& options =
/// {}`. Braces have no type, so M is its default, Options, in `f(q, k, v, {.scale = 0.5})` and in `f(q, k, v, {},
/// {.scale = 0.5})`.
template <class M>
struct ModsAndOptions {
  ModsAndOptions(const M& given_mods, const Options& given_options) : mods(given_mods), options(given_options) {}

  const M& mods;
  const Options& options;
};

/// Without mods, the options are the first of the two arguments, or the second after `{}`.
template <>
struct ModsAndOptions<Options> {
  /// @throws std::invalid_argument if both are set: a run-time error, because the types do not show which is set.
  ModsAndOptions(const Options& first, const Options& second) : options(one_of(first, second)) {}

  static constexpr Mods<> mods = {};
  const Options& options;

 private:
  static const Options& one_of(const Options& first, const Options& second) {
    if (is_default(second)) return first;
    require(is_default(first),
            "options are given twice, in place of mods and after them; give them once, as in {.scale = 0.5, .q_offset "
            "= 0}");
    return second;
  }
};

/// The outputs of a call. An output is null if not requested.
template <class T>
struct ResultViews {
  DTypeView<T> out;
  TensorView<T, 3> lse;
  KeptLseRests<T> lse_rests = {};
};

/// Explains, in a static_assert, why a call that computes in T cannot write to an Out.
template <class T, class Out>
constexpr auto check_output_type() {
  using Number = element_t<Out>;
  constexpr int kRank = Traits<std::remove_cvref_t<Out>>::kRank;
  static_assert(
      !std::is_const_v<Number>,
      "attn: the output must be writable, but this one is const; pass the output first: attention_into(out, q, k, v)");
  static_assert(std::is_same_v<computed_t<std::remove_const_t<Number>>, T>,
                "attn: the output must have the scalar type of the query (float and 16-bit floats may be mixed)");
  static_assert(kRank == 2 || kRank == 4,
                "attn: the output must be a matrix (len, dim) or a rank-4 tensor (batch, heads, len, dim)");
  return !std::is_const_v<Number> && (kRank == 2 || kRank == 4);
}

/// Explains, in a static_assert, why the caller would not see results written to these outputs, whose types are deduced
/// from To&&.
template <class... To>
constexpr bool check_destinations() {
  constexpr bool kHasMemory = (has_memory<To> && ...), kStays = !(is_temporary<To> || ...);
  static_assert(
      kHasMemory,
      "attn: the output is an Eigen expression that is not stored in memory; pass a matrix, a map or a block of one");
  static_assert(kStays, "attn: the output is a temporary, so the result would be lost; store it in a variable");
  return kHasMemory && kStays;
}

/// The caller's output as a writable rank-4 view.
template <class T, class Out>
DTypeView<T> output_view(Out&& out, const Problem& problem) {
  static_assert(check_tensor<std::remove_cvref_t<Out>>());
  if constexpr (check_output_type<T, Out>()) {
    DTypeView<T> v = as_rank4(view(out));
    check_output(problem, v);
    return v;
  }
}

template <class T, class Lse>
TensorView<T, 3> lse_view(Lse&& lse, const Problem& problem) {
  auto v = lse_rank3(lse);
  static_assert(std::is_same_v<std::remove_pointer_t<decltype(v.data())>, T> || !has_rank_of_lse<Lse>,
                "attn: lse must be writable and have the scalar type of the query (float for 16-bit queries); pass it "
                "after out: attention_into(out, lse, q, k, v)");
  if (problem.sigmoid_bias && v.size() == 0) return TensorView<T, 3>();
  check_has_lse(problem, "lse");
  check_lse(problem, v);
  return v;
}

/// Checked views of `out` and `lse`, of `out` alone, or of neither, for functions that compute no result.
template <class T, class Out, class Lse>
ResultViews<T> result_views(const Problem& problem, Out&& out, Lse&& lse) {
  return {output_view<T>(out, problem), lse_view<T>(lse, problem), kept_rests_beside<T>(lse)};
}
template <class T, class Out>
ResultViews<T> result_views(const Problem& problem, Out&& out) {
  return {output_view<T>(out, problem), {}};
}
template <class T>
ResultViews<T> result_views(const Problem&) {
  return {};
}

/// Calls run(views) for a result that the library allocates, whose unrounded output is kept.
template <class T, class Result, class Run>
void with_result_views(const Problem& problem, Result& result, const Options& options, const Run& run) {
  ResultViews<T> to = result_views<T>(problem, result.out, result.lse);
  with_unrounded_output<T>(result.out, options, [&]<class Number>(Number* numbers) {
    to.out = TensorView<Number, 4>(numbers, to.out.shape(), to.out.strides());
    run(to);
  });
}

/// The arguments of one call. Every entry point first makes a CheckedCall, which checks types and sizes. It refers to
/// the caller's tensors, mods and options, and its members refer to each other, so it is never moved.
/// @throws std::invalid_argument if sizes disagree, or a mod does not fit them.
template <class Q, class K, class V, class M>
class CheckedCall : public CallInputs<Q, K, V> {
  using Inputs = CallInputs<Q, K, V>;
  using Inputs::kIsCall;

 public:
  using Inputs::q, Inputs::k, Inputs::v;
  using typename Inputs::T;

  /// `has_rope`: whether a layer's rope has rotated query and key.
  CheckedCall(const Q& query, const K& key, const V& value, const M& given_mods, const Options& options,
              Outputs outputs = Outputs::own, bool has_rope = false)
      : Inputs(query, key, value),
        problem(with_rope(make_problem<T>(q, k, v, options, outputs, has_weight_mods<M>), has_rope)),
        mods(bind_call(given_mods, problem)) {}

  const Problem problem;
  const Bound<M> mods;

  /// All tensors, including those of the result; see result_views().
  template <class... To>
  CallTensors<T> tensors(To&&... result) const {
    if constexpr (kIsCall)  // otherwise a static_assert has failed already
      return tensors_with<To...>(result_views<T>(problem, result...));
  }
  /// The inputs of a call that also uses tensors of these types.
  template <class... Others>
  CallTensors<T> inputs_beside() const {
    return tensors_with<Others...>(result_views<T>(problem));
  }

  /// tensors() with the result in the caller's memory, which must not overlap an input or belong to a temporary.
  template <class... To>
  CallTensors<T> caller_tensors(To&&... result) const {
    if constexpr (check_destinations<To...>() && kIsCall) {
      const ResultViews<T> to = result_views<T>(problem, result...);
      check_apart_from_inputs(to.out, "out");
      if (to.lse.data()) {
        check_apart_from_inputs(to.lse, "lse");
        check_apart(to.lse, "lse", to.out, "out");
      }
      return tensors_with<To...>(to);
    }
  }

  template <class Out>
  void check_apart_from_inputs(const Out& out, const char* name) const {
    const ByteRange bytes = bytes_of(out);
    check_apart(out, bytes, name, q, "query");
    check_apart(out, bytes, name, k, "key");
    check_apart(out, bytes, name, v, "value");
  }

  /// Runs the flash path into a result that the library allocates.
  template <class Result>
  void flash_into(Result& result, const Options& options) const {
    if constexpr (kIsCall)
      with_result_views<T>(problem, result, options, [&](const ResultViews<T>& to) {
        flash(tensors_with<decltype(result.out), decltype(result.lse)>(to), mods, options);
      });
  }

  /// Computes the call by its definition. `weights` is null if not requested.
  template <class... To>
  void naive(const Executor& executor, const DTypeView<T>& weights, To&&... result) const {
    static_assert(check_destinations<To...>());
    const ResultViews<T> to = result_views<T>(problem, result...);
    check_apart_from_inputs(to.out, "out");
    detail::naive<T>(to.out, to.lse, to.lse_rests, weights, q, k, v, naive_mods<T>(mods, problem), problem, executor);
  }

 private:
  static Problem with_rope(Problem p, bool has_rope) {
    if (has_rope) p.rope_positions = RowPositions();
    return p;
  }

  /// Relies on copy elision: a copy is measurable in small calls.
  template <class... To>
  CallTensors<T> tensors_with(const ResultViews<T>& to) const {
    constexpr bool kNative = hold_computed_numbers<Q, K, V, std::remove_cvref_t<To>...>();
    return {.out = to.out,
            .lse = to.lse,
            .q = q,
            .k = k,
            .v = v,
            .problem = problem,
            .kernels = kKernelChoice<T, !kNative>,
            .lse_rests = to.lse_rests};
  }
};

}  // namespace attn::detail::inline ATTN_BUILT_FOR
