// The layers of a Transformer other than attention (embeddings, normalisation, feed-forward), and attention with
// trained weights.
#pragma once

#include <string>
#include <vector>

#include <attn/attn.h>

#include "model_file.h"
#include "vocabulary.h"

namespace transliterate {

/// A vector for each token of each sequence: (batch, len, width).
using States = attn::Tensor<float, 3>;

using RowMatrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

/// All tokens of a batch as the rows of one matrix, (batch * len, width). Nothing is copied.
Eigen::Map<RowMatrix> rows_of(States& states);
Eigen::Map<const RowMatrix> rows_of(const States& states);

/// y = x * weightᵀ + bias, for each row.
class Linear {
 public:
  Linear(ModelFile& file, const std::string& prefix, attn::Index inputs, attn::Index outputs);
  RowMatrix operator()(const Eigen::Ref<const RowMatrix>& x) const;

 private:
  RowMatrix weight_;  // (outputs, inputs)
  Eigen::RowVectorXf bias_;
};

/// Normalises each row to mean 0 and variance 1, then scales and shifts it (Ba et al. 2016).
class LayerNorm {
 public:
  LayerNorm(ModelFile& file, const std::string& prefix, attn::Index width);
  States operator()(const States& x) const;

 private:
  Eigen::RowVectorXf gamma_, beta_;
};

/// LayerNorm, then width -> inner -> width with ReLU in between (Vaswani et al. 2017, section 3.3).
class FeedForward {
 public:
  FeedForward(ModelFile& file, const std::string& prefix, attn::Index width);
  void add_to(States& x) const;

 private:
  FeedForward(ModelFile& file, const std::string& prefix, attn::Index width, attn::Index inner);

  LayerNorm norm_;
  Linear widen_, narrow_;
};

/// Converts token ids to vectors and adds the position of each token in its sequence.
class Embedding {
 public:
  Embedding(ModelFile& file, const std::string& variable);

  attn::Index tokens() const { return weight_.rows(); }
  attn::Index width() const { return weight_.cols(); }

  /// Returns the vectors, (batch, longest, width). Shorter sequences are padded; the padding must not affect results.
  /// @throws std::out_of_range for an id that has no row.
  States operator()(const std::vector<Tokens>& batch) const;

 private:
  RowMatrix weight_;  // (tokens, width)
};

/// Number of heads of the published model; its file does not state it.
constexpr attn::Index kHeads = 8;

/// Loads self-attention: linear_0 of the file computes queries, keys and values.
attn::MultiHeadAttention<float> load_self_attention(ModelFile& file, const std::string& prefix, attn::Index width);

/// Loads attention from one sequence to another: linear_0 computes queries, linear_1 keys and values.
attn::MultiHeadAttention<float> load_cross_attention(ModelFile& file, const std::string& prefix, attn::Index width);

}  // namespace transliterate
