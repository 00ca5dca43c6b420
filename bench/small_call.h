// Small calls, and the same computations written by hand with Eigen. Float, on the calling thread.
#pragma once

#include <cmath>
#include <cstddef>
#include <functional>
#include <initializer_list>
#include <limits>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include <attn/attn.h>

#include "random_tensor.h"
#include "read.h"

namespace bench {

using attn::Index;
using RowMajor = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using ColMajor = Eigen::MatrixXf;

struct Sizes {
  Index q_len, kv_len, dim, heads = 1;
};

/// One head.
template <class Matrix>
struct SmallCall {
  explicit SmallCall(const Sizes& s)
      : q(Matrix::Random(s.q_len, s.dim)),
        k(Matrix::Random(s.kv_len, s.dim)),
        v(Matrix::Random(s.kv_len, s.dim)),
        out(s.q_len, s.dim),
        scores(s.q_len, s.kv_len),
        memory(attn::workspace_bytes(q, k, v, attn::Mods<>(), options)) {}

  /// Computes the same with plain Eigen code, in preallocated matrices.
  void by_hand() {
    const float scale = 1 / std::sqrt(static_cast<float>(q.cols()));
    scores.noalias() = scale * q * k.transpose();
    scores = (scores.colwise() - scores.rowwise().maxCoeff()).array().exp().matrix();
    scores.array().colwise() /= scores.rowwise().sum().array().eval();
    out.noalias() = scores * v;
  }
  void allocating() { out = attn::attention(q, k, v, attn::Mods<>(), options).out; }
  void into() { attn::attention_into(out, q, k, v, attn::Mods<>(), options); }
  void into_with_workspace() {
    attn::Options with = options;
    with.workspace = memory;
    attn::attention_into(out, q, k, v, attn::Mods<>(), with);
  }

  Eigen::Map<Eigen::ArrayXf> result() { return {out.data(), out.size()}; }

  attn::Options options{.executor = attn::serial()};
  Matrix q, k, v, out, scores;
  std::vector<std::byte> memory;
};

/// One token, with a separate key and value head per query head.
struct OneToken {
  explicit OneToken(const Sizes& s)
      : q(random_tensor({1, s.heads, 1, s.dim}, 1)),
        k(random_tensor({1, s.heads, s.kv_len, s.dim}, 2)),
        v(random_tensor({1, s.heads, s.kv_len, s.dim}, 3)),
        out({1, s.heads, 1, s.dim}),
        scores(s.kv_len),
        cache({.batch = 1, .kv_heads = s.heads, .capacity = s.kv_len, .head_dim = s.dim}),
        keys_and_values({bytes_of(k.data(), k.size()), bytes_of(v.data(), v.size())}),
        memory(attn::workspace_bytes(q, k, v, attn::Mods<>(), {.executor = attn::serial()})),
        options{.executor = attn::serial(), .workspace = memory} {
    cache.append(k, v);
  }

  /// Computes the same with plain Eigen code.
  void by_hand() {
    const Index keys = k.dim(2), dim = k.dim(3);
    const float scale = 1 / std::sqrt(static_cast<float>(dim));
    for (Index h = 0; h < k.dim(1); ++h) {
      const Eigen::Map<const Eigen::VectorXf> query(&q(0, h, 0, 0), dim);
      const Eigen::Map<const RowMajor> key(&k(0, h, 0, 0), keys, dim), value(&v(0, h, 0, 0), keys, dim);
      Eigen::Map<Eigen::VectorXf> result(&out(0, h, 0, 0), dim);
      scores.noalias() = key * query;
      scores *= scale;
      scores = (scores.array() - scores.maxCoeff()).exp().matrix();
      result.noalias() = value.transpose() * scores;
      result /= scores.sum();
    }
  }
  void into() { attn::attention_into(out, q, k, v, attn::Mods<>(), options); }
  void over_cache() { attn::attention_into(out, q, cache, attn::Mods<>(), options); }
  void read() { keys_and_values.read(options.executor); }

  Eigen::Map<Eigen::ArrayXf> result() { return {out.data(), out.size()}; }

  attn::Tensor<float, 4> q, k, v, out;
  Eigen::VectorXf scores;
  attn::KvCache<float> cache;
  Memory keys_and_values;
  std::vector<std::byte> memory;
  attn::Options options;
};

/// Returns calls of the given members of a Call, after checking that each computes the same as the first.
template <class Call>
std::vector<std::function<void()>> equal_variants(const std::shared_ptr<Call>& call,
                                                  std::initializer_list<void (Call::*)()> variants) {
  std::vector<std::function<void()>> calls;
  Eigen::ArrayXf expected;
  for (const auto variant : variants) {
    call->result().setConstant(std::numeric_limits<float>::quiet_NaN());
    calls.push_back([call, variant] { (*call.*variant)(); });
    calls.back()();
    if (calls.size() == 1) expected = call->result();
    const Eigen::ArrayXf differences = (call->result() - expected).abs();
    if (!(differences <= 1e-4f).all())  // false for NaN too
      throw std::runtime_error("variant " + std::to_string(calls.size()) + " differs from the first by " +
                               std::to_string(differences.maxCoeff()));
  }
  return calls;
}

}  // namespace bench
