// A small program for every compiler, standard library and optimisation level: calls with a mask, gradients and a
// cache, in three scalar types and on every instruction set of the machine. Returns 0 if all results match naive ones.
#include <cmath>
#include <cstdint>
#include <cstdio>

#include "attn/attn.h"

namespace {

using attn::Index;

int failures = 0;

/// Numbers between -1 and 1 that T can hold.
template <class T>
attn::Tensor<T, 4> drawn(const attn::Shape<4>& shape, std::uint32_t seed) {
  attn::Tensor<T, 4> x(shape);
  for (Index i = 0; i < x.size(); ++i) {
    seed = seed * 1664525u + 1013904223u;
    x.data()[i] = static_cast<T>(static_cast<float>(seed >> 8) / 8388608.f - 1);
  }
  return x;
}

template <class X, class Y>
void expect_near(const X& got, const Y& wanted, double allowed, const char* what, const char* type, attn::Isa isa) {
  double error = got.size() == wanted.size() ? 0 : HUGE_VAL;
  for (Index i = 0; i < got.size() && i < wanted.size(); ++i) {
    const double difference = std::abs(static_cast<double>(got.data()[i]) - static_cast<double>(wanted.data()[i]));
    if (!(difference <= error)) error = difference;  // NaN too
  }
  if (error <= allowed) return;
  ++failures;
  const std::string_view name = attn::to_string(isa);
  std::printf("%s of %s on %.*s: error %g, allowed %g\n", what, type, static_cast<int>(name.size()), name.data(), error,
              allowed);
}

template <class T>
void run(const char* type, double allowed) {
  // Rows of 21 elements end within a vector of every width.
  const Index heads = 4, kv_heads = 2, keys = 75, dim = 21;
  const auto mods =
      attn::mask_mod([](const attn::Position& p) { return p.q == p.kv || (p.q + p.kv) % 3 != 0; }) | attn::causal();
  const auto k = drawn<T>({1, kv_heads, keys, dim}, 1), v = drawn<T>({1, kv_heads, keys, dim}, 2);
  for (const attn::Isa isa : attn::kIsas) {
    if (!attn::available(isa)) continue;
    const attn::Options options{.executor = attn::serial(), .isa = isa};
    for (const Index rows : {Index{1}, Index{5}, keys}) {
      const auto q = drawn<T>({1, heads, rows, dim}, 3), grad_out = drawn<T>({1, heads, rows, dim}, 4);
      const auto wanted = attn::naive_attention(q, k, v, mods, options);
      const auto got = attn::attention(q, k, v, mods, options);
      expect_near(got.out, wanted.out, allowed, "out", type, isa);
      expect_near(got.lse, wanted.lse, allowed, "lse", type, isa);
      const auto gradients = attn::attention_backward(grad_out, q, k, v, got, mods, options);
      const auto right = attn::naive_attention_backward(grad_out, q, k, v, mods, options);
      const double of_sum = 4 * allowed;  // a key's gradient is a sum over the queries of two heads
      expect_near(gradients.query, right.query, of_sum, "gradient of queries", type, isa);
      expect_near(gradients.key, right.key, of_sum, "gradient of keys", type, isa);
      expect_near(gradients.value, right.value, of_sum, "gradient of values", type, isa);
      attn::KvCache<T> cache({.kv_heads = kv_heads, .head_dim = dim});
      cache.append(k.slice(2, 0, 40), v.slice(2, 0, 40));
      cache.append(k.slice(2, 40, keys), v.slice(2, 40, keys));
      expect_near(attn::attention(q, cache, mods, options).out, wanted.out, allowed, "out over a cache", type, isa);
    }
  }
}

}  // namespace

int main() {
  // With g++ 12 and clang 14, errors reach 0.1 to 0.5 of these.
  run<float>("float", 2e-6);
  run<double>("double", 4e-15);
  run<Eigen::bfloat16>("bfloat16", 0.01);
  return failures == 0 ? 0 : 1;
}
