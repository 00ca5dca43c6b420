// Gated DeltaNet, a layer that can replace attention. Its state has the same size after any number of tokens.
#pragma once

#include "linear.h"
#include "norm.h"

namespace nn {

struct DeltaNetConfig {
  Index features = 0;  ///< per token, of the input and the result
  Index heads = 1;
  Index head_dim = 0;          ///< of queries, keys and values
  Index conv_width = 4;        ///< tokens that the convolution sees
  double norm_epsilon = 1e-6;  ///< of the norms of queries, keys and results
};

/// What a DeltaNet keeps of the earlier tokens of a batch of sequences.
template <class T>
struct DeltaNetState {
  DeltaNetState(const DeltaNetConfig& config, Index batch);

  attn::Tensor<T, 3> inputs;       ///< of the convolution, for the last conv_width - 1 tokens
  attn::RecurrentState<T> memory;  ///< of the delta rule
};

/// Gated DeltaNet (Yang, Kautz & Hatamizadeh 2024), with the parts and names that it has in Qwen3-Next. With q, k and v
/// the three parts of SiLU(conv1d(in_proj_qkv(x))), q and k divided by their norms, each head computes
///
///     log_gate = -e^A_log * softplus(in_proj_a(x) + dt_bias),   beta = sigmoid(in_proj_b(x))
///     y = gated_delta_rule(q, k, v, log_gate, beta)
///     out = out_proj(norm(y) * SiLU(in_proj_z(x)))
///
/// In Qwen3-Next, two heads of values share each head of queries and keys; here each has its own.
template <class T>
class DeltaNet {
 public:
  using State = DeltaNetState<T>;
  static constexpr const char* kName = "linear_attn.";  ///< prefix of the parameters in a model

  /// Draws the initial decays as Mamba-2 does: heads forget at rates from about a thousandth to about 1 per token.
  DeltaNet(const DeltaNetConfig& config, Random& random);

  /// Applies the layer to whole sequences, or to the next tokens of sequences that the state has seen, and adds them to
  /// the state.
  States<T> operator()(const States<T>& x, State* state = nullptr) const;

  States<T> forward(const States<T>& x);
  States<T> backward(const States<T>& grad);

  /// Visits the parameters under Qwen3-Next's names, except that its in_proj_qkvz and in_proj_ba are four matrices.
  void visit(const std::string& prefix, const Visitor<T>& visitor);

 private:
  /// The values that backward() needs besides those that the parts keep.
  struct Kept {
    States<T> projected, mixed;             ///< queries, keys and values before and after the convolution
    States<T> query_key;                    ///< divided by their norms
    States<T> decay_input, log_gate, beta;  ///< (batch, len, heads)
    States<T> normalized, gate;
  };
  /// Computes the layer for inference if Self is const, and for training otherwise.
  template <class Self>
  static States<T> apply(Self& self, const States<T>& x, State* state);

  DeltaNetConfig config_;
  Linear<T> in_proj_qkv_, in_proj_z_, in_proj_b_, in_proj_a_, out_proj_;
  Learned<T, 2> conv1d_;
  Learned<T, 1> a_log_, dt_bias_;
  Norm<T> unit_, norm_;
  Kept kept_;
};

}  // namespace nn
