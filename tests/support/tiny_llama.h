// Checkpoints and tokenizers of llama2.c, small enough to be corrupted at every byte; and a reference implementation of
// such a network in double, with plain loops, without Eigen and attn.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "random.h"

namespace attn::test {

inline void append_u32(std::string& bytes, std::uint32_t x) {
  for (int shift = 0; shift < 32; shift += 8) bytes += static_cast<char>(x >> shift & 0xFF);
}
inline void append_float(std::string& bytes, float x) { append_u32(bytes, std::bit_cast<std::uint32_t>(x)); }

/// A row of weights per output; or a single row.
using Weights = std::vector<std::vector<float>>;

struct TinyLlamaLayer {
  std::vector<float> rms_att, rms_ffn;
  Weights wq, wk, wv, wo, w1, w2, w3;
};

struct TinyLlamaSizes {
  std::int32_t dim = 8, hidden_dim = 6, n_layers = 2, n_heads = 4, n_kv_heads = 2, vocab_size = 5, seq_len = 6;
  bool tied = true;

  std::size_t head_dim() const { return static_cast<std::size_t>(dim / n_heads); }
  std::size_t kv_dim() const { return head_dim() * static_cast<std::size_t>(n_kv_heads); }
};

struct TinyLlama {
  TinyLlamaSizes sizes;
  Weights embedding, classifier;
  std::vector<TinyLlamaLayer> layers;
  std::vector<float> rms_final;

  /// A network with random weights of about the size of trained ones.
  TinyLlama(const TinyLlamaSizes& of, std::uint64_t seed) : sizes(of) {
    Random random(seed);
    const auto row = [&](std::size_t size, double middle, double spread) {
      std::vector<float> numbers;
      for (std::size_t i = 0; i < size; ++i)
        numbers.push_back(static_cast<float>(random.uniform(middle - spread, middle + spread)));
      return numbers;
    };
    const auto matrix = [&](std::size_t outputs, std::size_t inputs) {
      Weights rows;
      for (std::size_t i = 0; i < outputs; ++i) rows.push_back(row(inputs, 0, 0.8));
      return rows;
    };
    const auto d = static_cast<std::size_t>(sizes.dim), h = static_cast<std::size_t>(sizes.hidden_dim),
               v = static_cast<std::size_t>(sizes.vocab_size), kv = sizes.kv_dim();
    embedding = matrix(v, d);
    for (std::int32_t l = 0; l < sizes.n_layers; ++l)
      layers.push_back({row(d, 1, 0.5), row(d, 1, 0.5), matrix(d, d), matrix(kv, d), matrix(kv, d), matrix(d, d),
                        matrix(h, d), matrix(d, h), matrix(h, d)});
    rms_final = row(d, 1, 0.5);
    classifier = sizes.tied ? embedding : matrix(v, d);
  }

