#include "layers.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>

namespace transliterate {

namespace {

Eigen::RowVectorXf row_vector(const ModelFile::Vector& v) {
  return Eigen::Map<const Eigen::RowVectorXf>(v.data(), v.size());
}

}  // namespace

Eigen::Map<RowMatrix> rows_of(States& states) { return {states.data(), states.dim(0) * states.dim(1), states.dim(2)}; }

Eigen::Map<const RowMatrix> rows_of(const States& states) {
  return {states.data(), states.dim(0) * states.dim(1), states.dim(2)};
}

Linear::Linear(ModelFile& file, const std::string& prefix, attn::Index inputs, attn::Index outputs)
    : weight_(file.matrix(prefix + "/weight", outputs, inputs).matrix()),
      bias_(row_vector(file.vector(prefix + "/bias", outputs))) {}

RowMatrix Linear::operator()(const Eigen::Ref<const RowMatrix>& x) const {
  return (x * weight_.transpose()).rowwise() + bias_;
}

LayerNorm::LayerNorm(ModelFile& file, const std::string& prefix, attn::Index width)
    : gamma_(row_vector(file.vector(prefix + "/gamma", width))),
      beta_(row_vector(file.vector(prefix + "/beta", width))) {}

States LayerNorm::operator()(const States& x) const {
  constexpr float kEpsilon = 1e-5f;  // as in training
  States y = x;
  for (auto row : rows_of(y).rowwise()) {
    row.array() -= row.mean();
    const float variance = row.squaredNorm() / static_cast<float>(row.size());
    row = (row / std::sqrt(variance + kEpsilon)).cwiseProduct(gamma_) + beta_;
  }
  return y;
}

FeedForward::FeedForward(ModelFile& file, const std::string& prefix, attn::Index width)
    : FeedForward(file, prefix, width, file.matrix(prefix + "/linear_0/weight").dim(0)) {}

FeedForward::FeedForward(ModelFile& file, const std::string& prefix, attn::Index width, attn::Index inner)
    : norm_(file, prefix + "/layer_norm", width),
      widen_(file, prefix + "/linear_0", width, inner),
      narrow_(file, prefix + "/linear_1", inner, width) {}

void FeedForward::add_to(States& x) const {
  const States normalised = norm_(x);
  rows_of(x) += narrow_(widen_(rows_of(normalised)).cwiseMax(0.0f));
}

Embedding::Embedding(ModelFile& file, const std::string& variable) : weight_(file.matrix(variable).matrix()) {
  // Half of the features are sines and half cosines, of at least two wavelengths; heads split the features evenly.
  if (width() < 4 || width() % 2 != 0 || width() % kHeads != 0)
    throw FileError(file.name(), "variable \"" + variable + "\" has " + std::to_string(width()) +
                                     " columns, which is not a multiple of " + std::to_string(kHeads) + " heads");
}

States Embedding::operator()(const std::vector<Tokens>& batch) const {
  std::size_t longest = 0;
  for (const Tokens& tokens : batch) longest = std::max(longest, tokens.size());

  const attn::Index half = width() / 2;
  const float scale = std::sqrt(static_cast<float>(width()));
  const double step = std::log(10000.0) / static_cast<double>(half - 1);
  States states({static_cast<attn::Index>(batch.size()), static_cast<attn::Index>(longest), width()});
  for (std::size_t b = 0; b < batch.size(); ++b)
    for (std::size_t t = 0; t < batch[b].size(); ++t) {
      const attn::Index id = batch[b][t];
      if (id < 0 || id >= tokens())
        throw std::out_of_range("token id " + std::to_string(id) + " has no embedding; there are " +
                                std::to_string(tokens()));
      auto state = states.matrix(static_cast<attn::Index>(b)).row(static_cast<attn::Index>(t));
      state = scale * weight_.row(id);
      for (attn::Index i = 0; i < half; ++i) {
        const double angle = static_cast<double>(t + 1) * std::exp(-step * static_cast<double>(i));
        state(i) += static_cast<float>(std::sin(angle));
        state(half + i) += static_cast<float>(std::cos(angle));
      }
    }
  return states;
}

attn::MultiHeadAttention<float> load_self_attention(ModelFile& file, const std::string& prefix, attn::Index width) {
  attn::MultiHeadAttention<float> attention({.embed_dim = width, .heads = kHeads});
  attention.load("in_proj_weight", file.matrix(prefix + "/linear_0/weight", 3 * width, width));
  attention.load("in_proj_bias", file.vector(prefix + "/linear_0/bias", 3 * width));
  attention.load("out_proj.weight", file.matrix(prefix + "/linear_1/weight", width, width));
  attention.load("out_proj.bias", file.vector(prefix + "/linear_1/bias", width));
  return attention;
}

attn::MultiHeadAttention<float> load_cross_attention(ModelFile& file, const std::string& prefix, attn::Index width) {
  attn::MultiHeadAttention<float> attention({.embed_dim = width, .heads = kHeads});
  attention.load("q_proj_weight", file.matrix(prefix + "/linear_0/weight", width, width));
  attention.load("q_proj_bias", file.vector(prefix + "/linear_0/bias", width));
  attention.load_rows("in_proj_weight", width, file.matrix(prefix + "/linear_1/weight", 2 * width, width));
  attention.load_rows("in_proj_bias", width, file.vector(prefix + "/linear_1/bias", 2 * width));
  attention.load("out_proj.weight", file.matrix(prefix + "/linear_2/weight", width, width));
  attention.load("out_proj.bias", file.vector(prefix + "/linear_2/bias", width));
  return attention;
}

}  // namespace transliterate
