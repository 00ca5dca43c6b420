// Result types of calls.
#pragma once

#include <type_traits>

namespace attn {

/// The result of an attention call: `out`, shaped like the query but with v_dim columns, and `lse`, the natural
/// log-sum-exp of each row's final scores, which is empty with Normaliser::sigmoid().
///
/// Both carry digits beyond the precision of their types, so that gradients, weights and merged results are as exact as
/// the call itself: a 16-bit `out` also keeps the unrounded floats, and `lse` its rounding error, where that matters.
/// Copies of a Result, of a Tensor or of these members keep the digits. A view, a plain Eigen matrix and a cast do not.
template <class Out, class Lse>
struct Result {
  Out out;  ///< (q_len, v_dim) for each head
  Lse lse;  ///< (q_len) for each head

  /// Not to be called: fails to compile, with a message that says to use `.out`.
  template <class X>
  requires requires { typename X::Scalar; }
  operator X() const {
    static_assert(sizeof(X) == 0,
                  "attn: a call returns both out and lse; for the output alone, write attn::attention(q, k, v).out");
  }

  /// Converts to other containers, such as Result<Eigen::MatrixXf, Eigen::VectorXf>, without the extra digits.
  template <class O, class L>
  requires(std::is_convertible_v<const Out&, O>&& std::is_convertible_v<const Lse&, L>) operator Result<O, L>() const {
    return {out, lse};
  }
};
/// Deduces both types.
template <class Out, class Lse>
Result(Out, Lse) -> Result<Out, Lse>;  // clang 14 does not deduce arguments of aggregates on its own

/// A Result with the weights, (q_len, kv_len) for each head; only the naive path returns them.
template <class Out, class Lse, class Weights>
struct NaiveResult {
  Out out;          ///< (q_len, v_dim) for each head
  Lse lse;          ///< (q_len) for each head
  Weights weights;  ///< (q_len, kv_len) for each head; 0 where a pair is dropped
};

/// The gradients of an attention call, shaped like query, key and value.
template <class Query, class Key, class Value>
struct Gradients {
  Query query;  ///< shaped like the query
  Key key;      ///< shaped like the key
  Value value;  ///< shaped like the value
};

/// The gradients of gated_attention(), shaped like its arguments. For decay_per_head(), log_gate is (kv_heads).
template <class Query, class Key, class Value, class Gate>
struct GatedGradients {
  Query query;    ///< shaped like the query
  Key key;        ///< shaped like the key
  Value value;    ///< shaped like the value
  Gate log_gate;  ///< shaped like log_gate
};

/// The gradients of gated_delta_rule(), shaped like its arguments. For decay_per_head(), log_gate is (kv_heads).
template <class Query, class Key, class Value, class Gate, class Beta>
struct DeltaGradients {
  Query query;    ///< shaped like the query
  Key key;        ///< shaped like the key
  Value value;    ///< shaped like the value
  Gate log_gate;  ///< shaped like log_gate
  Beta beta;      ///< shaped like beta
};

/// The gradients of dplr_delta_rule(), shaped like its arguments. For decay_per_head(), log_gate is (kv_heads).
template <class Query, class Key, class Value, class A, class B, class Gate>
struct DplrGradients {
  Query query;    ///< shaped like the query
  Key key;        ///< shaped like the key
  Value value;    ///< shaped like the value
  A a;            ///< shaped like a
  B b;            ///< shaped like b
  Gate log_gate;  ///< shaped like log_gate
};

/// The result of attention_jvp(): the output, and its derivative in the given direction.
template <class Out>
struct JvpResult {
  Out out;      ///< the output itself
  Out tangent;  ///< the derivative, of the same shape
};

}  // namespace attn
