// A call of few tokens, and the same computation written by hand with Eigen. One head, float, on the calling thread.
#pragma once

#include <cmath>
#include <cstddef>
#include <vector>

#include <attn/attn.h>

namespace bench {

using attn::Index;
using RowMajor = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using ColMajor = Eigen::MatrixXf;

struct Sizes {
  Index q_len, kv_len, dim;
};

template <class Matrix>
struct SmallCall {
  explicit SmallCall(const Sizes& s)
      : q(Matrix::Random(s.q_len, s.dim)),
        k(Matrix::Random(s.kv_len, s.dim)),
        v(Matrix::Random(s.kv_len, s.dim)),
        out(s.q_len, s.dim),
        scores(s.q_len, s.kv_len),
        memory(attn::workspace_bytes(q, k, v, attn::Mods<>(), options)) {}

  /// What one would write by hand: nothing is allocated, and the softmax is Eigen's.
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

  attn::Options options{.executor = attn::serial()};
  Matrix q, k, v, out, scores;
  std::vector<std::byte> memory;
};

}  // namespace bench
