// Whole calls with one instruction set.
#include <attn/attn.h>

#include <cstring>

#include "support/random.h"
#include "units.h"

namespace attn::test {
inline namespace ATTN_BUILT_FOR {

template <class X>
void append(std::vector<unsigned char>& bytes, const X& x) {
  const auto* const first = reinterpret_cast<const unsigned char*>(x.data());
  bytes.insert(bytes.end(), first, first + x.size() * static_cast<Index>(sizeof(*x.data())));
}

/// A prompt of a few tiles, and its gradients.
template <class T>
std::vector<unsigned char> prompt(Isa isa, int seed) {
  Random random(static_cast<std::uint64_t>(seed));
  const Index q_len = random.integer(9, 70), kv_len = q_len + random.integer(0, 150), dim = random.integer(1, 80);
  const auto q = drawn<T>({1, 2, q_len, dim}, random), k = drawn<T>({1, 1, kv_len, dim}, random),
             v = drawn<T>({1, 1, kv_len, dim}, random), grad = drawn<T>({1, 2, q_len, dim}, random);
  const auto mods = causal() | softcap(20);
  const Options options{.executor = serial(), .isa = isa};
  const auto result = attention(q, k, v, mods, options);
  const auto grads = attention_backward(grad, q, k, v, result, mods, options);
  std::vector<unsigned char> bytes;
  append(bytes, result.out);
  append(bytes, result.lse);
  append(bytes, grads.query);
  append(bytes, grads.key);
  append(bytes, grads.value);
  return bytes;
}

/// Some tokens over a cache.
template <class T, class Stored>
std::vector<unsigned char> tokens(Isa isa, int seed) {
  Random random(static_cast<std::uint64_t>(seed));
  const Index kv_len = random.integer(70, 300), dim = 64, heads = 2;
  KvCache<Stored> cache({.batch = 1, .kv_heads = heads, .capacity = 320, .head_dim = dim});
  cache.append(drawn<T>({1, heads, kv_len, dim}, random), drawn<T>({1, heads, kv_len, dim}, random));
  std::vector<unsigned char> bytes;
  for (const Index q_len : {1, 3, 20}) {
    const auto q = drawn<T>({1, heads, q_len, dim}, random);
    append(bytes, attention(q, cache, causal(), Options{.executor = serial(), .isa = isa}).out);
  }
  return bytes;
}

std::vector<unsigned char> results(const std::string& kind, Isa isa, int seed) {
  if (kind == "float") return prompt<float>(isa, seed);
  if (kind == "double") return prompt<double>(isa, seed);
  if (kind == "bfloat16") return prompt<Eigen::bfloat16>(isa, seed);
  if (kind == "half") return prompt<Eigen::half>(isa, seed);
  if (kind == "int8 cache") return tokens<float, std::int8_t>(isa, seed);
  if (kind == "bfloat16 cache") return tokens<Eigen::bfloat16, Eigen::bfloat16>(isa, seed);
  throw std::logic_error("no such call: " + kind);
}

}  // namespace ATTN_BUILT_FOR

#if defined(ATTN_SOFTWARE_AVX512)
std::vector<unsigned char> software_results(const std::string& kind, Isa isa, int seed) {
  return results(kind, isa, seed);
}
bool software_has(Isa isa) { return available(isa); }
#else
std::vector<unsigned char> hardware_results(const std::string& kind, Isa isa, int seed) {
  return results(kind, isa, seed);
}
bool hardware_has(Isa isa) { return available(isa); }
#endif

}  // namespace attn::test
