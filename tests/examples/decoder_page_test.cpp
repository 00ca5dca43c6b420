// The model of examples/decoder.md against plain loops.
#include <cmath>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "attn/attn.h"
#include "support/tiny_llama.h"

namespace attn::test {
namespace {

using Matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using Numbers = std::vector<attn::Index>;

#include "decoder_page.h"  // the first block of the page

Matrix matrix(const Weights& rows) {
  Matrix m(static_cast<Index>(rows.size()), static_cast<Index>(rows[0].size()));
  for (std::size_t i = 0; i < rows.size(); ++i)
    m.row(static_cast<Index>(i)) = Eigen::Map<const Eigen::RowVectorXf>(rows[i].data(), m.cols());
  return m;
}
Eigen::RowVectorXf row(const std::vector<float>& numbers) {
  return Eigen::Map<const Eigen::RowVectorXf>(numbers.data(), static_cast<Index>(numbers.size()));
}

Decoder decoder_of(const TinyLlama& llama) {
  const TinyLlamaSizes& s = llama.sizes;
  Decoder decoder{matrix(llama.embedding), matrix(llama.classifier), row(llama.rms_final), {}};
  for (const TinyLlamaLayer& layer : llama.layers) {
    MultiHeadAttention<float> attention(
        {.embed_dim = s.dim,
         .heads = s.n_heads,
         .kv_heads = s.n_kv_heads,
         .bias = false,
         .rope = Rope({.head_dim = static_cast<Index>(s.head_dim()), .pairs = RopePairs::interleaved})});
    attention.load("q_proj.weight", matrix(layer.wq));
    attention.load("k_proj.weight", matrix(layer.wk));
    attention.load("v_proj.weight", matrix(layer.wv));
    attention.load("o_proj.weight", matrix(layer.wo));
    decoder.blocks.push_back(
        {attention, row(layer.rms_att), row(layer.rms_ffn), matrix(layer.w1), matrix(layer.w3), matrix(layer.w2)});
  }
  return decoder;
}

void expect_rows(const Matrix& got, Index first, const std::vector<std::vector<double>>& want, std::size_t from) {
  for (std::size_t t = from; t < want.size(); ++t)
    for (Index o = 0; o < got.cols(); ++o)
      ASSERT_NEAR(got(first + static_cast<Index>(t - from), o), want[t][static_cast<std::size_t>(o)], 1e-5)
          << "token " << t;
}

TEST(DecoderPage, ModelMatchesPlainLoops) {
  const TinyLlama llama({.vocab_size = 11, .tied = false}, 3);
  const Decoder decoder = decoder_of(llama);
  const Numbers a_text{1, 4, 10, 0, 7, 7, 2}, b_text{1, 4, 10, 3, 9};
  const auto a_want = oracle_logits(llama, a_text), b_want = oracle_logits(llama, b_text);
  auto caches = decoder.make_caches(4);
  const Index a = caches.add();
  expect_rows(decoder({1, 4, 10}, caches, {a}, {3}), 0, {a_want.begin(), a_want.begin() + 3}, 0);
  const Index b = caches.fork(a);
  const Matrix both = decoder({0, 7, 7, 3}, caches, {a, b}, {3, 1});
  expect_rows(both, 0, {a_want.begin(), a_want.begin() + 6}, 3);
  expect_rows(both, 3, {b_want.begin(), b_want.begin() + 4}, 3);
  const Matrix one = decoder({9, 2}, caches, {b, a}, {1, 1});
  expect_rows(one, 0, b_want, 4);
  expect_rows(one, 1, a_want, 6);
  EXPECT_EQ(caches.length(a), 7);
  EXPECT_EQ(caches.length(b), 5);
}

TEST(DecoderPage, ModelLeavesTheCachesAsTheyWereIfItThrows) {
  const TinyLlama llama({.vocab_size = 11, .tied = false}, 3);
  const Decoder decoder = decoder_of(llama);
  auto caches = decoder.make_caches(1);
  const Index a = caches.add();
  decoder({1, 4, 10}, caches, {a}, {3});
  EXPECT_THROW(decoder(Numbers(62, 1), caches, {a}, {62}), OutOfPages);
  EXPECT_EQ(caches.length(a), 3);
  const Numbers text{1, 4, 10, 0};
  expect_rows(decoder({0}, caches, {a}, {1}), 0, oracle_logits(llama, text), 3);
}

}  // namespace
}  // namespace attn::test
