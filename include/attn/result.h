// What calls return.
#pragma once

#include <type_traits>

namespace attn {

/// What an attention call returns: `out` like the query with v_dim columns, and `lse`, the natural log-sum-exp of each
/// row's final scores, which is empty where Normaliser makes sigmoids of the scores.
///
/// Both carry digits for which their types have no room, so that gradients, weights and merged results are as exact as
/// the call itself was: beside an `out` of 16 bits stands the float that was rounded, and beside an `lse` what rounding
/// took from it, where that matters. Copies of a Result, of a Tensor or of these members take the digits along. A view,
/// a plain Eigen matrix and a cast do not.
template <class Out, class Lse>
struct Result {
  Out out;  ///< (q_len, v_dim) for each head
  Lse lse;  ///< (q_len) for each head

  /// Not to be called: does not compile, and says that the output is `.out`.
  template <class X>
  requires requires { typename X::Scalar; }
  operator X() const {
    static_assert(sizeof(X) == 0, "attn: a call returns out and lse; take its output: attn::attention(q, k, v).out");
  }

  /// The same in other containers, as in Result<Eigen::MatrixXf, Eigen::VectorXf>, without further digits.
  template <class O, class L>
  requires(std::is_convertible_v<const Out&, O>&& std::is_convertible_v<const Lse&, L>) operator Result<O, L>() const {
    return {out, lse};
  }
};
/// Deduces both types.
template <class Out, class Lse>
Result(Out, Lse) -> Result<Out, Lse>;  // clang 14 deduces no arguments of aggregates by itself

/// A Result with the weights, (q_len, kv_len) for each head; only the naive path has them.
template <class Out, class Lse, class Weights>
struct NaiveResult {
  Out out;          ///< (q_len, v_dim) for each head
  Lse lse;          ///< (q_len) for each head
  Weights weights;  ///< (q_len, kv_len) for each head; 0 where a pair is dropped
};

/// The gradients of an attention call, shaped as query, key and value.
template <class Query, class Key, class Value>
struct Gradients {
  Query query;  ///< shaped as the query
  Key key;      ///< shaped as the key
  Value value;  ///< shaped as the value
};

/// The gradients of gated_attention(): shaped as its arguments; that of decay_per_head() is (kv_heads).
template <class Query, class Key, class Value, class Gate>
struct GatedGradients {
  Query query;    ///< shaped as the query
  Key key;        ///< shaped as the key
  Value value;    ///< shaped as the value
  Gate log_gate;  ///< shaped as log_gate
};

/// The gradients of gated_delta_rule(), shaped as its arguments; that of decay_per_head() is (kv_heads).
template <class Query, class Key, class Value, class Gate, class Beta>
struct DeltaGradients {
  Query query;    ///< shaped as the query
  Key key;        ///< shaped as the key
  Value value;    ///< shaped as the value
  Gate log_gate;  ///< shaped as log_gate
  Beta beta;      ///< shaped as beta
};

/// What attention_jvp() returns: the output, and its derivative in the direction that was given.
template <class Out>
struct JvpResult {
  Out out;      ///< the output itself
  Out tangent;  ///< what the output changes by, of the same shape
};

}  // namespace attn
