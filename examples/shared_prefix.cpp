// One prompt and many continuations: attention over the prompt's keys, which all continuations share, is merged with
// attention over each continuation's own keys. The prompt is stored once and read once for all of them.
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <iostream>
#include <random>

#include <attn/attn.h>

namespace {

using attn::Index;
using attn::Tensor;
using attn::TensorView;

constexpr Index kBatch = 32, kHeads = 8, kDim = 64, kPrompt = 2048, kOwn = 40;

template <int Rank>
Tensor<float, Rank> random(const attn::Shape<Rank>& shape, std::mt19937& generator) {
  std::normal_distribution<float> normal;
  auto t = Tensor<float, Rank>::uninitialized(shape);
  std::generate_n(t.data(), t.size(), [&] { return normal(generator); });
  return t;
}

double milliseconds(const auto& call) {
  call();
  const auto start = std::chrono::steady_clock::now();
  call();
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

int main() {
  std::mt19937 generator(1);
  // One new token per continuation.
  const auto q = random<4>({kBatch, kHeads, 1, kDim}, generator);
  const auto prompt_k = random<4>({1, kHeads, kPrompt, kDim}, generator);
  const auto prompt_v = random<4>({1, kHeads, kPrompt, kDim}, generator);
  const auto own_k = random<4>({kBatch, kHeads, kOwn, kDim}, generator);
  const auto own_v = random<4>({kBatch, kHeads, kOwn, kDim}, generator);

  // The baseline: every continuation has its own keys and values for all tokens.
  const auto joined = [](const Tensor<float, 4>& prompt, const Tensor<float, 4>& own) {
    Tensor<float, 4> all({kBatch, kHeads, kPrompt + kOwn, kDim});
    for (Index b = 0; b < kBatch; ++b)
      for (Index h = 0; h < kHeads; ++h) {
        all.matrix(b, h).topRows(kPrompt) = prompt.matrix(0, h);
        all.matrix(b, h).bottomRows(kOwn) = own.matrix(b, h);
      }
    return all;
  };
  const auto k = joined(prompt_k, own_k), v = joined(prompt_v, own_v);

  // The same queries as one batch element with a row per continuation: all of them see the same prompt.
  const TensorView<const float, 4> q_rows = q.permute(2, 1, 0, 3);
  Tensor<float, 4> out({kBatch, kHeads, 1, kDim}), own_out({kBatch, kHeads, 1, kDim});
  Tensor<float, 3> lse({kBatch, kHeads, 1}), own_lse({kBatch, kHeads, 1});
  const TensorView<float, 4> out_rows = out.permute(2, 1, 0, 3);
  const TensorView<float, 3> lse_rows = lse.permute(2, 1, 0);

  const double shared = milliseconds([&] {
    attn::attention_into(out_rows, lse_rows, q_rows, prompt_k, prompt_v);
    attn::attention_into(own_out, own_lse, q, own_k, own_v);
    attn::merge_into(out, lse, own_out, own_lse);
  });

  Tensor<float, 4> expected({kBatch, kHeads, 1, kDim});
  const double plain = milliseconds([&] { attn::attention_into(expected, q, k, v); });

  float difference = 0;
  for (Index i = 0; i < out.size(); ++i)
    difference = std::max(difference, std::abs(out.data()[i] - expected.data()[i]));
  const auto mib = [](Index numbers) { return static_cast<double>(2 * numbers) * sizeof(float) / (1 << 20); };
  std::cout << kBatch << " continuations of a prompt of " << kPrompt << " tokens, " << kHeads << " heads\n"
            << "each with its own copy: " << mib(k.size()) << " MiB of keys and values, " << plain << " ms per token\n"
            << "sharing the prompt:     " << mib(prompt_k.size() + own_k.size()) << " MiB, " << shared << " ms\n"
            << "largest difference " << difference << '\n';
  if (difference > 1e-5f) {
    std::cerr << "shared_prefix: the results differ\n";
    return EXIT_FAILURE;
  }
  return EXIT_SUCCESS;
}
