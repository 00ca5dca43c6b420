// Prints a hash of the results of a seeded set of calls, a line for each family of calls and each instruction set that
// can be forced. Run it before and after a change that must not change a bit:
//
//     output_hashes > before; …; output_hashes | diff before -
//     ATTN_SOFTWARE_TILES=1 output_hashes --isa amx          the matrix unit's kernels on emulated registers
//
// Compare builds with the same compiler and flags only: contraction of sums to FMAs is up to the compiler.
#include <cstdio>
#include <limits>
#include <string>
#include <string_view>

#include "hashed.h"

namespace attn::hashes {
namespace {

template <class T>
void tensors(Run& run) {
  for (int i = 0; i < 12; ++i) {
    const Inputs<T> x(run, draw_sizes(run.random));
    run.attention(x.q, x.k, x.v);
    const auto r = run.attention(x.q, x.k, x.v, causal(), {.scale = 0.3, .q_offset = run.random.integer(-3, 40)});
    // Similar calls in other memory layouts: keys as (batch, len, heads, dim), and column-major matrices.
    Tensor<T, 4> inside({x.k.dim(0), x.k.dim(2), x.k.dim(1), x.k.dim(3)});
    auto k = bshd(inside.data(), x.k.dim(0), x.k.dim(2), x.k.dim(1), x.k.dim(3));
    for (Index b = 0; b < k.dim(0); ++b)
      for (Index h = 0; h < k.dim(1); ++h)
        for (Index j = 0; j < k.dim(2); ++j)
          for (Index d = 0; d < k.dim(3); ++d) k(b, h, j, d) = x.k(b, h, j, d);
    run.attention(x.q, k, x.v);
    using Columns = Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic>;
    const Columns q0 = x.q.matrix(0, 0), k0 = x.k.matrix(0, 0), v0 = x.v.matrix(0, 0);
    run.attention(q0, k0, v0, causal());
  }
}

void masks(Run& run) {
  const Inputs<float> x(run, {2, 4, 2, 130, 200, 64, 48});
  const auto call = [&](const auto& mask) { run.attention(x.q, x.k, x.v, mask); };
  call(causal());
  call(sliding_window(40, 7));
  call(prefix_lm({5, 90}));
  call(key_lengths({12, 200}) | query_lengths({130, 3}));
  call(key_ranges({0, 77}, {12, 150}));
  Tensor<bool, 2> kept({2, 200});
  for (Index i = 0; i < kept.size(); ++i) kept.data()[i] = run.random.chance(0.6);
  call(keep_keys(kept));
  call(documents_at({0, 70, 71, 140, 200}) | causal());
  Tensor<bool, 4> map({1, 4, 9, 7});
  for (Index i = 0; i < map.size(); ++i) map.data()[i] = run.random.chance(0.4);
  call(block_sparse(map, 16, 32));
  call(global_tokens({3, 80}) | causal());
  call(any_of(sliding_window(9), global_tokens({100})));
  call(not_(causal()));
  call(mask_mod([](auto p) { return (p.q - p.kv) % 2 == 0; }));
  call(block_mask(mask_mod([](auto p) { return p.kv / 20 != p.q / 30; }), 130, 200, {.isa = run.isa}));
}

void mods(Run& run) {
  const Inputs<float> x(run, {2, 4, 2, 97, 190, 64, 64});
  const auto call = [&](const auto& mods) { run.attention(x.q, x.k, x.v, mods); };
  call(softcap(5));
  call(softcap(50) | causal());
  call(alibi({0.5, 0.25, 0.125, 0.1}) | causal());
  call(temperature({1, 2, 3, 4}) | sliding_window(30));
  call(sinks({0.5, -1, 3, -std::numeric_limits<double>::infinity()}) | causal());
  Tensor<float, 4> table({1, 4, 97, 190});
  for (Index i = 0; i < table.size(); ++i)
    table.data()[i] = run.random.chance(0.1) ? -std::numeric_limits<float>::infinity() : run.random.number();
  call(bias(table));
  call(score_mod([](auto s, auto p) { return s * static_cast<decltype(s)>(0.5 + static_cast<double>(p.kv % 3)); }));
  const Inputs<double> y(run, {1, 2, 1, 70, 150, 33, 40});
  run.attention(y.q, y.k, y.v, softcap(5) | causal() | sinks({1, 2}));
}

/// Passes over groups of tokens, some of which continue from earlier results.
void groups(Run& run) {
  const Inputs<float> x(run, {1, 2, 1, 700, 720, 32, 32});
  run.attention(x.q, x.k, x.v, strided_sparse(24));
  run.attention(x.q, x.k, x.v, fixed_sparse(64, 2));
  run.attention(x.q, x.k, x.v, dilated(300, 5));
  const Inputs<Eigen::bfloat16> y(run, {1, 2, 1, 700, 720, 32, 32});
  run.attention(y.q, y.k, y.v, strided_sparse(24));
  run.attention(y.q, y.k, y.v, fixed_sparse(64, 2) | causal());
}

/// Few queries: single ones, keys in splits, heads that share keys.
template <class Q, class K>
void decode(Run& run) {
  for (const Index q_len : {1, 2, 4})
    for (const Index kv_len : {1, 70, 500, 3000})
      for (const Index heads : {2, 8}) {
        const Inputs<Q, K> x(run, {1, heads, 2, q_len, kv_len, 64, run.random.pick({64, 64, 40})});
        run.attention(x.q, x.k, x.v);
        run.attention(x.q, x.k, x.v, sliding_window(run.random.integer(0, kv_len)) | softcap(20));
      }
}

/// Stretches of keys that are summed separately.
template <class T>
void long_keys(Run& run) {
  for (const Index q_len : {3, 50}) {
    const Inputs<T> x(run, {1, 1, 1, q_len, 9000, 32, 32});
    run.attention(x.q, x.k, x.v, causal());
    run.attention(x.q, x.k, x.v, mask_mod([](auto p) { return p.kv % 64 != 5; }), {.scale = 4.0});
  }
}

template <class Q, class K>
void halves(Run& run, Compute compute) {
  for (int i = 0; i < 10; ++i) {
    const Inputs<Q, K> x(run, draw_sizes(run.random));
    run.attention(x.q, x.k, x.v, Mods<>(), {.compute = compute});
    run.attention(x.q, x.k, x.v, causal(), {.q_offset = run.random.integer(-3, 40), .compute = compute});
    run.attention(x.q, x.k, x.v, softcap(5) | sliding_window(30), {.compute = compute});
  }
}

/// Non-finite values, masked and unmasked, and scores that overflow a product.
template <class T>
void extremes(Run& run, Compute compute) {
  for (const Index q_len : {2, 90})
    for (const float x : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
      Inputs<T> in(run, {1, 4, 2, q_len, 200, 64, 64});
      for (int i = 0; i < 6; ++i) {
        in.v(0, run.random.integer(0, 1), run.random.integer(100, 199), run.random.integer(0, 63)) = static_cast<T>(x);
        in.k(0, run.random.integer(0, 1), run.random.integer(150, 199), 0) = static_cast<T>(-x);
      }
      run.attention(in.q, in.k, in.v, causal(), {.q_offset = 60, .compute = compute});
      run.attention(in.q, in.k, in.v, key_lengths({100}), {.compute = compute});
      run.attention(in.q, in.k, in.v, Mods<>(), {.compute = compute});
      for (Index i = 0; i < in.q.size(); ++i)
        in.q.data()[i] = static_cast<T>(1e19f * static_cast<float>(in.q.data()[i]));
      for (Index i = 0; i < in.k.size(); ++i)
        in.k.data()[i] = static_cast<T>(1e19f * static_cast<float>(in.k.data()[i]));
      run.attention(in.q, in.k, in.v, key_lengths({100}), {.compute = compute});
    }
}

template <class T>
void caches(Run& run) {
  using Q = typename KvCache<T>::Computed;
  const Rope rope({.head_dim = 32});
  for (const Index page_size : {16, 64, 100}) {
    const auto prompt = run.tensor<Q>({2, 2, 180, 32}), more = run.tensor<Q>({1, 2, 3, 32});
    KvCache<T> cache({.batch = 2, .kv_heads = 2, .head_dim = 32, .rope = rope});
    cache.append(prompt, prompt);
    cache.append(more, more, {1, 2});
    PagedKvCache<T> pages({.pages = 64, .page_size = page_size, .kv_heads = 2, .head_dim = 32});
    const Index a = pages.add(), b = pages.add();
    pages.append({a, b}, prompt, prompt);
    const Index c = pages.fork(b, 77);
    pages.append({a, c}, more, more, {1, 2});
    for (const Index q_len : {1, 3, 60}) {
      const auto q = run.tensor<Q>({2, 8, q_len, 32});
      run.attention_over(q, cache, causal());
      run.attention_over(q, pages.select({c, a}), sliding_window(50));
      const auto all = run.tensor<Q>({1, 8, q_len + 42, 32});
      run.attention_over(ragged(all, {q_len, 1, 41}), pages.select({a, b, c}), causal());
    }
  }
}

template <class T>
void parts(Run& run) {
  for (int i = 0; i < 6; ++i) {
    Sizes sizes = draw_sizes(run.random);
    sizes.kv_len = 150;
    const Inputs<T> x(run, sizes);
    const auto part = [&](Index begin, Index end) {
      return run.attention(x.q, x.k.slice(2, begin, end), x.v.slice(2, begin, end), causal(), {.q_offset = 70 - begin});
    };
    const auto all = merge(part(0, 60), part(60, 101), part(101, 150));
    run.record(all.out);
    run.record(all.lse);
  }
}

template <class T>
void weights(Run& run) {
  for (int i = 0; i < 5; ++i) {
    const Inputs<T> x(run, draw_sizes(run.random));
    const auto mods = causal() | softcap(10);
    const Options options = run.options({.q_offset = 30});
    const auto lse = run.attention(x.q, x.k, x.v, mods, {.q_offset = 30}).lse;
    run.record(attention_mass(x.q, x.k, lse, mods, options));
    run.record(entropy(x.q, x.k, lse, mods, options));
    const auto top = top_k_weights(x.q, x.k, lse, 3, mods, options);
    run.record(top.keys);
    run.record(top.weights);
  }
}

template <class T>
void definition(Run& run) {
  const Inputs<T> x(run, {1, 4, 2, 33, 65, 24, 16});
  const auto r = naive_attention(x.q, x.k, x.v, causal() | softcap(10), run.options());
  run.record(r.out);
  run.record(r.lse);
  run.record(r.weights);
  ++run.calls;
}

using bf16 = Eigen::bfloat16;
using f16 = Eigen::half;

/// Keys listed for each query, in runs and one by one, with gradients.
template <class T>
void lists(Run& run) {
  for (const Index q_len : {1, 3, 90}) {
    const Inputs<T> x(run, {2, 4, 2, q_len, 300, 64, 48});
    Tensor<Index, 4> keys({2, 2, q_len, 70});
    for (Index i = 0; i < keys.size(); ++i) keys.data()[i] = run.random.integer(-1, 299);
    const auto listed = select(keys);
    const Options options{.isa = run.isa};
    const auto r = attention(x.q, x.k, x.v, listed, options);
    run.record(r.out);
    const auto grads = attention_backward(r.out, x.q, x.k, x.v, r, listed, options);
    for (const auto* grad : {&grads.query, &grads.key, &grads.value}) run.record(*grad);
    run.calls += 2;
  }
}

/// The recurrent forms.
void recurrences(Run& run) {
  const Inputs<float> x(run, {2, 4, 2, 150, 150, 32, 24});
  Tensor<float, 4> gates({2, 2, 150, 32}), a({2, 2, 150, 32}), b({2, 2, 150, 32});
  Tensor<float, 3> gate({2, 2, 150}), beta({2, 2, 150});
  for (auto* t : {&a, &b})
    for (Index i = 0; i < t->size(); ++i) t->data()[i] = run.random.number() / 8;
  for (Index i = 0; i < gates.size(); ++i) gates.data()[i] = -std::abs(run.random.number());
  for (Index i = 0; i < gate.size(); ++i) {
    gate.data()[i] = -std::abs(run.random.number());
    beta.data()[i] = std::abs(run.random.number()) / 64;
  }
  const Options options{.isa = run.isa};
  run.record(linear_attention(x.q, x.k, x.v, elu1(), causal(), options).out);
  run.record(gated_attention(x.q, x.k, x.v, gate, causal(), options).out);
  run.record(gated_attention(x.q, x.k, x.v, gates, causal(), options).out);
  run.record(gated_delta_rule(x.q, x.k, x.v, gate, beta, causal(), options).out);
  run.record(gated_delta_rule(x.q, x.k, x.v, gates, beta, causal(), options).out);
  run.record(dplr_delta_rule(x.q, x.k, x.v, a, b, gates, causal(), options).out);
  run.calls += 6;
}

struct Family {
  const char* name;
  void (*calls)(Run&);
};
constexpr Family kFamilies[] = {
    {"tensors_float", tensors<float>},
    {"tensors_double", tensors<double>},
    {"tensors_long_double", tensors<long double>},
    {"masks", masks},
    {"mods", mods},
    {"groups", groups},
    {"decode_float", decode<float, float>},
    {"decode_double", decode<double, double>},
    {"decode_bf16", decode<bf16, bf16>},
    {"decode_f16", decode<float, f16>},
    {"long_float", long_keys<float>},
    {"long_bf16", long_keys<bf16>},
    {"halves_bf16", [](Run& run) { halves<bf16, bf16>(run, Compute::native); }},
    {"halves_f16", [](Run& run) { halves<f16, f16>(run, Compute::native); }},
    {"halves_mixed", [](Run& run) { halves<float, bf16>(run, Compute::native); }},
    {"halves_rounded", [](Run& run) { halves<float, float>(run, Compute::bf16); }},
    {"extremes_float", [](Run& run) { extremes<float>(run, Compute::native); }},
    {"extremes_bf16", [](Run& run) { extremes<bf16>(run, Compute::native); }},
    {"extremes_rounded", [](Run& run) { extremes<float>(run, Compute::bf16); }},
    {"caches_float", caches<float>},
    {"caches_double", caches<double>},
    {"caches_bf16", caches<bf16>},
    {"caches_f16", caches<f16>},
    {"caches_i8", caches<std::int8_t>},
    {"parts_float", parts<float>},
    {"parts_bf16", parts<bf16>},
    {"weights_float", weights<float>},
    {"weights_double", weights<double>},
    {"definition", definition<float>},
    {"lists_float", lists<float>},
    {"lists_double", lists<double>},
    {"recurrences", recurrences},
};

int print(std::string_view isa_name) {
  bool known = false;
  for (const Isa isa : kIsas) {
    if (!isa_name.empty() && to_string(isa) != isa_name) continue;
    known = true;
    if (!available(isa)) {
      std::fprintf(stderr, "output_hashes: %s is not available here\n", to_string(isa).data());
      if (isa_name.empty()) continue;
      return 77;
    }
    for (const Family& family : kFamilies) {
      Run run{isa};
      family.calls(run);
      std::printf("%-11s %-20s %4td calls %016llx\n", to_string(isa).data(), family.name, run.calls,
                  static_cast<unsigned long long>(run.hash.value()));
    }
  }
  if (known) return 0;
  std::fprintf(stderr, "output_hashes: %.*s is not an instruction set\n", static_cast<int>(isa_name.size()),
               isa_name.data());
  return 2;
}

}  // namespace
}  // namespace attn::hashes

int main(int argc, char** argv) {
  if (argc == 1) return attn::hashes::print({});
  if (argc == 3 && std::string_view(argv[1]) == "--isa") return attn::hashes::print(argv[2]);
  std::fprintf(stderr, "usage: output_hashes [--isa generic|avx2|avx2_vnni|avx512|avx512_vnni|avx512_bf16|amx]\n");
  return 2;
}
