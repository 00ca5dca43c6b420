// The checked arguments of a recurrent form, the counterpart of CheckedCall.
#pragma once

#include <utility>
#include <vector>

#include "attn/core/flash/checked_call.h"
#include "attn/recurrent/recurrence_call.h"
#include "attn/recurrent_state.h"

namespace attn {

/// Gates that are the same for all tokens, one for each head of keys and values: log_decays (kv_heads). Made by
/// decay_per_head() and retention_decay().
struct HeadDecays {
  std::vector<double> log_decays;
};

namespace detail::inline ATTN_BUILT_FOR {

/// The gates of a call as (batch, kv_heads, len, 1 or features).
template <class T, class G>
class GateArgument {
  static constexpr bool kPerHead = std::is_same_v<G, HeadDecays>;

  template <class X>
  static decltype(auto) held_of(const X& gate) {
    if constexpr (kPerHead)
      return std::vector<T>(gate.log_decays.begin(), gate.log_decays.end());
    else
      return evaluated(gate);
  }
  const decltype(held_of(std::declval<const G&>())) held_;

 public:
  explicit GateArgument(const G& gate) : held_(held_of(gate)) {}

  /// @throws std::invalid_argument unless all heads have one gate per token, or one per feature of each token.
  DTypeView<const T> view(const Problem& p) const {
    if constexpr (kPerHead) {
      require(static_cast<Index>(held_.size()) == p.kv_heads, "got ", held_.size(), " decays for ", p.kv_heads,
              " key/value heads");
      return TensorView<const T, 4>(held_.data(), {p.batch, p.kv_heads, p.kv_len, 1}, {0, 1, 0, 0});
    } else {
      const TensorView<const T, 4> gate = numbers();
      const Index features = gate.dim(3) == 1 ? 1 : p.head_dim;
      const Shape<4> want{p.batch, p.kv_heads, p.kv_len, features};
      require(gate.shape() == want, "log_gate has shape ", gate.shape(), ", expected ", want,
              " as (batch, kv_heads, len, 1 or head_dim)");
      return gate;
    }
  }
  /// Returns the gates, unchecked.
  TensorView<const T, 4> numbers() const { return token_numbers<const T>(held_); }

  /// Allocates the gradient, in the shape of the gates; for decays per head, (kv_heads).
  auto gradient() const {
    if constexpr (kPerHead)
      return Tensor<T, 1>({static_cast<Index>(held_.size())});
    else if constexpr (EigenDense<G>)
      return Eigen::Matrix < T, G::RowsAtCompileTime, G::ColsAtCompileTime,
             G::IsRowMajor ? Eigen::RowMajor : Eigen::ColMajor > (held_.rows(), held_.cols());
    else
      return Tensor<T, rank_of<G>>::uninitialized(attn::view(held_).shape());
  }

  /// Returns a tensor of per-token values, of rank 1 to 4, as (batch, kv_heads, len, values per token).
  template <class Number, class X>
  static TensorView<Number, 4> token_numbers(X&& x) {
    constexpr int kRank = rank_of<X>;
    constexpr bool kFits = Viewable<X> && kRank >= 1 && kRank <= 4;
    static_assert(kFits,
                  "attn: gates and betas must be tensors (batch, kv_heads, len), or vectors (len) for one head; gates "
                  "may also have one value per feature");
    using View = TensorView<Number, 4>;
    if constexpr (!kFits) {  // view() would report its own error
      return View();
    } else {
      auto v = attn::view(x);
      static_assert(std::is_same_v<typename decltype(v)::Scalar, std::remove_const_t<Number>>,
                    "attn: gates and betas must have the scalar type of the query (float for 16-bit queries)");
      if constexpr (kRank == 4)
        return v;
      else if constexpr (kRank == 3)
        return View(v.data(), {v.dim(0), v.dim(1), v.dim(2), 1}, {v.stride(0), v.stride(1), v.stride(2), 0});
      else if constexpr (kRank == 2)
        return is_row<X>() ? View(v.data(), {1, 1, v.dim(1), 1}, {0, 0, v.stride(1), 0})
                           : View(v.data(), {1, 1, v.dim(0), v.dim(1)}, {0, 0, v.stride(0), v.stride(1)});
      else
        return View(v.data(), {1, 1, v.dim(0), 1}, {0, 0, v.stride(0), 0});
    }
  }

 private:
  template <class X>
  static constexpr bool is_row() {
    if constexpr (EigenDense<X>)
      return std::remove_cvref_t<X>::RowsAtCompileTime == 1;
    else
      return false;
  }
};

/// The arguments that every recurrent form has: tensors, sizes, and the runs of tokens that masks make. It refers to
/// the caller's tensors and mods, and its members refer to each other, so it must not be moved.
template <class Q, class K, class V, class M>
class RecurrentInputs : public CallInputs<Q, K, V> {
  using Inputs = CallInputs<Q, K, V>;
  const ModsAndOptions<M> with_;

