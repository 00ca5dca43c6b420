// A checked backward call: the counterpart of CheckedCall.
#pragma once

#include "attn/core/backward/backward.h"
#include "attn/core/flash/checked_call.h"
#include "attn/core/naive/naive_backward.h"
#include "attn/result.h"

namespace attn::detail::inline ATTN_BUILT_FOR {

/// Explains, in a static_assert, what a backward pass needs from the forward one.
template <class R>
constexpr auto check_result() {
  static_assert(WholeResult<R>,
                "attn: pass the whole result of attention(), with out and lse, between the value and the mods: "
                "attention_backward(grad_out, q, k, v, result, mods, options)");
  return WholeResult<R>;
}

/// Whether the arguments after the value begin with a result, or with its out and lse.
template <class... Given>
constexpr bool begins_with_result = false;
template <class R, class... Given>
constexpr bool begins_with_result<R, Given...> = WholeResult<R>;
template <class Out, class Lse, class... Given>
constexpr bool begins_with_result<Out, Lse, Given...> = WholeResult<Out> || (Viewable<Out> && Viewable<Lse>);

/// Allocates a tensor shaped like `x`, one of the call's arguments.
template <class X, class T>
auto gradient_like(const DTypeView<const T>& x) {
  using Scalar = typename Traits<X>::Scalar;
  if constexpr (EigenDense<X>)
    return Eigen::Matrix < Scalar, Eigen::Dynamic, Eigen::Dynamic,
           X::IsRowMajor ? Eigen::RowMajor : Eigen::ColMajor > (x.dim(2), x.dim(3));
  else if constexpr (Traits<X>::kRank == 2)
    return Tensor<Scalar, 2>::uninitialized({x.dim(2), x.dim(3)});
  else
    return Tensor<Scalar, 4>::uninitialized(x.shape());
}

/// An input that must have the shape `want`: grad_out or out.
template <class T, class X>
DTypeView<const T> checked_input(const X& x, const Shape<4>& want, const char* name) {
  static_assert(std::is_same_v<computed_t<typename Traits<X>::Scalar>, T>,
                "attn: grad_out and out must have the scalar type of the query (float and 16-bit floats may be mixed)");
  const DTypeView<const T> v = as_rank4(view(x));
  require(v.shape() == want, name, " has shape ", v.shape(), ", expected ", want, " as (batch, heads, q_len, v_dim)");
  return v;
}
template <class T, class Lse>
TensorView<const T, 3> checked_lse(const Lse& lse, const Problem& p, const char* name) {
  const auto v = lse_rank3(lse);
  static_assert(std::is_same_v<std::remove_cv_t<std::remove_pointer_t<decltype(v.data())>>, T>,
                "attn: lse must have the scalar type of the query (float for 16-bit queries)");
  if (p.sigmoid_bias && v.size() == 0) return {};
  check_has_lse(p, name);
  const Shape<3> want{p.batch, p.heads, p.q_len};
  require(v.shape() == want, name, " has shape ", v.shape(), ", expected ", want, " as (batch, heads, q_len)");
  return v;
}
/// The caller's memory for the gradient of a tensor.
template <class T, class Grad>
DTypeView<T> checked_gradient(Grad&& grad, const DTypeView<const T>& of, const char* name) {
  static_assert(check_tensor<std::remove_cvref_t<Grad>>());
  if constexpr (check_output_type<T, Grad>()) {
    const DTypeView<T> v = as_rank4(view(grad));
    check_written<4>(v, of.shape(), name, "(batch, heads, len, dim)");
    return v;
  }
}

/// The mods of a call as the loops of a backward pass see them. Each pointer is null if no mod needs it.
template <class T, class Mods>
class BackwardMods {
 public:
  BackwardMods(const Mods& mods, const Problem& problem) : tile_(mods), slopes_(mods), learned_(mods, problem) {}

  const TileMods<T>* tile() const { return tile_.get(); }
  const ModSlopes<T>* slopes() const { return slopes_.get(); }
  const LearnedMods<T>* learned() const { return learned_.get(); }

 private:
  TileModsIfAny<T, Mods> tile_;
  ModSlopesIfAny<T, Mods> slopes_;
  LearnedIfAny<T, Mods> learned_;
};

/// The caller's arguments, as the naive and the tiled backward pass need them.
template <class G, class Q, class K, class V, class M>
class BackwardInputs {
  static decltype(auto) grad_out_of(const G& g) {
    if constexpr (WholeResult<G>)
      return evaluated(g.out);
    else
      return evaluated(g);
  }
  const CheckedCall<Q, K, V, M> call_;
  const decltype(grad_out_of(std::declval<const G&>())) grad_out_held_;

 public:
  using T = typename CheckedCall<Q, K, V, M>::T;
  using GradOut = std::remove_cvref_t<decltype(grad_out_of(std::declval<const G&>()))>;

  BackwardInputs(const G& g, const Q& query, const K& key, const V& value, const M& mods, const Options& options,
                 Outputs outputs = Outputs::own)
      : call_(query, key, value, mods, options, outputs), grad_out_held_(grad_out_of(g)), call(call_) {
    const Problem& p = call.problem;
    grad_out = checked_input<T>(grad_out_held_, {p.batch, p.heads, p.q_len, p.v_dim}, "grad_out");
    if constexpr (WholeResult<G>) grad_lse = checked_lse<T>(g.lse, p, "grad_lse");
  }
  BackwardInputs(const BackwardInputs&) = delete;

  const CheckedCall<Q, K, V, M>& call;
  DTypeView<const T> grad_out;
  TensorView<const T, 3> grad_lse;

