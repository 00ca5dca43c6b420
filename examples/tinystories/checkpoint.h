// Reads a checkpoint of llama2.c, version 0: the sizes of a network and its weights. The file is untrusted.
#pragma once

#include <vector>

#include <Eigen/Core>

#include "binary_file.h"

namespace tinystories {

using Index = Eigen::Index;

/// The sizes of a network, under llama2.c's names.
struct Config {
  Index dim = 0;         // features per token
  Index hidden_dim = 0;  // features inside the feed-forward network
  Index n_layers = 0;
  Index n_heads = 0;     // of queries
  Index n_kv_heads = 0;  // of keys and values; divides n_heads
  Index vocab_size = 0;
  Index seq_len = 0;  // longest sequence, in tokens
  bool tied = true;   // whether the classifier is the embedding

  Index head_dim() const { return dim / n_heads; }
  Index kv_dim() const { return head_dim() * n_kv_heads; }
};

using Matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using MatrixView = Eigen::Map<const Matrix>;
using RowView = Eigen::Map<const Eigen::RowVectorXf>;

/// Matrices are (outputs, inputs).
struct LayerWeights {
  RowView rms_att;        // (dim)
  MatrixView wq, wk, wv;  // (dim, dim), (kv_dim, dim), (kv_dim, dim)
  MatrixView wo;          // (dim, dim)
  RowView rms_ffn;        // (dim)
  MatrixView w1, w2, w3;  // (hidden_dim, dim), (dim, hidden_dim), (hidden_dim, dim)
};

/// A trained network. Layout of the file, little-endian: i32 dim, hidden_dim, n_layers, n_heads, n_kv_heads, vocab_size
/// (negative if the classifier is stored separately), seq_len; then float32, each kind of weight for all layers before
/// the next kind: embedding, rms_att, wq, wk, wv, wo, rms_ffn, w1, w2, w3, rms_final, tables of cos and sin (skipped:
/// attn computes its own), classifier.
class Checkpoint {
 public:
  /// Reads the weights. Allocates memory for them only after checking that the file holds them.
  /// @throws FileError if the sizes are not valid, the file's size is not exactly what they require, or a weight is not
  /// finite.
  explicit Checkpoint(BinaryFile file);

  const Config& config() const { return config_; }

  /// Views are valid as long as this object.
  MatrixView embedding() const { return {embedding_.data(), config_.vocab_size, config_.dim}; }
  LayerWeights layer(Index layer) const;
  RowView rms_final() const { return {rms_final_.data(), config_.dim}; }
  MatrixView classifier() const {  // (vocab_size, dim)
    return {(config_.tied ? embedding_ : classifier_).data(), config_.vocab_size, config_.dim};
  }

 private:
  Config config_;
  std::vector<float> embedding_, rms_att_, wq_, wk_, wv_, wo_, rms_ffn_, w1_, w2_, w3_, rms_final_, classifier_;
};

}  // namespace tinystories
