// Building blocks of output_hashes: seeded random values, a hash, and calls whose results are hashed.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector>

#include <attn/attn.h>
#include "../support/executors.h"

namespace attn::hashes {

/// FNV-1a over values.
class Hash {
 public:
  std::uint64_t value() const { return value_; }

  template <class T>
  void add(T x) {
    if constexpr (std::is_integral_v<T>) {
      add_bits(static_cast<std::uint64_t>(x));
    } else if constexpr (sizeof(T) <= sizeof(double)) {
      add_double(static_cast<double>(x));
    } else {  // long double has padding bytes
      const double high = static_cast<double>(x);
      add_double(high);
      add_double(std::isfinite(high) ? static_cast<double>(x - static_cast<T>(high)) : 0.0);
    }
  }

 private:
  /// All NaNs hash alike: which operand's NaN an instruction returns is the compiler's choice.
  void add_double(double x) {
    std::uint64_t bits = 1;
    if (!std::isnan(x)) std::memcpy(&bits, &x, sizeof(bits));
    add_bits(bits);
  }
  void add_bits(std::uint64_t bits) {
    for (int i = 0; i < 8; ++i, bits >>= 8) value_ = (value_ ^ (bits & 0xff)) * 0x100000001b3u;
  }

  std::uint64_t value_ = 0xcbf29ce484222325u;
};

/// SplitMix64 (Steele et al. 2014): the same values with every library and compiler.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}

  /// begin..end, both included.
  Index integer(Index begin, Index end) {
    return begin + static_cast<Index>(next() % static_cast<std::uint64_t>(end - begin + 1));
  }
  Index pick(std::initializer_list<Index> from) {
    return from.begin()[integer(0, static_cast<Index>(from.size()) - 1)];
  }
  bool chance(double p) { return real() < p; }
  /// In [-2, 2), a multiple of 2^-10: exact in half, rounded in bfloat16.
  float number() { return static_cast<float>(std::floor(real() * 4096) / 1024 - 2); }

 private:
  double real() { return static_cast<double>(next() >> 11) * 0x1p-53; }
  std::uint64_t next() {
    std::uint64_t z = state_ += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }

  std::uint64_t state_;
};

/// The calls of one family with one instruction set.
struct Run {
  Isa isa;
  Random random{20260101};
  Hash hash = {};
  Index calls = 0;

  /// Options with the instruction set, and one worker or three.
  Options options(Options given = {}) {
    static const Executor three = test::eager_threads(3);
    given.isa = isa;
    given.executor = random.chance(0.5) ? serial() : three;
    return given;
  }

  template <class T>
  Tensor<T, 4> tensor(const Shape<4>& shape) {
    auto t = Tensor<T, 4>::uninitialized(shape);
    for (Index i = 0; i < t.size(); ++i) t.data()[i] = static_cast<T>(random.number());
    return t;
  }

  template <class T, int Rank>
  void record(const Tensor<T, Rank>& t) {
    for (Index i = 0; i < t.size(); ++i) hash.add(t.data()[i]);
  }
  template <class Derived>
  void record(const Eigen::DenseBase<Derived>& m) {
    for (Index i = 0; i < m.rows(); ++i)
      for (Index j = 0; j < m.cols(); ++j) hash.add(m(i, j));
  }
  /// Records the numbers of tiles, but not those of workers or bytes.
  void record(const Explanation& e) {
    for (const Index n : {e.query_tiles, e.full_tiles, e.masked_tiles, e.skipped_tiles}) hash.add(n);
  }

  template <class Q, class K, class V, class M = Mods<>>
  auto attention(const Q& q, const K& k, const V& v, const M& mods = {}, const Options& given = {}) {
    const Options options = this->options(given);
    auto r = attn::attention(q, k, v, mods, options);
    record(r.out);
    record(r.lse);
    record(attn::explain(q, k, v, mods, options));
    ++calls;
    return r;
  }
  template <class Q, class Cache, class M>
  void attention_over(const Q& q, const Cache& cache, const M& mods) {
    const Options options = this->options();
    const auto r = attn::attention(q, cache, mods, options);
    record(r.out);
    record(r.lse);
    record(attn::explain(q, cache, mods, options));
    ++calls;
  }
};

/// Tensors of a call: (batch, heads, q_len, head_dim), (batch, kv_heads, kv_len, head_dim), (batch, kv_heads, kv_len,
/// v_dim).
struct Sizes {
  Index batch, heads, kv_heads, q_len, kv_len, head_dim, v_dim;
};
template <class T, class U = T>
struct Inputs {
  Inputs(Run& run, const Sizes& s)
      : q(run.tensor<T>({s.batch, s.heads, s.q_len, s.head_dim})),
        k(run.tensor<U>({s.batch, s.kv_heads, s.kv_len, s.head_dim})),
        v(run.tensor<U>({s.batch, s.kv_heads, s.kv_len, s.v_dim})) {}
  Tensor<T, 4> q;
  Tensor<U, 4> k, v;
};

inline Sizes draw_sizes(Random& r) {
  const Index kv_heads = r.integer(1, 2), head_dim = r.pick({1, 7, 16, 32, 64, 80, 128});
  return {r.integer(1, 2),
          kv_heads * r.pick({1, 1, 2, 3}),
          kv_heads,
          r.pick({0, 1, 2, 4, 5, 16, 33, 48, 49, 97, 130}),
          r.pick({0, 1, 7, 63, 64, 65, 128, 129, 200, 333}),
          head_dim,
          r.chance(0.7) ? head_dim : r.pick({1, 8, 31, 96})};
}

}  // namespace attn::hashes