  auto gradients() const {
    auto q = gradient_like<Q>(call.q);
    auto k = gradient_like<K>(call.k);
    auto v = gradient_like<V>(call.v);
    return Gradients<decltype(q), decltype(k), decltype(v)>{std::move(q), std::move(k), std::move(v)};
  }
};

template <class G, class Q, class K, class V, class Out, class Lse, class M>
class CheckedBackward {
  const BackwardInputs<G, Q, K, V, M> in_;
  const Held<Out> out_held_;

 public:
  using T = typename BackwardInputs<G, Q, K, V, M>::T;
  using GradOut = typename BackwardInputs<G, Q, K, V, M>::GradOut;

  CheckedBackward(const G& grad_out, const Q& query, const K& key, const V& value, const Out& out, const Lse& lse,
                  const M& mods, const Options& options, Outputs outputs = Outputs::own)
      : in_(grad_out, query, key, value, mods, options, outputs), out_held_(evaluated(out)) {
    const Problem& p = in_.call.problem;
    given_out_ = checked_input<T>(out_held_, {p.batch, p.heads, p.q_len, p.v_dim}, "out");
    out_ = before_rounding<T>(out_held_);
    lse_ = checked_lse<T>(lse, p, "lse");
    lse_rests_ = rests_beside<T>(lse);
  }
  CheckedBackward(const CheckedBackward&) = delete;

  auto gradients() const { return in_.gradients(); }

  /// `learned` receives the gradients of the mods' parameters; if it is null, the mods' own tensors receive them.
  /// has_more_keys: whether `out` and `lse` include keys of other calls, as they may with a kv_offset.
  template <class GQ, class GK, class GV>
  void run(GQ&& grad_query, GK&& grad_key, GV&& grad_value, const Options& options,
           const LearnedMods<T>* learned = nullptr, bool has_more_keys = false) const {
    const auto& call = in_.call;
    const BackwardMods<T, Bound<M>> mods(call.mods, call.problem);
    const CallTensors<T> tensors = call.template inputs_beside<GradOut, Out, GQ, GK, GV>();
    const BackwardCall<T> made{tensors,
                               out_,
                               in_.grad_out,
                               lse_,
                               in_.grad_lse,
                               lse_rests_,
                               checked_gradient<T>(grad_query, call.q, "grad_query"),
                               checked_gradient<T>(grad_key, call.k, "grad_key"),
                               checked_gradient<T>(grad_value, call.v, "grad_value"),
                               mods.tile(),
                               mods.slopes(),
                               learned ? learned : mods.learned(),
                               {},
                               options.accumulate,
                               !has_more_keys && sums_rows(tensors, out_, Bound<M>::kIsGrouped, options)};
    if constexpr (lists_keys<Bound<M>>() && !Bound<M>::kHasWeights)
      if (call.mods.grouped().gathers_backward(call.problem))
        return listed_backward<T>(made, ListedCallOf<T, Bound<M>, BackwardMods>(call.mods, call.problem), options);
    backward<T>(made, options);
  }

  /// Like run(), for gradients in the caller's memory; see CheckedCall::caller_tensors().
  template <class GQ, class GK, class GV>
  void run_into(GQ&& grad_query, GK&& grad_key, GV&& grad_value, const Options& options,
                const LearnedMods<T>* learned = nullptr, bool has_more_keys = false) const {
    if constexpr (check_destinations<GQ, GK, GV>()) {
      const Footprint to[3] = {checked_gradient<T>(grad_query, in_.call.q, kNames[0]),
                               checked_gradient<T>(grad_key, in_.call.k, kNames[1]),
                               checked_gradient<T>(grad_value, in_.call.v, kNames[2])};
      for (int i = 0; i < 3; ++i) {
        in_.call.check_apart_from_inputs(to[i], kNames[i]);
        check_apart(to[i], kNames[i], in_.grad_out, "grad_out");
        check_apart(to[i], kNames[i], given_out_, "out");
        check_apart(to[i], kNames[i], to[(i + 1) % 3], kNames[(i + 1) % 3]);
      }
      run(grad_query, grad_key, grad_value, options, learned, has_more_keys);
    }
  }

 private:
  static constexpr const char* kNames[] = {"grad_query", "grad_key", "grad_value"};

  DTypeView<const T> given_out_, out_;  ///< the caller's output, and that output before rounding
  TensorView<const T, 3> lse_;
  LseRests<T> lse_rests_;
};

template <class G, class Q, class K, class V, class M>
class CheckedNaiveBackward {
  const BackwardInputs<G, Q, K, V, M> in_;

 public:
  using T = typename BackwardInputs<G, Q, K, V, M>::T;

  CheckedNaiveBackward(const G& grad_out, const Q& query, const K& key, const V& value, const M& mods,
                       const Options& options)
      : in_(grad_out, query, key, value, mods, options) {}

  auto gradients() const { return in_.gradients(); }

  /// `given`: like `learned` in CheckedBackward::run().
  template <class GQ, class GK, class GV>
  void run(GQ&& grad_query, GK&& grad_key, GV&& grad_value, const Options& options,
           const LearnedMods<T>* given = nullptr) const {
    const auto& call = in_.call;
    const LearnedIfAny<T, Bound<M>> learned(call.mods, call.problem);
    naive_backward<T>(checked_gradient<T>(grad_query, call.q, "grad_query"),
                      checked_gradient<T>(grad_key, call.k, "grad_key"),
                      checked_gradient<T>(grad_value, call.v, "grad_value"), in_.grad_out, in_.grad_lse, call.q, call.k,
                      call.v, naive_mods<T>(call.mods, call.problem), naive_slopes<T>(call.mods, call.problem),
                      given ? given : learned.get(), call.problem, options.executor);
  }
};

}  // namespace attn::detail::inline ATTN_BUILT_FOR
