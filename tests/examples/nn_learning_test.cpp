// The three models learn a small task, each in about a second.
#include "adamw.h"
#include "cross_entropy.h"
#include "encoder.h"
#include "gpt.h"
#include "nn_numbers.h"
#include "schedule.h"
#include "threads.h"
#include "transformer.h"

namespace nn::test {
namespace {

/// Trains a model and returns the mean of the last ten losses. loss(model) returns the loss of a batch and computes the
/// gradients.
template <class Model, class Loss>
double trained(Model& model, int steps, double rate, const Loss& loss) {
  AdamW<float> optimizer({.beta2 = 0.98});
  const CosineSchedule schedule{.highest = rate, .lowest = rate / 20, .warm_up = steps / 10, .decay_steps = steps};
  double mean = 0;
  for (int step = 0; step < steps; ++step) {
    zero_gradients<float>(model);
    const double of_batch = loss(model);
    const auto parameters = parameters_of<float>(model);
    clip_grad_norm(parameters, 1.0);
    optimizer.step(parameters, schedule(step));
    if (step >= steps - 10) mean += of_batch / 10;
  }
  return mean;
}

/// The token with the highest score.
std::int32_t best_of(const States<float>& logits, Index sequence, Index at) {
  const float* const row = &logits(sequence, at, 0);
  return static_cast<std::int32_t>(std::max_element(row, row + logits.dim(2)) - row);
}

/// Sequences of a toy language count up or down modulo 6 from any number; token 6 masks one number. The neighbours on
/// both sides show the direction.
TEST(NnLearning, EncoderFillsInMaskedTokens) {
  constexpr Index kBatch = 16, kLen = 7;
  constexpr std::int32_t kMasked = 6;
  Encoder<float> model({.tokens = 7, .context = kLen, .layer = {.features = 32, .heads = 4}}, 1);
  Random random(2);
  const auto batch = [&](Tokens& targets, std::vector<Index>& lengths) {
    Tokens tokens({kBatch, kLen});
    for (Index b = 0; b < kBatch; ++b) {
      const Index len = 4 + random.below(4), first = random.below(6), by = random.below(2) == 0 ? 1 : 5;
      for (Index i = 0; i < kLen; ++i) {
        tokens(b, i) = static_cast<std::int32_t>(i < len ? (first + i * by) % 6 : 0);
        targets(b, i) = CrossEntropy<float>::kIgnored;
      }
      const Index masked = random.below(len);
      targets(b, masked) = tokens(b, masked);
      tokens(b, masked) = kMasked;
      lengths[static_cast<std::size_t>(b)] = len;
    }
    return tokens;
  };
  CrossEntropy<float> criterion;
  Tokens targets({kBatch, kLen});
  std::vector<Index> lengths(kBatch);
  const double loss = trained(model, 350, 1e-2, [&](Encoder<float>& m) {
    const Tokens tokens = batch(targets, lengths);
    const double of_batch = criterion.forward(m.forward(tokens, lengths), targets);
    m.backward(criterion.backward());
    return of_batch;
  });
  EXPECT_LT(loss, 0.05) << "guessing is log 6, 1.8";
  const Tokens tokens = batch(targets, lengths);
  const States<float> logits = model(tokens, lengths);
  for (Index b = 0; b < kBatch; ++b)
    for (Index i = 0; i < kLen; ++i) {
      if (targets(b, i) == CrossEntropy<float>::kIgnored) continue;
      EXPECT_EQ(best_of(logits, b, i), targets(b, i)) << "sequence " << b << ", token " << i;
    }
}

/// Each target is its source, 1 to 5 digits, in reverse order, followed by the end token. After training, targets are
/// generated token by token.
TEST(NnLearning, TransformerReverses) {
  constexpr Index kBatch = 32, kLongest = 5;
  constexpr std::int32_t kBegin = 10, kEnd = 11, kIgnored = CrossEntropy<float>::kIgnored;
  Transformer<float> model({.source_tokens = 10,
                            .target_tokens = 12,
                            .encoder_layers = 1,
                            .decoder_layers = 1,
                            .layer = {.features = 32, .heads = 4, .activation = ActivationKind::gelu}},
                           3);
  Random random(4);
  struct Batch {
    Tokens sources{{kBatch, kLongest}}, targets{{kBatch, kLongest + 1}}, next{{kBatch, kLongest + 1}};
    std::vector<Index> lengths = std::vector<Index>(kBatch);
  };
  const auto draw = [&] {
    Batch batch;
    for (Index b = 0; b < kBatch; ++b) {
      const Index len = 1 + random.below(kLongest);
      batch.lengths[static_cast<std::size_t>(b)] = len;
      for (Index i = 0; i < kLongest; ++i) batch.sources(b, i) = static_cast<std::int32_t>(random.below(10));
      for (Index i = 0; i <= kLongest; ++i) {
        batch.next(b, i) = i < len ? batch.sources(b, len - 1 - i) : i == len ? kEnd : kIgnored;
        batch.targets(b, i) = i == 0 ? kBegin : i <= len ? batch.next(b, i - 1) : kEnd;
      }
    }
    return batch;
  };
  CrossEntropy<float> criterion;
  const double loss = trained(model, 500, 4e-3, [&](Transformer<float>& m) {
    const Batch batch = draw();
    const double of_batch = criterion.forward(m.forward(batch.sources, batch.lengths, batch.targets), batch.next);
    m.backward(criterion.backward());
    return of_batch;
  });
  EXPECT_LT(loss, 0.1) << "guessing has a loss above log 10 = 2.3";

  const Batch unseen = draw();
  auto state = model.encode(unseen.sources, unseen.lengths, kLongest + 1);
  Tokens token({kBatch, 1});
  std::fill_n(token.data(), kBatch, kBegin);
  Index right = 0, all = 0;
  for (Index i = 0; i <= kLongest; ++i) {
    const States<float> logits = model.next(token, state);
    for (Index b = 0; b < kBatch; ++b) {
      token(b, 0) = best_of(logits, b, 0);
      if (unseen.next(b, i) == kIgnored) continue;
      ++all;
      right += token(b, 0) == unseen.next(b, i);
    }
  }
  EXPECT_GE(right * 20, all * 19) << right << " of " << all;
}

/// Encodes letters and spaces as tokens.
Tokens text_of(const std::string& text) {
  Tokens tokens({1, static_cast<Index>(text.size())});
  std::transform(text.begin(), text.end(), tokens.data(), [](char c) { return c == ' ' ? 0 : c - 'a' + 1; });
  return tokens;
}

/// A model trained on the given number of threads, its loss, and its continuation of "the cat that".
struct Writer {
  std::vector<float> parameters;
  double loss;
  std::string text;
};
Writer writer(int threads) {
  set_threads(threads);
  const std::string sentence = "the cat that sat on the mat ate the rat ";
  const Tokens text = text_of(sentence + sentence + sentence);
  constexpr Index kLen = 40, kBatch = 5;
  Gpt<float> model({.tokens = 27, .context = 40, .layers = 2, .heads = 2, .features = 32}, 5);
  Random random(6);
  CrossEntropy<float> criterion;
  const double loss = trained(model, 200, 1e-2, [&](Gpt<float>& m) {
    Tokens tokens({kBatch, kLen}), next({kBatch, kLen});
    for (Index b = 0; b < kBatch; ++b) {
      const Index first = random.below(text.dim(1) - kLen);
      std::copy_n(&text(0, first), kLen, &tokens(b, 0));
      std::copy_n(&text(0, first + 1), kLen, &next(b, 0));
    }
    const double of_batch = criterion.forward(m.forward(tokens), next);
    m.backward(criterion.backward());
    return of_batch;
  });
  auto caches = model.make_caches(1);
  States<float> logits = model.next(text_of("the cat that"), caches);
  std::string written;
  for (int i = 0; i < 28; ++i) {
    const std::int32_t token = best_of(logits, 0, logits.dim(1) - 1);
    written += token == 0 ? ' ' : static_cast<char>('a' + token - 1);
    logits = model.next(tokens_of({{token}}), caches);
  }
  set_threads(1);
  return {all_values<float>(model), loss, written};
}

TEST(NnLearning, GptReproducesItsText) {
  const Writer one = writer(1), two = writer(2);
  EXPECT_LT(one.loss, 0.25) << "guessing has a loss of log 27 = 3.3; the letter after \"the \" needs the context";
  EXPECT_EQ(one.text, " sat on the mat ate the rat ");
  EXPECT_EQ(one.loss, two.loss);
  EXPECT_TRUE(one.parameters == two.parameters) << "differs with two threads";
}

}  // namespace
}  // namespace nn::test