 public:
  using Inputs::q, Inputs::k, Inputs::v;
  using typename Inputs::T;
  using Mods = std::remove_cvref_t<decltype(ModsAndOptions<M>::mods)>;
  static_assert(check_recurrent_mods<Mods>());

  RecurrentInputs(const Q& query, const K& key, const V& value, const M& mods, const Options& given)
      : Inputs(query, key, value),
        with_(mods, given),
        options(with_.options),
        problem(make_problem<T>(q, k, v, options)),
        runs(with_.mods, problem) {
    check_neighbouring_heads(options, "a recurrent form");
  }

  const Options& options;
  const Problem problem;
  const TokenRuns runs;

  /// Allocates the output of a call.
  auto out() const { return Answer<Q>::out(problem); }

  /// Returns a view of the caller's output, checked to share no memory with query, key and value.
  template <class Out>
  DTypeView<T> caller_output(Out&& out) const {
    const DTypeView<T> to = output_view<T>(out, problem);
    const ByteRange bytes = bytes_of(to);
    check_apart(to, bytes, "out", q, "query");
    check_apart(to, bytes, "out", k, "key");
    check_apart(to, bytes, "out", v, "value");
    return to;
  }
};

/// Returns the memory of a state, checked to fit the call.
template <class State, class T>
auto state_memory(State& state, const RecurrenceCall<T>& call, const char* what = "the state") {
  const RecurrentStateConfig& c = state.config();
  const Problem& p = call.problem;
  const Shape<4> have{c.batch, c.kv_heads, c.features, c.v_dim}, want{p.batch, p.kv_heads, call.features(), p.v_dim};
  require(have == want, what, " has shape ", have, ", expected ", want, " as (batch, kv_heads, features, v_dim)");
  return state.memory();
}
/// Rejects, with a one-sentence error, a state that a call cannot have.
template <class Call, class S>
constexpr auto check_state() {
  constexpr bool kSameScalar = std::is_same_v<typename S::Scalar, typename Call::T>;
  static_assert(kSameScalar, "attn: the state must have the scalar type of the query (float for 16-bit queries)");
  static_assert(
      !Call::kHasDocuments,
      "attn: each document has its own state; to use a RecurrentState, pass each document as a sequence of the batch");
  return kSameScalar && !Call::kHasDocuments;
}

/// Placeholder for gates or betas that a form does not have, and for their gradients.
struct NoGates {
  NoGates gradient() const { return {}; }
};

/// The vectors a and b of dplr_delta_rule(), or their gradients.
template <class A, class B>
struct LowRank {
  A a;
  B b;
};

template <class A, class B>
LowRank<const A&, const B&> low_rank(const A& a, const B& b) {
  return {a, b};
}

/// Checked views of what a form has besides gates; null for what it lacks.
template <class T, class Rule>
class RuleArgument {
  const GateArgument<T, Rule> beta_;

 public:
  RuleArgument(const Rule& given, const DTypeView<const T>& key) : beta_(given), beta(beta_.numbers()) {
    const Shape<4> want{key.dim(0), key.dim(1), key.dim(2), 1};
    require(beta.shape() == want, "beta has shape ", beta.shape(), ", expected ", want,
            " as (batch, kv_heads, len, 1)");
  }
  const DTypeView<const T> beta;
  const DTypeView<const T> a{}, b{};

  auto gradient() const { return beta_.gradient(); }
};
template <class T>
struct RuleArgument<T, NoGates> : NoGates {
  RuleArgument(NoGates, const DTypeView<const T>&) {}
  const DTypeView<const T> beta{}, a{}, b{};
};
template <class T, class A, class B>
class RuleArgument<T, LowRank<const A&, const B&>> {
  const Held<A> a_;
  const Held<B> b_;

  template <class X>
  static DTypeView<const T> view_of(const X& x, const DTypeView<const T>& key, const char* name) {
    static_assert(std::is_same_v<computed_t<typename Traits<X>::Scalar>, T>,
                  "attn: a and b must have the scalar type of the query (float and 16-bit floats may be mixed)");
    const DTypeView<const T> v = as_rank4(view(x));
    require(v.shape() == key.shape(), name, " has shape ", v.shape(), ", expected that of the key, ", key.shape());
    return v;
  }

 public:
  RuleArgument(const LowRank<const A&, const B&>& given, const DTypeView<const T>& key)
      : a_(evaluated(given.a)), b_(evaluated(given.b)), a(view_of(a_, key, "a")), b(view_of(b_, key, "b")) {}
  const DTypeView<const T> beta{}, a, b;

