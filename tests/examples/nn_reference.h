// Layers as PyTorch documents them, in double and in plain loops: the reference for examples/nn.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace reference {

using Vector = std::vector<double>;
/// Rows of features, one per token of a sequence, or the rows of a weight.
using Matrix = std::vector<Vector>;

/// A tensor of a PyTorch state_dict. A vector is a matrix of one row.
struct Tensor {
  std::vector<std::ptrdiff_t> shape;
  Matrix rows;
};
using State = std::map<std::string, Tensor>;

/// Whether query i may attend to key j.
using Allowed = std::function<bool(std::size_t, std::size_t)>;

enum class Activation { relu, gelu_tanh, swiglu };

struct Layer {
  std::size_t features = 0, heads = 1, hidden = 0;
  Activation activation = Activation::relu;
  bool norm_first = false, bias = true;
};

/// torch.nn.functional.linear; without a bias if the state has none.
Matrix linear(const Matrix& x, const State& state, const std::string& prefix);
/// torch.nn.LayerNorm of the last dimension; the bias may be missing.
Matrix layer_norm(const Matrix& x, const State& state, const std::string& prefix, double epsilon = 1e-5);
/// torch.nn.RMSNorm.
Matrix rms_norm(const Matrix& x, const State& state, const std::string& prefix, double epsilon);
/// torch.nn.ReLU, torch.nn.GELU(approximate="tanh"), or silu of the first half of the features times the second.
Matrix activate(Activation activation, const Matrix& x);

/// torch.nn.MultiheadAttention(batch_first=True) of one sequence, with equal key and value. A query without allowed
/// keys gets zeros, where PyTorch gives NaN.
Matrix multihead_attention(const Matrix& query, const Matrix& memory, std::size_t heads, const Allowed& allowed,
                           const State& state, const std::string& prefix);

/// torch.nn.TransformerEncoderLayer and TransformerDecoderLayer in eval().
Matrix encoder_layer(const Matrix& x, const Layer& layer, const Allowed& allowed, const State& state,
                     const std::string& prefix = "");
Matrix decoder_layer(const Matrix& x, const Matrix& memory, const Layer& layer, const Allowed& allowed,
                     const Allowed& memory_allowed, const State& state, const std::string& prefix = "");

/// torch.nn.functional.cross_entropy.
double cross_entropy(const Matrix& logits, const std::vector<int>& targets, double label_smoothing, int ignore_index);

/// torch.optim.AdamW of one tensor, with its default arguments.
class AdamW {
 public:
  double lr = 1e-3, beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 1e-2;
  void step(Vector& parameter, const Vector& gradient);

 private:
  Vector exp_avg_, exp_avg_sq_;
  int steps_ = 0;
};

/// torch.nn.utils.clip_grad_norm_, except for the 1e-6 that PyTorch adds to the norm before dividing. Returns the norm.
double clip_grad_norm(std::vector<Vector>& gradients, double max_norm);

/// Tensors with the names and shapes of PyTorch's layers and values drawn from the seed.
State encoder_layer_state(const Layer& layer, const std::string& prefix, unsigned seed);
State decoder_layer_state(const Layer& layer, const std::string& prefix, unsigned seed);
void add_tensor(State& state, const std::string& name, const std::vector<std::ptrdiff_t>& shape, unsigned seed);

}  // namespace reference
