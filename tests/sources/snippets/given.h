// Declarations for the pages' C++ blocks, in namespaces named above the blocks. Blocks are compiled but never run.
#pragma once

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <future>
#include <iostream>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include <attn/attn.h>

#include "../../support/mdspan.h"

namespace given {

namespace matrices {
extern const Eigen::MatrixXf q, k, v;
extern const attn::Tensor<bool, 2> is_padding, is_token;
}  // namespace matrices

namespace indexer {
extern const attn::Tensor<float, 4> q, k, v, index_q, index_k, no_values;
extern const attn::Tensor<float, 3> weights;
extern attn::KvCache<float> cache;
}  // namespace indexer

namespace additive {
using Rows = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
extern const Rows q, k, v, grad_out;
extern Rows W_q, W_k, keys;
extern Eigen::VectorXf w, b;
extern const float rate;
}  // namespace additive

namespace learning {
extern Eigen::VectorXf weights, grad;
extern attn::Tensor<float, 2> table, grad_table;
}  // namespace learning

namespace numbers {
extern const std::vector<float> numbers;
extern const attn::Index q_len, head_dim;
extern const attn::test::Mdspan<const float, 2> cells;
}  // namespace numbers

namespace positioned {
extern const attn::Index position, rows, columns;
extern const std::vector<attn::Index> positions;
extern const attn::Tensor<int, 2> times_rows_columns;
extern const attn::Tensor<float, 2> learned;
extern const attn::Tensor<float, 3> grad_x;
extern attn::Tensor<float, 2> grad_learned;
extern attn::Tensor<float, 3> x;
extern attn::Tensor<float, 4> q, k, v, k_of_text, v_of_text, grad_q;
}  // namespace positioned

namespace memory {
extern const float *ptr, *kptr, *vptr;
extern const attn::Index batch, q_len, kv_len, heads, kv_heads, head_dim, v_dim;
}  // namespace memory

namespace training {
extern const Eigen::MatrixXf x, target;
extern Eigen::MatrixXf wq, wk, wv;
extern const float rate;
}  // namespace training

namespace steps {
extern const attn::Tensor<float, 4> q, k, v, grad_out;
extern attn::Tensor<float, 4> grad_q, grad_k, grad_v;
inline const auto mods = attn::causal() | attn::softcap(50);
extern const attn::Result<attn::Tensor<float, 4>, attn::Tensor<float, 3>> r;
extern const std::uint64_t step;
}  // namespace steps

namespace graph {
extern const attn::Tensor<float, 4> q, k, v, grad_out;
extern const std::vector<attn::Index> offsets, indices;
extern const std::vector<std::vector<int>> neighbours;
extern const attn::Tensor<bool, 2> adjacency;
extern const attn::Tensor<float, 2> weights;
extern attn::Tensor<float, 2> grad_weights;
inline const auto is_edge = [](auto p) { return adjacency(p.q, p.kv); };
}  // namespace graph

namespace directions {
extern const Eigen::MatrixXf q, k, v, dq, dk, dv;
}

namespace embedded {
extern const attn::Index batch, len, heads;
extern const attn::TensorView<const float, 3> x;
}  // namespace embedded

namespace fused {
extern const attn::Index batch, len, heads, kv_heads, head_dim;
extern const float *projected, *grouped;
extern float* out;
}  // namespace fused

namespace packed {
extern const attn::Tensor<float, 4> q, k, v;
extern const attn::Index q_len;
extern const std::vector<attn::Index> query_offsets, key_offsets;
}  // namespace packed

namespace images {
extern const attn::Tensor<float, 4> q, k, v;
extern const std::vector<attn::Index> image_or_token;
}  // namespace images

namespace tensors {
extern const attn::Tensor<float, 4> q, k, v;
extern attn::Tensor<float, 4> out;
inline const auto mods = attn::causal() | attn::softcap(50);
extern attn::Options options;
}  // namespace tensors

namespace halves {
extern Eigen::MatrixXf float_out;
extern const Eigen::MatrixXf float_q, qf, kf, vf;
extern const Eigen::Matrix<Eigen::half, Eigen::Dynamic, Eigen::Dynamic> half_k, half_v;
}  // namespace halves

namespace latent {
extern const attn::Tensor<float, 4> rows, absorbed_q;
}  // namespace latent

namespace latent_layer {
extern const attn::Tensor<float, 2> o_proj;
extern const attn::Tensor<float, 3> x, prompt, token, grad_out;
}  // namespace latent

namespace padding {
extern const attn::Tensor<float, 4> q, k, v;
extern const attn::Tensor<bool, 2> key_padding_mask, attention_mask;
extern const std::vector<attn::Index> ids_of_a, ids_of_b;
extern const attn::Tensor<float, 4> zero_or_minus_infinity;
extern const attn::Tensor<bool, 4> is_kept;
}  // namespace padding

namespace layer {
extern const Eigen::MatrixXf weights;
extern const attn::Tensor<float, 3> x_decoder, x_encoder;
extern const std::vector<attn::Index> lengths;
}  // namespace layer

namespace decoder {
extern attn::MultiHeadAttention<float> mha;
extern const Eigen::MatrixXf wk;
extern const attn::Tensor<float, 3> x, tokens, x_decoder, x_encoder;
extern attn::PagedKvCache<float> pages;
extern attn::KvCache<float> memory;
extern const attn::Index a, b;
}  // namespace decoder

namespace trained_model {
attn::Tensor<float, 2> matrix(const char* name);
Eigen::VectorXf vector(const char* name);
}  // namespace trained_model

namespace decoder_layers {
extern std::vector<attn::MultiHeadAttention<float>> layers;
extern attn::Tensor<float, 3> x;
attn::Tensor<float, 3> rest_of_block(attn::Index layer, const attn::Tensor<float, 3>& x,
                                     const attn::Tensor<float, 3>& heads);
}  // namespace decoder_layers

namespace decoder_types {
using Matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using Numbers = std::vector<attn::Index>;
}  // namespace decoder_types

namespace decoder_parts {
using decoder_types::Matrix;
struct Block {
  attn::MultiHeadAttention<float> attention;
  Eigen::RowVectorXf attention_norm, feed_forward_norm;
  Matrix gate, up, down;
};
extern std::vector<Block> blocks;
Matrix matrix(const char* name);
Eigen::RowVectorXf vector(const char* name);
}  // namespace decoder_parts

namespace decoder_use {
using decoder_types::Matrix, decoder_types::Numbers;
struct Decoder {
  attn::KvCaches<float> make_caches(attn::Index pages) const;
  Matrix operator()(const Numbers& tokens, attn::KvCaches<float>& caches, const Numbers& sequences,
                    const Numbers& lens) const;
};
extern const Decoder decoder;
extern const Numbers prompt;
extern const attn::Index end;
attn::Index length(const Numbers& text);
attn::Index chosen(const Matrix& logits, attn::Index row);
}  // namespace decoder_use

namespace trained_layer {
extern attn::MultiHeadAttention<float> mha;
extern const attn::Tensor<float, 3> x, grad_out;
extern const float rate;
}  // namespace trained_layer

namespace linear_map {
extern const attn::Tensor<float, 3> x, grad_y;
extern const attn::Tensor<float, 2> weight;
extern const attn::Tensor<float, 1> bias;
extern attn::Tensor<float, 3> y, grad_x;
extern attn::Tensor<float, 2> grad_weight;
extern attn::Tensor<float, 1> grad_bias;
}  // namespace linear_map

namespace rotation {
extern Eigen::MatrixXf q, cached_k;
extern const Eigen::MatrixXf k;
extern const attn::Index position;
extern const std::vector<attn::Index> positions;
}  // namespace rotation

namespace backend {
extern const attn::Tensor<float, 4> q, k, v;
}

namespace cancelling {
struct Cancelled {};
extern std::atomic<bool> is_cancelled;
extern const attn::Tensor<float, 4> q, k, v;
extern attn::Tensor<float, 4> out;
extern attn::Options options;
}  // namespace cancelling

namespace drafted {
extern const attn::Rope rope;
extern attn::KvCache<float> cache;
extern attn::Tensor<float, 4> drafted_q, drafted_k;
extern const attn::Tensor<float, 4> drafted_v;
}  // namespace drafted

namespace rotated_cache {
extern attn::KvCache<float> cache;
extern const attn::Tensor<float, 4> k, v, next_k, next_v;
}  // namespace rotated_cache

namespace eviction {
extern attn::MultiHeadAttention<float> mha;
extern attn::KvCache<float> cache;
extern attn::PagedKvCache<float> pages;
extern const attn::Tensor<float, 3> tokens;
extern const attn::Index a, budget;
}  // namespace eviction

namespace windows {
extern const std::vector<attn::MultiHeadAttention<float>> layers;
}  // namespace windows

namespace generation {
extern const attn::Tensor<float, 4> q, k, v;
extern attn::Tensor<float, 4> out;
}  // namespace generation

namespace recurrences {
extern attn::Tensor<float, 4> out;
extern const attn::Tensor<float, 4> q, k, v, a, b, feature_gate, grad_out;
extern const attn::Tensor<float, 3> gate, beta, inputs;
extern const attn::Tensor<float, 2> weight;
extern const attn::Tensor<float, 1> bias;
extern const attn::Index channels;
extern const std::vector<attn::Index> lengths;
}  // namespace recurrences

namespace onnx {
constexpr attn::Index B = 2, T = 16, q_heads = 8, kv_heads = 2, d_k = 64, d_v = 64, channels = 96, k = 4;
extern float* const output;
extern const float *const query, *const key, *const value, *const decay, *const beta, *const input, *const weight;
extern const attn::Tensor<float, 1> bias;
}  // namespace onnx

namespace diagonal {
constexpr attn::Index width = 3;
}

}  // namespace given