  auto gradient() const {
    return LowRank<decltype(gradient_like<A>(a)), decltype(gradient_like<B>(b))>{gradient_like<A>(a),
                                                                                 gradient_like<B>(b)};
  }
};

/// A checked call of linear_attention().
template <class Q, class K, class V, class Map, class M>
class CheckedLinear {
  static_assert(check_feature_map<Map>());

 public:
  using Query = Q;
  using Key = K;
  using Value = V;
  using T = typename RecurrentInputs<Q, K, V, M>::T;
  using Gate = NoGates;
  using Rule = NoGates;
  using Mods = typename RecurrentInputs<Q, K, V, M>::Mods;
  static constexpr bool kHasDocuments = RecurrentMods<Mods>::kHasDocuments;

  CheckedLinear(const Q& query, const K& key, const V& value, const Map& map, const M& mods, const Options& options)
      : in(query, key, value, mods, options), features(map, in.problem.head_dim, in.problem.scale) {
    require(!in.options.scale || std::is_same_v<Map, FavorFeatures>, "scale is ", in.options.scale.value_or(0),
            ", but only favor() uses a scale; with other feature maps it cancels in the normaliser");
    require(in.problem.scale > 0 || !std::is_same_v<Map, FavorFeatures>, "scale must be positive with favor(), but is ",
            in.problem.scale);
  }

  const RecurrentInputs<Q, K, V, M> in;
  const BoundFeatures<T> features;

  NoGates gate() const { return {}; }
  NoGates rule() const { return {}; }

  template <class Out>
  RecurrenceCall<T> call(Out&& out) const {
    return call_to(in.caller_output(out));
  }
  RecurrenceCall<T> call_to(const DTypeView<T>& out) const {
    return {.problem = in.problem,
            .q = in.q,
            .k = in.k,
            .v = in.v,
            .out = out,
            .map = features,
            .runs = in.runs,
            .is_causal = RecurrentMods<Mods>::kIsCausal,
            .is_normalised = true};
  }
};

/// A checked call of a form with gates. `R` is NoGates for gated_attention(), the type of beta for gated_delta_rule(),
/// and LowRank for dplr_delta_rule().
template <class Q, class K, class V, class G, class R, class M>
class CheckedGated {
 public:
  using Query = Q;
  using Key = K;
  using Value = V;
  using Inputs = RecurrentInputs<Q, K, V, M>;
  using T = typename Inputs::T;
  using Gate = G;
  using Rule = R;
  static constexpr bool kHasDocuments = RecurrentMods<typename Inputs::Mods>::kHasDocuments;

  CheckedGated(const Q& query, const K& key, const V& value, const G& log_gate, const Rule& rule, const M& mods,
               const Options& options = {})
      : in(query, key, value, mods, options), features(in.problem.head_dim), gate_(log_gate), rule_(rule, in.k) {
    const Problem& p = in.problem;
    require(p.q_len == p.kv_len, "each token needs a query, a key and a gate, but there are ", p.q_len, " queries and ",
            p.kv_len, " keys");
    for (Index b = 0; b < p.batch; ++b)
      require(p.first_query_among_keys(b) == 0, "q_offset is ", p.first_query(b), " and kv_offset is ", p.kv_offset,
              "; with gates, the query and key of a token must be in the same row");
    gates_ = gate_.view(p);
  }

  const Inputs in;
  const BoundFeatures<T> features;

  const GateArgument<T, G>& gate() const { return gate_; }
  const RuleArgument<T, Rule>& rule() const { return rule_; }

  template <class Out>
  RecurrenceCall<T> call(Out&& out) const {
    const DTypeView<T> to = in.caller_output(out);
    check_all_apart({{"out", to}}, {{"log_gate", gates_}, {"beta", rule_.beta}, {"a", rule_.a}, {"b", rule_.b}});
    return call_to(to);
  }
  RecurrenceCall<T> call_to(const DTypeView<T>& out) const {
    return {.problem = in.problem,
            .q = in.q,
            .k = in.k,
            .v = in.v,
            .out = out,
            .map = features,
            .runs = in.runs,
            .scale = static_cast<T>(in.problem.scale),
            .gates = gates_.dim(3) == 1 ? Gates::of_tokens : Gates::of_features,
            .gate = gates_,
            .beta = rule_.beta,
            .a = rule_.a,
            .b = rule_.b};
  }

 private:
  const GateArgument<T, G> gate_;
  const RuleArgument<T, Rule> rule_;
  DTypeView<const T> gates_;
};

}  // namespace detail::inline ATTN_BUILT_FOR
}  // namespace attn
