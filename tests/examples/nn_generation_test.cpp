// Inference gives the same results as training, whether tokens are fed one by one with caches or all at once, with or
// without padding, and with any number of threads.
#include "adamw.h"
#include "cross_entropy.h"
#include "encoder.h"
#include "gpt.h"
#include "nn_numbers.h"
#include "threads.h"
#include "transformer.h"

namespace nn::test {
namespace {

/// Summing in another order changes the logits, which are small, by a few roundings.
constexpr double kRounding = 1e-12;

Gpt<double> gpt(double dropout = 0) {
  Gpt<double> model({.tokens = 11, .context = 24, .layers = 2, .heads = 2, .features = 16, .dropout = dropout}, 1);
  draw_parameters<double>(model, 2, 0.3);
  return model;
}

Transformer<double> transformer(bool norm_first = true) {
  Transformer<double> model(
      {.source_tokens = 11, .target_tokens = 13, .layer = {.features = 16, .heads = 4, .norm_first = norm_first}}, 3);
  draw_parameters<double>(model, 4, 0.3);
  return model;
}

Encoder<double> encoder() {
  Encoder<double> model({.tokens = 11, .context = 24, .layer = {.features = 16, .heads = 2}}, 5);
  draw_parameters<double>(model, 6, 0.3);
  return model;
}

TEST(NnModels, ForwardMatchesInference) {
  Random random(7);
  const Tokens a = random_tokens(3, 9, 11, random), b = random_tokens(3, 8, 13, random);
  Gpt<double> g = gpt();
  EXPECT_LE(largest_difference(g.forward(a), g(a)), kRounding);
  Encoder<double> e = encoder();
  EXPECT_LE(largest_difference(e.forward(a, {9, 1, 5}), e(a, {9, 1, 5})), kRounding);
  for (const bool norm_first : {true, false}) {
    Transformer<double> t = transformer(norm_first);
    EXPECT_LE(largest_difference(t.forward(a, {9, 1, 5}, b), t(a, {9, 1, 5}, b)), kRounding);
  }
}

TEST(NnModels, DropoutAppliesOnlyInTraining) {
  Random random(8);
  const Tokens a = random_tokens(2, 9, 11, random);
  Gpt<double> with = gpt(0.5), without = gpt();
  EXPECT_TRUE(same_bits(with(a), without(a)));
  EXPECT_GT(largest_difference(with.forward(a), without(a)), 1e-3);
}

/// Feeds tokens in chunks of the given lengths, and compares each with its part of the whole.
template <class Next>
void expect_chunks(const Tokens& tokens, const States<double>& whole, const std::vector<Index>& chunks,
                   const Next& next) {
  Index at = 0;
  for (const Index n : chunks) {
    const States<double> part = next(columns_of(tokens, at, at + n));
    ASSERT_EQ(part.shape(), (attn::Shape<3>{whole.dim(0), n, whole.dim(2)}));
    for (Index b = 0; b < whole.dim(0); ++b)
      for (Index i = 0; i < n; ++i)
        for (Index f = 0; f < whole.dim(2); ++f)
          ASSERT_NEAR(part(b, i, f), whole(b, at + i, f), kRounding) << "sequence " << b << ", token " << at + i;
    at += n;
  }
}

const std::vector<std::vector<Index>> kChunks{{1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1}, {12}, {5, 1, 1, 4, 1}, {1, 11}};

TEST(NnModels, GptContinuesFromCaches) {
  Random random(9);
  const Gpt<double> model = gpt();
  const Tokens tokens = random_tokens(2, 12, 11, random);
  const States<double> whole = model(tokens);
  for (const auto& chunks : kChunks) {
    auto caches = model.make_caches(2);
    expect_chunks(tokens, whole, chunks, [&](const Tokens& some) { return model.next(some, caches); });
  }
}

TEST(NnModels, GptRefusesTokensPastItsContext) {
  const Gpt<double> model = gpt();
  EXPECT_NO_THROW(model(Tokens({1, 24})));
  EXPECT_THROW(model(Tokens({1, 25})), std::out_of_range);
  auto caches = model.make_caches(1);
  model.next(Tokens({1, 24}), caches);
  EXPECT_THROW(model.next(Tokens({1, 1}), caches), std::out_of_range);
  EXPECT_THROW(model(tokens_of({{11}})), std::out_of_range);
  EXPECT_THROW(model(tokens_of({{-1}})), std::out_of_range);
}

/// Targets longer than any source, and sources of different lengths.
TEST(NnModels, TransformerContinuesFromCaches) {
  Random random(10);
  for (const bool norm_first : {true, false}) {
    const Transformer<double> model = transformer(norm_first);
    const Tokens sources = random_tokens(3, 7, 11, random), targets = random_tokens(3, 12, 13, random);
    const std::vector<Index> lengths{7, 1, 4};
    const States<double> whole = model(sources, lengths, targets);
    for (const auto& chunks : kChunks) {
      auto state = model.encode(sources, lengths, 12);
      expect_chunks(targets, whole, chunks, [&](const Tokens& some) { return model.next(some, state); });
    }
  }
}

/// Beams: several consecutive targets that share a source give the same results as with a copy of the source for each.
TEST(NnModels, SeveralTargetsShareASource) {
  Random random(19);
  const Transformer<double> model = transformer();
  const Tokens sources = random_tokens(2, 7, 11, random), targets = random_tokens(6, 5, 13, random);
  Tokens copies({6, 7});
  for (Index i = 0; i < 6; ++i) std::copy_n(&sources(i / 3, 0), 7, &copies(i, 0));
  const States<double> whole = model(copies, {7, 7, 7, 2, 2, 2}, targets);
  auto state = model.encode(sources, {7, 2}, 5, 3);
  expect_chunks(targets, whole, {2, 1, 1, 1}, [&](const Tokens& some) { return model.next(some, state); });
}

/// The first `len` tokens of a sequence.
States<double> head_of(const States<double>& x, Index sequence, Index len) {
  States<double> part({1, len, x.dim(2)});
  std::copy_n(&x(sequence, 0, 0), part.size(), part.data());
  return part;
}

TEST(NnModels, PaddingChangesNothing) {
  Random random(11);
  const Encoder<double> model = encoder();
  const std::vector<Index> lengths{3, 9, 6};
  const Tokens tokens = random_tokens(3, 9, 11, random);
  Tokens others = tokens;  // different padding
  for (Index b = 0; b < 3; ++b)
    for (Index i = lengths[static_cast<std::size_t>(b)]; i < 9; ++i) others(b, i) = (tokens(b, i) + 1) % 11;
  const States<double> logits = model(tokens, lengths), other_logits = model(others, lengths);
  for (Index b = 0; b < 3; ++b) {
    const Index len = lengths[static_cast<std::size_t>(b)];
    EXPECT_TRUE(same_bits(head_of(logits, b, len), head_of(other_logits, b, len))) << b;
    Tokens alone({1, len});
    std::copy_n(&tokens(b, 0), len, alone.data());
    EXPECT_LE(largest_difference(head_of(logits, b, len), model(alone, {len})), kRounding) << b;
  }
}

TEST(NnModels, PaddingOfSourcesChangesNothing) {
  Random random(12);
  Transformer<double> model = transformer();
  const std::vector<Index> lengths{3, 9};
  const Tokens sources = random_tokens(2, 9, 11, random), targets = random_tokens(2, 5, 13, random);
  Tokens others = sources;
  for (Index i = 3; i < 9; ++i) others(0, i) = (sources(0, i) + 1) % 11;
  EXPECT_TRUE(same_bits(model(sources, lengths, targets), model(others, lengths, targets)));
  const States<double> alone = model(columns_of(sources, 0, 3), {3, 3}, targets);
  const States<double> padded = model(sources, lengths, targets);
  EXPECT_LE(largest_difference(head_of(alone, 0, 5), head_of(padded, 0, 5)), kRounding);
  EXPECT_GT(largest_difference(head_of(alone, 1, 5), head_of(padded, 1, 5)), 1e-3) << "those tokens are not padding";

  // Padding's embedding gets no gradient: only padding has token 10.
  Tokens marked = sources;
  for (Index i = 0; i < marked.size(); ++i) marked.data()[i] %= 10;
  for (Index i = 3; i < 9; ++i) marked(0, i) = 10;
  const States<double> logits = model.forward(marked, lengths, targets);
  model.backward(logits);
  const Parameter<double> table = parameters_of<double>(model).front();
  ASSERT_EQ(table.name, "source_tokens.weight");
  for (std::size_t f = 0; f < 16; ++f) EXPECT_EQ(table.gradient[10 * 16 + f], 0);
}

/// Trailing padding of targets changes no earlier logits, and with ignored targets no gradient.
TEST(NnModels, PaddingOfTargetsChangesNothing) {
  Random random(13);
  const Tokens sources = random_tokens(2, 4, 11, random), targets = random_tokens(2, 6, 13, random);
  Tokens others = targets, next = random_tokens(2, 6, 13, random);
  for (Index i = 4; i < 6; ++i) {
    others(0, i) = (targets(0, i) + 1) % 13;
    next(0, i) = CrossEntropy<double>::kIgnored;
  }
  const auto gradients = [&](const Tokens& fed) {
    Transformer<double> model = transformer();
    CrossEntropy<double> loss(0.1);
    loss.forward(model.forward(sources, {4, 2}, fed), next);
    model.backward(loss.backward());
    std::vector<double> all;
    for (const Parameter<double>& p : parameters_of<double>(model))
      all.insert(all.end(), p.gradient.begin(), p.gradient.end());
    return all;
  };
  const std::vector<double> a = gradients(targets), b = gradients(others);
  for (std::size_t i = 0; i < a.size(); ++i) ASSERT_NEAR(a[i], b[i], 1e-13) << i;
}

TEST(NnModels, WeightsOfPaddingAndLaterTokensAreZero) {
  Random random(14);
  const Transformer<double> model = transformer();
  std::vector<Weights<double>> weights;
  const Tokens sources = random_tokens(2, 7, 11, random), targets = random_tokens(2, 5, 13, random);
  const States<double> with = model(sources, {7, 3}, targets, &weights);
  EXPECT_LE(largest_difference(with, model(sources, {7, 3}, targets)), kRounding);
  ASSERT_EQ(weights.size(), 2u);
  for (const Weights<double>& w : weights) {
    ASSERT_EQ(w.shape(), (attn::Shape<4>{2, 4, 5, 7}));
    for (Index h = 0; h < 4; ++h)
      for (Index i = 0; i < 5; ++i) {
        double sum = 0;
        for (Index j = 0; j < 7; ++j) sum += w(1, h, i, j);
        EXPECT_NEAR(sum, 1, 1e-12);
        for (Index j = 3; j < 7; ++j) EXPECT_EQ(w(1, h, i, j), 0) << "a weight of padding";
      }
  }
  const Gpt<double> decoder = gpt();
  decoder(sources, &weights);
  ASSERT_EQ(weights.size(), 2u);
  EXPECT_EQ(weights[1](0, 1, 3, 4), 0) << "a weight of a later token";
  EXPECT_GT(weights[1](0, 1, 3, 3), 0);
}

/// The parameters after some training steps, at sizes whose work is split into several blocks.
template <class T, class Model, class Forward>
std::vector<T> trained(Model model, int threads, const Tokens& targets, const Forward& forward) {
  set_threads(threads);
  AdamW<T> optimizer;
  CrossEntropy<T> loss(0.1);
  for (int step = 0; step < 3; ++step) {
    zero_gradients<T>(model);
    loss.forward(forward(model), targets);
    model.backward(loss.backward());
    const auto parameters = parameters_of<T>(model);
    clip_grad_norm(parameters, 0.5);
    optimizer.step(parameters, 1e-2);
  }
  set_threads(1);
  return all_values<T>(model);
}

template <class T>
void expect_same_for_any_threads() {
  Random random(15);
  const Tokens sources = random_tokens(6, 50, 90, random), targets = random_tokens(6, 40, 90, random);
  Tokens next = targets;
  next(2, 39) = CrossEntropy<T>::kIgnored;
  const std::vector<Index> lengths{50, 3, 20, 50, 49, 50};
  const LayerConfig layer{.features = 96, .heads = 4, .activation = ActivationKind::swiglu, .dropout = 0.1};
  const Transformer<T> t({.source_tokens = 90, .target_tokens = 90, .layer = layer}, 16);
  const Gpt<T> g({.tokens = 90, .context = 64, .layers = 2, .features = 96, .dropout = 0.1}, 17);
  const Encoder<T> e({.tokens = 90, .context = 64, .layer = layer}, 18);
  const auto all = [&](int threads) {
    return std::vector{
        trained<T>(t, threads, next, [&](Transformer<T>& m) { return m.forward(sources, lengths, targets); }),
        trained<T>(g, threads, next, [&](Gpt<T>& m) { return m.forward(targets); }),
        trained<T>(e, threads, next, [&](Encoder<T>& m) {
          return m.forward(targets, {40, 40, 1, 40, 40, 40});
        })};
  };
  const auto one = all(1);
  for (const int threads : {2, 3}) {
    const auto more = all(threads);
    for (std::size_t i = 0; i < one.size(); ++i)
      EXPECT_TRUE(one[i] == more[i]) << "model " << i << " with " << threads << " threads";
  }
  for (const auto& values : one)
    for (const T x : values) ASSERT_TRUE(std::isfinite(x));
}

TEST(NnThreads, GiveTheSameBitsInFloat) { expect_same_for_any_threads<float>(); }
TEST(NnThreads, GiveTheSameBitsInDouble) { expect_same_for_any_threads<double>(); }

}  // namespace
}  // namespace nn::test
