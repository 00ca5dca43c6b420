// Prints a hash of the bits of results for each kind of call and each set of vectors. The hashes must not depend on
// what the compiler may fuse (-ffp-contract), because kernels state which products and sums are fused. Score changes
// such as softcap(), which are functions like those of programs, are left out: there the compiler chooses.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <type_traits>

#include "attn/attn.h"

namespace {

using attn::Index;

/// FNV-1a over the bits of numbers.
class Hash {
 public:
  template <class Tensor>
  Hash& operator<<(const Tensor& x) {
    const auto* const bytes = reinterpret_cast<const unsigned char*>(x.data());
    for (std::size_t i = 0; i < static_cast<std::size_t>(x.size()) * sizeof(*x.data()); ++i)
      value_ = (value_ ^ bytes[i]) * 1099511628211u;
    return *this;
  }
  unsigned long long value() const { return value_; }

 private:
  std::uint64_t value_ = 14695981039346656037u;
};

template <class T>
attn::Tensor<T, 4> numbers(Index heads, Index len, Index dim, Index seed) {
  attn::Tensor<T, 4> x({2, heads, len, dim});
  for (Index i = 0; i < x.size(); ++i)
    x.data()[i] = static_cast<T>(static_cast<float>((37 * i * i + seed) % 1009 - 504) / 256);
  return x;
}

template <class T>
using Matrix = Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic>;
template <class T>
Matrix<T> matrix(Index rows, Index columns, Index seed) {
  Matrix<T> x(rows, columns);
  for (Index i = 0; i < x.size(); ++i)
    x.data()[i] = static_cast<T>(static_cast<float>((37 * i * i + seed) % 1009 - 504) / 256);
  return x;
}

/// Fewer kinds of calls for double, whose kernels have the same source.
template <class T>
void print(const char* scalar, attn::Isa isa) {
  const attn::Options options{.executor = attn::serial(), .isa = isa};
  const auto say = [&](const char* what, const Hash& hash) {
    std::printf("%s %s %s %016llx\n", attn::to_string(isa).data(), scalar, what, hash.value());
  };
  const auto k = numbers<T>(2, 300, 40, 2), v = numbers<T>(2, 300, 36, 3), one = numbers<T>(4, 1, 40, 4),
             few = numbers<T>(4, 3, 40, 5);
  const auto q = numbers<T>(4, 70, 40, 1), grad = numbers<T>(4, 70, 36, 6);
  const auto mods = attn::causal() | attn::alibi({0.5, 0.25, 0.125, 0.0625});
  const auto r = attn::attention(q, k, v, mods, options);
  say("prefill", Hash() << r.out << r.lse);
  say("token",
      Hash() << attn::attention(one, k, v, mods, options).out << attn::attention(few, k, v, mods, options).out);
  const auto g = attn::attention_backward(grad, q, k, v, r, mods, options);
  say("backward", Hash() << g.query << g.key << g.value);
  const Matrix<T> keys = matrix<T>(90, 24, 2), values = matrix<T>(90, 20, 3);
  const auto by_columns = [&](Index q_len) {
    return attn::attention(matrix<T>(q_len, 24, 1), keys, values, attn::causal(), options).out;
  };
  say("column-major", Hash() << by_columns(50) << by_columns(2));
  if constexpr (std::is_same_v<T, float>) {
    say("jvp", Hash() << attn::attention_jvp(q, k, v, q, k, v, mods, options).tangent);
    const auto q1 = numbers<T>(4, 70, 40, 7), v1 = numbers<T>(4, 70, 36, 8);
    say("linear", Hash() << attn::linear_attention(q, q1, v1, attn::elu1(), options).out);
    attn::Options sigmoid = options;
    sigmoid.normaliser = attn::Normaliser::sigmoid(-2);
    const auto sr = attn::attention(q, k, v, mods, sigmoid);
    say("sigmoid", Hash() << sr.out << attn::attention(one, k, v, mods, sigmoid).out);
    const auto sg = attn::attention_backward(grad, q, k, v, sr, mods, sigmoid);
    say("sigmoid-backward", Hash() << sg.query << sg.key << sg.value);
    const auto ga = attn::gated_attention(q, q1, v1, attn::retention_decay(4), options);
    say("gated", Hash() << ga.out);
    const auto gg = attn::gated_attention_backward(grad, q, q1, v1, attn::retention_decay(4), options);
    say("gated-backward", Hash() << gg.query << gg.key << gg.value);
    attn::Tensor<T, 3> beta({2, 4, 70});
    for (Index i = 0; i < beta.size(); ++i) beta.data()[i] = T(0.5) + T(i % 5) / 16;
    say("delta", Hash() << attn::gated_delta_rule(q, q1, v1, attn::retention_decay(4), beta, options).out);
    const auto cached = [&]<class S>(const char* what, S) {
      attn::KvCache<S> cache({.batch = 2, .kv_heads = 2, .head_dim = 40, .v_dim = 36});
      cache.append(k, v);
      say(what, Hash() << attn::attention(q, cache, mods, options).out << attn::attention(one, cache, mods, options).out
                       << attn::attention(few, cache, mods, options).out);
    };
    cached("float-cache", float());
    cached("half-cache", Eigen::half());
    cached("bf16-cache", Eigen::bfloat16());
    cached("i8-cache", std::int8_t());
  }
}

}  // namespace

int main() {
  for (const attn::Isa isa : attn::kIsas) {
    if (!attn::available(isa)) continue;
    print<float>("float", isa);
    print<double>("double", isa);
  }
}
