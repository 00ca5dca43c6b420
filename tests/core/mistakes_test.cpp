// Mistakes that a call detects at run time: each complete message, as listed in include/attn/errors.md.
#include <cmath>
#include <limits>
#include <memory>
#include <numeric>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "support/refused.h"

#if defined(__SANITIZE_ADDRESS__)
#define ATTN_ADDRESSES_ARE_CHECKED
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define ATTN_ADDRESSES_ARE_CHECKED
#endif
#endif

namespace attn::test {
namespace {

/// Expects `call` to throw exactly this message.
template <class Exception = std::invalid_argument, class Call>
void expect_says(const std::string& message, const Call& call) {
  try {
    call();
    ADD_FAILURE() << "nothing was thrown";
  } catch (const Exception& e) {
    EXPECT_EQ(std::string(e.what()), message);
  }
}

/// Returns the sum of the attention that keys get, which is the number of queries if lse, mods and options match.
template <class Mass>
float sum_of(const Mass& mass) {
  return std::accumulate(mass.data(), mass.data() + mass.size(), 0.0f);
}

// 5 queries, 7 keys, head_dim 8, v_dim 3.
class Mistakes : public ::testing::Test {
 protected:
  Eigen::MatrixXf q_ = Eigen::MatrixXf::Random(5, 8), k_ = Eigen::MatrixXf::Random(7, 8),
                  v_ = Eigen::MatrixXf::Random(7, 3);
};

TEST_F(Mistakes, TransposedQuery) {
  expect_says(
      "attn: head_dim differs: query has 5, key has 8; shapes: query (1, 1, 8, 5), key (1, 1, 7, 8), value (1, 1, 7, "
      "3) as (batch, heads, len, dim); each row must be a token, but query has its tokens in columns: pass "
      "query.transpose(), or transpose(2, 3) of a tensor",
      [&] { attention(q_.transpose(), k_, v_); });
}

TEST_F(Mistakes, TransposedKey) {
  expect_says(
      "attn: kv_len differs: key has 8, value has 7; shapes: query (1, 1, 5, 8), key (1, 1, 8, 7), value (1, 1, 7, 3) "
      "as (batch, heads, len, dim); each row must be a token, but key has its tokens in columns: pass key.transpose(), "
      "or transpose(2, 3) of a tensor",
      [&] { attention(q_, k_.transpose(), v_); });
}

TEST_F(Mistakes, TransposedValue) {
  expect_says(
      "attn: kv_len differs: key has 7, value has 3; shapes: query (1, 1, 5, 8), key (1, 1, 7, 8), value (1, 1, 3, 7) "
      "as (batch, heads, len, dim); each row must be a token, but value has its tokens in columns: pass "
      "value.transpose(), or transpose(2, 3) of a tensor",
      [&] { attention(q_, k_, v_.transpose()); });
}

TEST_F(Mistakes, VectorAsQuery) {
  const Eigen::VectorXf one = q_.row(0);
  expect_says(
      "attn: head_dim differs: query has 1, key has 8; shapes: query (1, 1, 8, 1), key (1, 1, 7, 8), value (1, 1, 7, "
      "3) as (batch, heads, len, dim); each row must be a token, but query has its tokens in columns: pass "
      "query.transpose(), or transpose(2, 3) of a tensor",
      [&] { attention(one, k_, v_); });
  EXPECT_NO_THROW(attention(one.transpose(), k_, v_));
}

TEST_F(Mistakes, KeyAndValueExchanged) {
  expect_says(
      "attn: head_dim differs: query has 8, key has 3; shapes: query (1, 1, 5, 8), key (1, 1, 7, 3), value (1, 1, 7, "
      "8) as (batch, heads, len, dim); are key and value swapped?",
      [&] { attention(q_, v_, k_); });
}

TEST_F(Mistakes, QueryAndKeyExchanged) {
  expect_says(
      "attn: kv_len differs: key has 5, value has 7; shapes: query (1, 1, 7, 8), key (1, 1, 5, 8), value (1, 1, 7, 3) "
      "as (batch, heads, len, dim); do key and value belong to different tokens, or are query and key swapped?",
      [&] { attention(k_, q_, v_); });
}

TEST_F(Mistakes, TokensBeforeHeads) {
  const auto q = tensor({1, 10, 4, 8}), k = tensor({1, 17, 2, 8});  // (batch, len, heads, dim)
  expect_says(
      "attn: heads (10) must be a multiple of kv_heads (17); shapes: query (1, 10, 4, 8), key (1, 17, 2, 8), value (1, "
      "17, 2, 8) as (batch, heads, len, dim); for memory in the order (batch, len, heads, dim), use attn::bshd()",
      [&] { attention(q, k, k); });
}

TEST_F(Mistakes, KvHeadsThatDoNotDivideHeads) {
  const auto q = tensor({1, 6, 10, 8}), k = tensor({1, 4, 17, 8});
  expect_says(
      "attn: heads (6) must be a multiple of kv_heads (4); shapes: query (1, 6, 10, 8), key (1, 4, 17, 8), value (1, "
      "4, 17, 8) as (batch, heads, len, dim)",
      [&] { attention(q, k, k); });
}

TEST_F(Mistakes, MoreKeyHeadsThanQueryHeads) {
  const auto q = tensor({1, 2, 10, 8}), k = tensor({1, 4, 17, 8});
  expect_says(
      "attn: heads (2) must be a multiple of kv_heads (4); shapes: query (1, 2, 10, 8), key (1, 4, 17, 8), value (1, "
      "4, 17, 8) as (batch, heads, len, dim); several query heads may share a key head, not the other way round",
      [&] { attention(q, k, k); });
}

TEST_F(Mistakes, OutputWithoutSize) {
  Eigen::MatrixXf out;
  expect_says(
      "attn: out has shape (1, 1, 0, 0), expected (1, 1, 5, 3) as (batch, heads, q_len, v_dim); resize it before the "
      "call",
      [&] { attention_into(out, q_, k_, v_); });
}

TEST_F(Mistakes, LseOfWrongShape) {
  const auto x = tensor({2, 3, 5, 8});
  auto out = tensor({2, 3, 5, 8});
  Tensor<float, 3> lse({2, 5, 3});
  expect_says("attn: lse has shape (2, 5, 3), expected (2, 3, 5) as (batch, heads, q_len); resize it before the call",
              [&] { attention_into(out, lse, x, x, x); });
}

TEST_F(Mistakes, OutputIsAnInput) {
  auto x = tensor({1, 2, 5, 8});
  expect_says(
      "attn: out of shape (1, 2, 5, 8) overlaps query of shape (1, 2, 5, 8) in memory; out needs its own memory",
      [&] { attention_into(x, x, x, x); });
}

TEST_F(Mistakes, LseOverlapsQueryOrOutputInACallOverACache) {
  auto q = tensor({1, 2, 1, 8}), out = q;
  KvCache<float> cache({.kv_heads = 2, .capacity = 5, .head_dim = 8});
  cache.append(tensor({1, 2, 5, 8}), tensor({1, 2, 5, 8}));
  const auto first_numbers = [](Tensor<float, 4>& of) { return TensorView<float, 3>(of.data(), {1, 2, 1}); };
  expect_says("attn: lse of shape (1, 2, 1) overlaps query of shape (1, 2, 1, 8) in memory; lse needs its own memory",
              [&] { attention_into(out, first_numbers(q), q, cache); });
  expect_says("attn: lse of shape (1, 2, 1) overlaps out of shape (1, 2, 1, 8) in memory; lse needs its own memory",
              [&] { attention_into(out, first_numbers(out), q, cache); });
}

TEST_F(Mistakes, GradientIntoAnInput) {
  const auto result = attention(q_, k_, k_);
  Eigen::MatrixXf grad = Eigen::MatrixXf::Ones(5, 8), grad_k(7, 8), grad_v(7, 8);
  expect_says(
      "attn: grad_query of shape (1, 1, 5, 8) overlaps grad_out of shape (1, 1, 5, 8) in memory; grad_query needs its "
      "own memory",
      [&] { attention_backward_into(grad, grad_k, grad_v, grad, q_, k_, k_, result.out, result.lse); });
}

TEST_F(Mistakes, GradientOfWrongShape) {
  const auto result = attention(q_, k_, v_);
  expect_says("attn: grad_out has shape (1, 1, 3, 5), expected (1, 1, 5, 3) as (batch, heads, q_len, v_dim)",
              [&] { attention_backward(Eigen::MatrixXf::Ones(3, 5), q_, k_, v_, result); });
}

TEST_F(Mistakes, DirectionOfWrongShape) {
  expect_says(
      "attn: direction_key has shape (1, 1, 5, 8), expected (1, 1, 7, 8) as (batch, heads, len, dim), the shape of key",
      [&] { attention_jvp(q_, k_, v_, q_, q_, v_); });
}

TEST_F(Mistakes, PaddingInKeep) {
  const auto x = tensor({2, 3, 5, 8});
  const Tensor<bool, 2> is_token({2, 5});
  expect_says(
      "attn: keep: the tensor has shape (2, 5), which does not broadcast to (2, 3, 5, 5) as (batch, heads, q_len, "
      "kv_len); if its rows are batch elements, use attn::keep_keys(tensor)",
      [&] { attention(x, x, x, keep(is_token)); });
}

TEST_F(Mistakes, AmbiguousPadding) {
  const auto x = tensor({3, 2, 3, 8});
  const Tensor<bool, 2> is_padding({3, 3});
  expect_says(
      "attn: drop: the tensor has shape (3, 3), which could be (q_len, kv_len) or (batch, kv_len); use "
      "drop(attn::view(tensor).unsqueeze(0)) if its rows are queries, attn::padding(tensor) if they are batch elements",
      [&] { attention(x, x, x, drop(is_padding)); });
}

TEST_F(Mistakes, LengthsOfWrongBatchSize) {
  const auto x = tensor({2, 3, 5, 8});
  expect_says("attn: key_lengths has 1 lengths for a batch of 2; give one per batch element",
              [&] { attention(x, x, x, key_lengths({4})); });
}

TEST_F(Mistakes, LengthBeyondTheKeys) {
  expect_says("attn: key_lengths[0] must be in 0..7 (kv_len), but is 9",
              [&] { attention(q_, k_, v_, key_lengths({9})); });
}

TEST_F(Mistakes, SlopesForOtherHeads) {
  const auto x = tensor({1, 8, 5, 8});
  expect_says("attn: alibi has 1 slopes for 8 heads; alibi_slopes(heads) makes them",
              [&] { attention(x, x, x, causal() | alibi({0.5})); });
}

TEST_F(Mistakes, DropoutInPercent) {
  expect_says("attn: dropout: p must be in 0..1, but is 10", [&] { attention(q_, k_, v_, dropout(10, 1)); });
}

TEST_F(Mistakes, OptionsGivenTwice) {
  const std::string message =
      "attn: options are given twice, in place of mods and after them; give them once, as in {.scale = 0.5, .q_offset "
      "= 0}";
  const Options options{.scale = 0.5};
  expect_says(message, [&] { attention(q_, k_, v_, {.scale = 0.5}, {.q_offset = 0}); });
  expect_says(message, [&] { attention(q_, k_, v_, options, {.q_offset = 0}); });
  expect_says(message, [&] { attention(q_, k_, v_, options, options); });
  expect_says(message, [&] { explain(q_, k_, v_, {.scale = 0.5}, options); });
}

TEST_F(Mistakes, WorkspaceTooSmall) {
  std::vector<std::byte> memory(64);
  const Options options{.executor = serial(), .workspace = memory};
  const std::size_t bytes = workspace_bytes(q_, k_, v_, {.executor = serial()});
  expect_says("attn: the workspace has 64 bytes, but the call needs " + std::to_string(bytes) +
                  " with this executor; see workspace_bytes()",
              [&] { attention(q_, k_, v_, options); });
}

TEST_F(Mistakes, BiasForTooFewKeys) {
  const Eigen::MatrixXf table = Eigen::MatrixXf::Zero(5, 6);
  expect_says(
      "attn: bias: the tensor has shape (5, 6), which does not broadcast to (1, 1, 5, 7) as (batch, heads, q_len, "
      "kv_len)",
      [&] { attention(q_, k_, v_, bias(table)); });
}

TEST_F(Mistakes, CacheWithoutHeadDim) {
  expect_says("attn: KvCache: batch 1, kv_heads 8, head_dim 0, v_dim 0 must all be positive; head_dim has no default",
              [&] { KvCache<float>({.kv_heads = 8, .capacity = 4096}); });
}

TEST_F(Mistakes, HeadsThatDoNotDivideTheLayer) {
  expect_says("attn: embed_dim (100) must be a multiple of heads (8), unless head_dim is given",
              [&] { MultiHeadAttention<float>({.embed_dim = 100, .heads = 8}); });
}

TEST_F(Mistakes, CacheIsFull) {
  KvCache<float> cache({.capacity = 8, .head_dim = 8, .max_capacity = 8});
  cache.append(k_, k_);
  expect_says<std::length_error>(
      "attn: sequence 0 of the cache would have 14 tokens, but max_capacity is 8; truncate() it, or construct the "
      "cache with a larger max_capacity",
      [&] { cache.append(k_, k_); });
}

TEST_F(Mistakes, ReorderedByInvalidIndices) {
  KvCache<float> cache({.batch = 2, .head_dim = 8});
  expect_says("attn: reorder: from[1] = 2 is out of range; there are 2 sequences", [&] { cache.reorder({0, 2}); });
}

TEST_F(Mistakes, ReleasedTwice) {
  PagedKvCache<float> cache({.pages = 4, .head_dim = 8});
  const Index text = cache.add();
  cache.release(text);
  expect_says("attn: sequence 0 does not exist; it was released or never added", [&] { cache.release(text); });
}

TEST_F(Mistakes, SequenceNeverAdded) {
  const PagedKvCache<float> cache({.pages = 4, .head_dim = 8});
  expect_says("attn: sequence 9 does not exist; it was released or never added",
              [&] { attention(q_, cache.view({9})); });
}

TEST_F(Mistakes, PagesRunOut) {
  PagedKvCache<float> cache({.pages = 1, .page_size = 4, .head_dim = 8});
  const Index text = cache.add();
  expect_says<OutOfPages>("attn: 2 more pages are needed, but only 1 of 1 are free; release() or truncate() a sequence",
                          [&] { cache.append(text, k_, k_); });
}

TEST_F(Mistakes, ChangedWhileAStepIsOpen) {
  KvCaches<float> caches({.layers = 2, .head_dim = 8, .pages = 4});
  const Index a = caches.add();
  auto step = caches.step({a}, 7);
  step.layer(0).append(k_, k_);
  expect_says(
      "attn: fork: a step of 1 sequences is open, to which 1 of 2 layers have appended; commit() or destroy it first",
      [&] { caches.fork(a); });
}

TEST_F(Mistakes, CommittedTooEarly) {
  KvCaches<float> caches({.layers = 2, .head_dim = 8, .pages = 4});
  auto step = caches.step({caches.add()}, 7);
  step.layer(0).append(k_, k_);
  expect_says("attn: commit: layer 1 of 2 has not appended the tokens of this step", [&] { step.commit(); });
}

TEST_F(Mistakes, OtherTokensThanTheStep) {
  KvCaches<float> caches({.layers = 2, .head_dim = 8, .pages = 4});
  auto step = caches.step({caches.add()}, 1);
  expect_says("attn: append: the step has 1 tokens for sequence 0, but layer 0 got 7",
              [&] { step.layer(0).append(k_, k_); });
}

TEST_F(Mistakes, TreeOverACacheWithARope) {
  KvCache<float> cache({.head_dim = 8, .rope = Rope({.head_dim = 8})});
  cache.append(k_, k_);
  expect_says(
      "attn: tree: node 2 has depth 1, so it must be at position 3, but the rope rotates its key by position 4; append "
      "the nodes to a cache with {.positions = attn::tree_positions(parents, 2)}",
      [&] {
        attention(q_, cache, tree({-1, 0, 0, 1, 2}));
      });
}

TEST_F(Mistakes, PositionsWithoutARope) {
  KvCache<float> cache({.head_dim = 8});
  expect_says(
      "attn: append: got 7 positions for a cache without a rope, where they would have no effect; omit them, or "
      "construct the cache with .rope = attn::Rope(...)",
      [&] {
        cache.append(k_, k_, {.positions = {0, 1, 2, 3, 3, 4, 4}});
      });
}

TEST_F(Mistakes, UnknownParameterName) {
  MultiHeadAttention<float> layer({.embed_dim = 8, .heads = 2});
  expect_says(
      "attn: there is no parameter 'in_proj.weight'; this layer has in_proj_weight, in_proj_bias, out_proj.weight, "
      "out_proj.bias; and their parts: q_proj_weight, q_proj_bias, q_proj.weight, q_proj.bias, k_proj_weight, "
      "k_proj_bias, k_proj.weight, k_proj.bias, v_proj_weight, v_proj_bias, v_proj.weight, v_proj.bias, o_proj.weight, "
      "o_proj.bias",
      [&] { layer.load("in_proj.weight", q_); });
}

TEST_F(Mistakes, ParameterTransposed) {
  MultiHeadAttention<float> layer({.embed_dim = 8, .heads = 2});
  expect_says("attn: parameter 'in_proj_weight' has shape (24, 8), but the given values have shape (8, 24)",
              [&] { layer.load("in_proj_weight", Eigen::MatrixXf::Zero(8, 24).eval()); });
}

// Mistakes that no call can detect, shown by their results.

// A mod only views a named tensor, but keeps a temporary alive.
TEST_F(Mistakes, SilentViewThatDangles) {
  const auto kept = [] {
    Tensor<bool, 2> mask({5, 7});
    return keep(std::move(mask));
  }();
  EXPECT_NO_THROW(attention(q_, k_, v_, kept));
#if defined(ATTN_ADDRESSES_ARE_CHECKED)
  const auto viewed = [] {
    const auto mask = std::make_unique<Tensor<bool, 2>>(Shape<2>{5, 7});
    return keep(*mask);
  }();
  EXPECT_DEATH(attention(q_, k_, v_, viewed), "heap-use-after-free");
#endif
}

TEST_F(Mistakes, SilentPaddingInverted) {
  const Tensor<bool, 2> all_tokens({1, 7});  // false: not padding in PyTorch's convention
  const auto right = attention(q_, k_, v_, padding(all_tokens)), wrong = attention(q_, k_, v_, keep_keys(all_tokens));
  EXPECT_TRUE(right.lse.allFinite());
  EXPECT_TRUE((wrong.out.array() == 0).all());
  EXPECT_TRUE((wrong.lse.array() == -std::numeric_limits<float>::infinity()).all());
}

TEST_F(Mistakes, SilentOffsetOfWrongSign) {
  // 2 keys were cached before: the queries are at positions 2 .. 6.
  const auto right = attention(q_, k_, v_, causal(), {.q_offset = 2}),
             wrong = attention(q_, k_, v_, causal(), {.q_offset = -2});
  EXPECT_EQ(right.out, attention(q_, k_, v_, causal()).out);
  EXPECT_TRUE((wrong.out.topRows(2).array() == 0).all());
  EXPECT_EQ(wrong.lse(0), -std::numeric_limits<float>::infinity());
}

TEST_F(Mistakes, SilentLseWithoutExtraDigits) {
  const auto mods = score_mod([](auto x, auto) { return x - 1e9f; });
  const auto r = attention(q_, k_, v_, mods);
  const auto sum = [&](const auto& lse) { return sum_of(attention_mass(q_, k_, lse, mods)); };
  const auto right = r.lse;
  const Eigen::VectorXf wrong = r.lse;
  EXPECT_NEAR(sum(right), static_cast<float>(q_.rows()), 1e-4);
  EXPECT_GT(sum(wrong), 2 * static_cast<float>(q_.rows()));
}

TEST_F(Mistakes, SilentBackwardWithoutMods) {
  const Eigen::MatrixXf g = Eigen::MatrixXf::Ones(5, 3);
  const auto r = attention(q_, k_, v_, causal());
  const auto right = attention_backward(g, q_, k_, v_, r, causal()), wrong = attention_backward(g, q_, k_, v_, r);
  EXPECT_GT((right.value - wrong.value).cwiseAbs().maxCoeff(), 0.1f);
  EXPECT_NEAR(sum_of(attention_mass(q_, k_, r.lse, causal())), 5, 1e-4);
  EXPECT_GT(sum_of(attention_mass(q_, k_, r.lse)), 5.1f);
}

TEST_F(Mistakes, SilentBackwardWithoutOptions) {
  const Eigen::MatrixXf g = Eigen::MatrixXf::Ones(5, 3);
  const auto r = attention(q_, k_, v_, causal(), {.scale = 2});
  const auto right = attention_backward(g, q_, k_, v_, r, causal(), {.scale = 2}),
             wrong = attention_backward(g, q_, k_, v_, r, causal());
  EXPECT_GT((right.value - wrong.value).cwiseAbs().maxCoeff(), 0.1f);
  EXPECT_NEAR(sum_of(attention_mass(q_, k_, r.lse, causal(), {.scale = 2})), 5, 1e-4);
  EXPECT_GT(std::abs(sum_of(attention_mass(q_, k_, r.lse, causal())) - 5), 0.1f);
}

TEST_F(Mistakes, SilentCaptureByReference) {
  const auto copies = [](float slope) {
    return score_mod([=](auto x, auto p) { return x - slope * static_cast<float>(p.q - p.kv); });
  };
  EXPECT_NO_THROW(attention(q_, k_, v_, copies(0.5f)));
#if defined(ATTN_ADDRESSES_ARE_CHECKED)
  const auto refers = [](const float& slope) {
    return score_mod([&](auto x, auto p) { return x - slope * static_cast<float>(p.q - p.kv); });
  };
  const auto mod = refers(0.5f);  // the number ends here
  EXPECT_DEATH(attention(q_, k_, v_, mod), "stack-use-after-scope");
#endif
}

}  // namespace
}  // namespace attn::test
