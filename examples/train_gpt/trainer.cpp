#include "trainer.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <stdexcept>

#include "cross_entropy.h"
#include "memory.h"
#include "schedule.h"

namespace train_gpt {

namespace {

const Options& checked(const Options& options) {
  check(options);
  return options;
}

nn::GptConfig model_config(const Options& options, const Vocabulary& vocabulary) {
  nn::GptConfig config = checked(options).model;
  config.tokens = vocabulary.size();
  training::require_memory(kBytesPerParameter * matrix_elements(config));
  return config;
}

/// Returns a generator that is independent of the one that draws the initial parameters.
nn::Random random_of_blocks(std::uint64_t seed) { return nn::Random(nn::Random(~seed).bits()); }

nn::CosineSchedule schedule_of(const Options& o) {
  return {.highest = o.learning_rate, .lowest = o.learning_rate / 10, .warm_up = o.warm_up, .decay_steps = o.steps};
}

/// Combines the ranks' gradients, weighted by their shares of the batch, into those of the whole batch.
void add_up_gradients(const std::vector<nn::Parameter<float>>& parameters, float share, Ranks& ranks) {
  std::vector<float> all;
  for (const nn::Parameter<float>& p : parameters)
    std::transform(p.gradient.begin(), p.gradient.end(), std::back_inserter(all), [&](float g) { return share * g; });
  ranks.add_up(all);
  auto from = all.cbegin();
  for (const nn::Parameter<float>& p : parameters) {
    std::copy_n(from, p.gradient.size(), p.gradient.begin());
    from += static_cast<std::ptrdiff_t>(p.gradient.size());
  }
}

}  // namespace

void require_sequences_for(const Ranks& ranks, const Options& options) {
  if (options.batch < ranks.count())
    throw std::invalid_argument("--mpi: --batch must be at least the number of ranks, " +
                                std::to_string(ranks.count()) + ", but is " + std::to_string(options.batch));
}

double matrix_elements(const nn::GptConfig& m) {
  const auto size = [](Index n) { return static_cast<double>(n); };
  return size(m.features) * (size(m.tokens) + size(m.context) + 12 * size(m.layers) * size(m.features));
}

State::State(const Options& o, Vocabulary v)
    : options(o),
      vocabulary(std::move(v)),
      model(model_config(options, vocabulary), options.seed),
      optimizer({.beta1 = options.beta1, .beta2 = options.beta2, .weight_decay = options.weight_decay}),
      random(random_of_blocks(options.seed)) {
  options.model = model.config();
}

State::State(const Options& o, const Text& text) : State(o, text.vocabulary()) {
  text_file = text.file().string();
  text_checksum = text.checksum();
}

double train_step(State& state, const Text& text) {
  Ranks alone;
  return train_step(state, text, alone);
}

double train_step(State& state, const Text& text, Ranks& ranks) {
  const Options& o = state.options;
  const Batch all = random_blocks(text.training(), o.batch, o.model.context, state.random);
  const Index first = o.batch * ranks.rank() / ranks.count(), last = o.batch * (ranks.rank() + 1) / ranks.count();
  const Batch batch{nn::Tokens(all.inputs.slice(0, first, last)), nn::Tokens(all.targets.slice(0, first, last))};
  state.model.visit_dropouts([&](auto& dropout) { dropout.set_first(first); });
  nn::CrossEntropy<float> cross_entropy;
  // This rank's mean is weighted by its share of the batch's blocks.
  const double share = static_cast<double>(last - first) / static_cast<double>(o.batch);
  const double own_loss = cross_entropy.forward(state.model.forward(batch.inputs), batch.targets);
  const auto loss = static_cast<float>(ranks.add_up(share * own_loss));
  if (!std::isfinite(loss))
    throw std::runtime_error("the loss of step " + std::to_string(state.step + 1) +
                             " is not finite: try a lower --learning-rate");
  nn::zero_gradients<float>(state.model);
  state.model.backward(cross_entropy.backward());
  const auto parameters = nn::parameters_of<float>(state.model);
  if (ranks.count() > 1) add_up_gradients(parameters, static_cast<float>(share), ranks);
  nn::clip_grad_norm(parameters, o.clip);
  state.optimizer.step(parameters, schedule_of(o)(state.step));
  ++state.step;
  state.losses.push_back(loss);
  return static_cast<double>(loss);
}

double validation_loss(const State& state, const Text& text, Index most) {
  return validation_loss([&](const nn::Tokens& tokens) { return state.model(tokens); }, text,
                         state.options.model.context, most);
}

double validation_loss(const std::function<nn::States<float>(const nn::Tokens&)>& model, const Text& text,
                       Index context, Index most) {
  constexpr std::size_t kBatch = 32;  // blocks at a time
  const auto tokens = text.validation();
  const nn::CrossEntropy<float> cross_entropy;
  double sum = 0, count = 0;
  const auto add = [&](const std::vector<Index>& starts, Index length) {
    const Batch batch = blocks_at(tokens, starts, length);
    const auto targets = static_cast<double>(batch.targets.size());
    sum += targets * cross_entropy(model(batch.inputs), batch.targets);
    count += targets;
  };
  const std::vector<Index> starts = block_starts(tokens, context, most);
  for (std::size_t i = 0; i < starts.size(); i += kBatch)
    add({starts.begin() + static_cast<std::ptrdiff_t>(i),
         starts.begin() + static_cast<std::ptrdiff_t>(std::min(i + kBatch, starts.size()))},
        context);
  const Index last = static_cast<Index>(tokens.size() - 1) / context * context;
  const Index rest = static_cast<Index>(tokens.size()) - 1 - last;
  const bool has_all = static_cast<Index>(starts.size()) * context == last;
  if (has_all && rest > 0) add({last}, rest);
  return sum / count;
}

}  // namespace train_gpt
