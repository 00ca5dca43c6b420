#include "trainer.h"

#include <algorithm>

namespace translation {

namespace {

/// Streams of random numbers that have nothing to do with each other, from one seed.
constexpr std::uint64_t kBatchStream = 0x9d8f3c1b2a7e6554, kUnknownStream = 0x3b6e90d1c4f7a823;

std::vector<double> chances_of_unknown(const std::vector<Example>& examples, Index characters, double x) {
  std::vector<double> counts(static_cast<std::size_t>(characters), 0.0);
  for (const Example& example : examples)
    for (const std::int32_t id : example.source) ++counts[static_cast<std::size_t>(id)];
  std::vector<double> chances;
  for (const double n : counts) chances.push_back(x > 0 ? x / (x + n) : 0);
  return chances;
}

Index count_wanted(const nn::Tokens& wanted) {
  return std::count_if(wanted.data(), wanted.data() + wanted.size(),
                       [](std::int32_t id) { return id != nn::CrossEntropy<float>::kIgnored; });
}

}  // namespace

Trainer::Trainer(Translator& translator, const std::vector<Example>& examples, const TrainingConfig& config)
    : translator_(translator),
      examples_(examples),
      config_(config),
      schedule_{config.learning_rate, config.lowest_rate, config.warm_up, std::max(config.steps, config.warm_up + 1)},
      batches_(examples, config.batch_tokens, config.seed ^ kBatchStream),
      random_(config.seed ^ kUnknownStream),
      hidden_(chances_of_unknown(examples, translator.characters.size(), config.unknown_characters)),
      loss_(config.label_smoothing),
      optimizer_({.beta2 = 0.98, .epsilon = 1e-9, .weight_decay = config.weight_decay}) {}

void Trainer::hide_characters(Batch& batch) {
  if (config_.unknown_characters <= 0) return;
  for (Index b = 0; b < batch.sources.dim(0); ++b)
    for (Index i = 0; i + 1 < batch.lengths[static_cast<std::size_t>(b)]; ++i) {
      std::int32_t& id = batch.sources(b, i);
      if (random_.uniform() < hidden_[static_cast<std::size_t>(id)]) id = Characters::kUnknown;
    }
}

Trainer::Step Trainer::step() {
  Batch batch = batch_of(examples_, batches_.next());
  hide_characters(batch);
  nn::Transformer<float>& model = translator_.model;
  nn::zero_gradients<float>(model);
  const double loss = loss_.forward(model.forward(batch.sources, batch.lengths, batch.given), batch.wanted);
  model.backward(loss_.backward());
  const auto parameters = nn::parameters_of<float>(model);
  nn::clip_grad_norm(parameters, config_.clip);
  optimizer_.step(parameters, schedule_(optimizer_.steps()));
  return {loss, batch.tokens};
}

double mean_loss(const Translator& translator, const std::vector<Example>& examples, Index batch_tokens) {
  Batches batches(examples, batch_tokens, 0);
  const nn::CrossEntropy<float> loss;
  double sum = 0;
  Index count = 0;
  for (Index i = 0; i < batches.per_epoch(); ++i) {
    const Batch batch = batch_of(examples, batches.next());
    const Index wanted = count_wanted(batch.wanted);
    sum +=
        loss(translator.model(batch.sources, batch.lengths, batch.given), batch.wanted) * static_cast<double>(wanted);
    count += wanted;
  }
  return count > 0 ? sum / static_cast<double>(count) : 0;
}

}  // namespace translation
