// A program without exceptions, RTTI and, with ATTN_NO_THREADS, threads. Its argument says what it does: "compute"
// compares calls with naive_attention(), and two workers with one; "bits" prints a hash of outputs of the generic
// kernels; "refuse", "handle" and "run_out" make a call that is refused.
#include <bit>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "attn/attn.h"

#ifndef ATTN_NO_EXCEPTIONS
#error "found exceptions"
#endif
#ifdef ATTN_NO_THREADS
#if defined(_GLIBCXX_THREAD) || defined(_GLIBCXX_MUTEX)  // other standard headers of libc++ include them
#error "<thread> or <mutex> is included"
#endif
#endif

namespace {

using attn::Index;
using Tensor = attn::Tensor<float, 4>;

bool all_agree = true;

/// Compares tensors or matrices of the same shape.
template <class A, class B>
void compare(const char* what, const A& a, const B& b, float tolerance = 2e-6f) {
  float worst = 0;
  for (Index i = 0; i < a.size(); ++i) worst = std::max(worst, std::abs(a.data()[i] - b.data()[i]));
  std::printf("%s %s\n", what, worst <= tolerance ? "agrees" : "differs");
  all_agree = all_agree && worst <= tolerance;
}

Tensor numbers(Index heads, Index len, Index dim, float seed) {
  Tensor x({2, heads, len, dim});
  for (Index i = 0; i < x.size(); ++i) x.data()[i] = std::sin(seed + 1.7f * static_cast<float>(i));
  return x;
}

void compute() {
  const Tensor q = numbers(4, 40, 16, 1), k = numbers(2, 40, 16, 2), v = numbers(2, 40, 8, 3);
  const auto mods = attn::causal() | attn::softcap(5) | attn::alibi({0.5, 0.25, 0.125, 0.0625});
  const auto naive = attn::naive_attention(q, k, v, mods);
  const attn::Executor two = attn::threads(2);
#ifdef ATTN_NO_THREADS
  std::printf("workers %d\n", two.concurrency());
#endif
  compare("prefill", attn::attention(q, k, v, mods, {.executor = two}).out, naive.out);

  const Tensor few = numbers(4, 2, 16, 4), ones = numbers(4, 2, 8, 5);
  const auto listed = attn::select({0, 1, 3}, {39, 0, 7});
  const auto same = attn::mask_mod([](auto p) { return p.q == 38 ? p.kv == 39 : p.kv == 0 || p.kv == 7; });
  const auto of_lists = attn::attention(few, k, v, listed);
  const auto of_lambda = attn::naive_attention(few, k, v, same);
  compare("lists", of_lists.out, of_lambda.out);
  compare("gradient", attn::attention_backward(ones, few, k, v, of_lists, listed, {.executor = two}).key,
          attn::attention_backward(ones, few, k, v, of_lambda, same, {.executor = attn::serial()}).key);

  attn::KvCache<float> cache({.batch = 2, .kv_heads = 2, .head_dim = 16, .v_dim = 8});
  cache.append(k, v);
  compare("cache", attn::attention(q, cache, mods).out, naive.out);

  attn::PagedKvCache<float> pages({.pages = 8, .page_size = 16, .kv_heads = 2, .head_dim = 16, .v_dim = 8});
  const Index a = pages.add(), b = pages.add();
  pages.append({a, b}, k, v);
  compare("pages", attn::attention(q, pages.view({a, b}), mods).out, naive.out);

  const auto favor = attn::linear_attention(q, k, v, attn::favor(64, 5)).out;
  compare("features", attn::linear_attention(q, k, v, attn::favor(64, 5), {.executor = two}).out, favor, 0);
}

/// Prints a hash (FNV-1a) of the bits of outputs. No value comes from the C library's mathematical functions, which
/// differ between systems.
void print_bits() {
#if defined(__FMA__) || defined(__wasm_relaxed_simd__)
  const bool has_fma = true;
#else
  const bool has_fma = false;
#endif
  if (has_fma || !attn::available(attn::Isa::generic)) {
    std::puts("no generic kernels without FMA");
    return;
  }
  const auto exact = [](Index len, Index dim, Index seed) {
    Tensor x({2, 4, len, dim});
    for (Index i = 0; i < x.size(); ++i) x.data()[i] = static_cast<float>((37 * i + seed) % 101 - 50) / 32;
    return x;
  };
  std::uint32_t hash = 2166136261u;
  for (const Index q_len : {1, 3, 70}) {
    const Tensor q = exact(q_len, 24, 1), k = exact(150, 24, 2), v = exact(150, 20, 3);
    const Tensor out = attn::attention(q, k, v, attn::softcap(3) | attn::causal(), {.isa = attn::Isa::generic}).out;
    for (Index i = 0; i < out.size(); ++i)
      for (int byte = 0; byte < 4; ++byte) {
        hash ^= std::bit_cast<std::uint32_t>(out.data()[i]) >> 8 * byte & 255;
        hash *= 16777619u;
      }
  }
  std::printf("%08x\n", static_cast<unsigned>(hash));
}

[[noreturn]] void print_and_exit(const char* message) {
  std::fprintf(stderr, "handled: %s\n", message);
  std::exit(7);
}

}  // namespace

int main(int argc, char** argv) {
  const std::string_view what = argc == 2 ? argv[1] : "";
  if (what == "compute") {
    compute();
    return all_agree ? 0 : 1;
  }
  if (what == "bits") {
    print_bits();
    return 0;
  }
  const Tensor q = numbers(1, 3, 16, 1), k = numbers(1, 3, 8, 2);
  if (what == "handle" && attn::set_refusal_handler(print_and_exit) != nullptr) return 2;
  if (what == "run_out") {
    attn::PagedKvCache<float> pages({.pages = 1, .page_size = 2, .kv_heads = 1, .head_dim = 8});
    pages.append({pages.add(), pages.add()}, k, k);
  }
  const auto out = attn::attention(q, k, k).out;
  return 3;
}
