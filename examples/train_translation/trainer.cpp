#include "trainer.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>

namespace translation {

namespace {

/// Constants that derive independent random streams from one seed.
constexpr std::uint64_t kBatchStream = 0x9d8f3c1b2a7e6554, kUnknownStream = 0x3b6e90d1c4f7a823;

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
      chances_of_hiding_(chances_of_hiding(examples, translator.characters.size(), config.unknown_characters)),
      loss_(config.label_smoothing),
      optimizer_({.beta2 = 0.98, .epsilon = 1e-9, .weight_decay = config.weight_decay}) {}

Trainer::Step Trainer::step() {
  Batch batch = batch_of(examples_, batches_.next());
  hide_characters(batch, chances_of_hiding_, random_);
  nn::Transformer<float>& model = translator_.model;
  nn::zero_gradients<float>(model);
  const double loss = loss_.forward(model.forward(batch.sources, batch.lengths, batch.given), batch.wanted);
  if (!std::isfinite(loss))
    throw std::runtime_error("the loss of step " + std::to_string(steps_done() + 1) +
                             " is not finite: try a lower --learning-rate");
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