  /// The contents of the network's checkpoint file.
  std::string bytes() const {
    std::string file;
    for (const std::int32_t size : {sizes.dim, sizes.hidden_dim, sizes.n_layers, sizes.n_heads, sizes.n_kv_heads,
                                    sizes.tied ? sizes.vocab_size : -sizes.vocab_size, sizes.seq_len})
      append_u32(file, static_cast<std::uint32_t>(size));
    const auto row = [&](const std::vector<float>& numbers) {
      for (const float x : numbers) append_float(file, x);
    };
    const auto matrix = [&](const Weights& rows) {
      for (const auto& numbers : rows) row(numbers);
    };
    matrix(embedding);
    for (const auto& layer : layers) row(layer.rms_att);
    for (const auto& layer : layers) matrix(layer.wq);
    for (const auto& layer : layers) matrix(layer.wk);
    for (const auto& layer : layers) matrix(layer.wv);
    for (const auto& layer : layers) matrix(layer.wo);
    for (const auto& layer : layers) row(layer.rms_ffn);
    for (const auto& layer : layers) matrix(layer.w1);
    for (const auto& layer : layers) matrix(layer.w2);
    for (const auto& layer : layers) matrix(layer.w3);
    row(rms_final);
    // The tables of cos and sin must not be read, so they contain NaN.
    for (std::size_t i = 0; i < static_cast<std::size_t>(sizes.seq_len) * sizes.head_dim(); ++i)
      append_float(file, NAN);
    if (!sizes.tied) matrix(classifier);
    return file;
  }
};

/// The contents of a tokenizer with these pieces of text, the likeliest first. `longest` is the maximum length stored
/// in the file.
inline std::string tokenizer_bytes(const std::vector<std::string>& pieces, std::uint32_t longest = 12) {
  std::string file;
  append_u32(file, longest);
  const auto token = [&](float score, const std::string& piece) {
    append_float(file, score);
    append_u32(file, static_cast<std::uint32_t>(piece.size()));
    file += piece;
  };
  for (const char* special : {"<unk>", "\n<s>\n", "\n</s>\n"}) token(0, special);
  for (const char high : std::string("0123456789ABCDEF"))
    for (const char low : std::string("0123456789ABCDEF")) token(0, std::string("<0x") + high + low + '>');
  for (std::size_t i = 0; i < pieces.size(); ++i) token(-static_cast<float>(i), pieces[i]);
  return file;
}

/// The logits after each token of a sequence, by definition: (tokens, vocab_size).
inline std::vector<std::vector<double>> oracle_logits(const TinyLlama& llama, const std::vector<Index>& tokens) {
  using Row = std::vector<double>;
  const auto times = [](const Weights& matrix, const Row& x) {
    Row y;
    for (const auto& row : matrix) {
      double sum = 0;
      for (std::size_t i = 0; i < x.size(); ++i) sum += static_cast<double>(row[i]) * x[i];
      y.push_back(sum);
    }
    return y;
  };
  const auto norm = [](const Row& x, const std::vector<float>& weight) {
    double squares = 0;
    for (const double element : x) squares += element * element;
    Row y;
    for (std::size_t i = 0; i < x.size(); ++i)
      y.push_back(static_cast<double>(weight[i]) * x[i] / std::sqrt(squares / static_cast<double>(x.size()) + 1e-5));
    return y;
  };
  const std::size_t head_dim = llama.sizes.head_dim();
  const auto rotated = [head_dim](Row x, std::size_t position) {
    for (std::size_t i = 0; i < x.size(); i += 2) {
      const double pair = static_cast<double>(i % head_dim) / static_cast<double>(head_dim);
      const double angle = static_cast<double>(position) * std::pow(10000, -pair), a = x[i], b = x[i + 1];
      x[i] = a * std::cos(angle) - b * std::sin(angle);
      x[i + 1] = a * std::sin(angle) + b * std::cos(angle);
    }
    return x;
  };
  const auto add = [](Row& x, const Row& y) {
    for (std::size_t i = 0; i < x.size(); ++i) x[i] += y[i];
  };

  const auto heads = static_cast<std::size_t>(llama.sizes.n_heads),
             group = heads / static_cast<std::size_t>(llama.sizes.n_kv_heads);
  std::vector<std::vector<Row>> keys(llama.layers.size()), values(llama.layers.size());
  std::vector<Row> all;
  for (std::size_t t = 0; t < tokens.size(); ++t) {
    const auto& embedded = llama.embedding[static_cast<std::size_t>(tokens[t])];
    Row x(embedded.begin(), embedded.end());
    for (std::size_t l = 0; l < llama.layers.size(); ++l) {
      const TinyLlamaLayer& layer = llama.layers[l];
      const Row in = norm(x, layer.rms_att), q = rotated(times(layer.wq, in), t);
      keys[l].push_back(rotated(times(layer.wk, in), t));
      values[l].push_back(times(layer.wv, in));
      Row out(x.size(), 0);
      for (std::size_t h = 0; h < heads; ++h) {
        const std::size_t from = h * head_dim, kv_from = h / group * head_dim;
        Row weights;
        double total = 0;
        for (std::size_t s = 0; s <= t; ++s) {
          double dot = 0;
          for (std::size_t d = 0; d < head_dim; ++d) dot += q[from + d] * keys[l][s][kv_from + d];
          weights.push_back(std::exp(dot / std::sqrt(static_cast<double>(head_dim))));
          total += weights.back();
        }
        for (std::size_t s = 0; s <= t; ++s)
          for (std::size_t d = 0; d < head_dim; ++d) out[from + d] += weights[s] / total * values[l][s][kv_from + d];
      }
      add(x, times(layer.wo, out));
      const Row inner = norm(x, layer.rms_ffn), up = times(layer.w3, inner);
      Row gate = times(layer.w1, inner);
      for (std::size_t i = 0; i < gate.size(); ++i) gate[i] *= up[i] / (1 + std::exp(-gate[i]));
      add(x, times(layer.w2, gate));
    }
    all.push_back(times(llama.classifier, norm(x, llama.rms_final)));
  }
  return all;
}

}  // namespace attn::test
