#include "train.h"

#include <cmath>
#include <stdexcept>

#include "adamw.h"
#include "continue_text.h"
#include "cross_entropy.h"
#include "decimals.h"
#include "interrupt.h"
#include "printable.h"
#include "progress.h"
#include "schedule.h"
#include "trainer.h"

namespace train_hybrid {

namespace {

constexpr Index kValidationBlocks = 64;  // during training; about a tenth of Shakespeare's
constexpr Index kSampleLength = 120;

/// Takes a step of AdamW and returns the loss before it.
double step(nn::Hybrid<float>& network, nn::AdamW<float>& optimizer, const train_gpt::Batch& batch, double rate) {
  nn::CrossEntropy<float> cross_entropy;
  const double loss = cross_entropy.forward(network.forward(batch.inputs), batch.targets);
  nn::zero_gradients<float>(network);
  network.backward(cross_entropy.backward());
  const auto parameters = nn::parameters_of<float>(network);
  nn::clip_grad_norm(parameters, 1);
  optimizer.step(parameters, rate);
  return loss;
}

}  // namespace

Outcome train(LanguageModel& model, const train_gpt::Text& text, const Options& o) {
  text.require_blocks_of(o.context);
  nn::Hybrid<float>& network = model.network;
  nn::AdamW<float> optimizer({.beta2 = 0.99, .weight_decay = o.weight_decay});
  const nn::CosineSchedule schedule{
      .highest = o.learning_rate, .lowest = o.learning_rate / 10, .warm_up = o.warm_up, .decay_steps = o.steps};
  nn::Random random(~o.seed);
  const training::Interrupt interrupt;
  training::Progress progress(o.steps);
  Outcome run;
  progress.say(text.name() + ": " + std::to_string(text.size()) + " characters, " +
               std::to_string(model.vocabulary.size()) +
               " distinct. Model: " + std::to_string(nn::count_parameters<float>(network)) + " parameters.");
  const auto validate = [&](Index done, Index blocks) {
    const double loss =
        train_gpt::validation_loss([&](const nn::Tokens& x) { return network(x); }, text, o.context, blocks);
    run.validation[done] = loss;
    progress.say("step " + std::to_string(done) + ": validation loss " + training::fixed(loss, 3));
  };
  const auto sample = [&](Index done) {
    return run.samples[done] = continue_text(model, "", kSampleLength, {.seed = o.seed});
  };
  validate(0, kValidationBlocks);
  Index done = 0;
  while (done < o.steps && !interrupt.requested()) {
    const train_gpt::Batch batch = train_gpt::random_blocks(text.training(), o.batch, o.context, random);
    const double loss = step(network, optimizer, batch, schedule(done));
    ++done;
    if (!std::isfinite(loss))
      throw std::runtime_error("the loss of step " + std::to_string(done) +
                               " is not finite: try a lower --learning-rate");
    run.losses.push_back(loss);
    progress.update(done, loss, o.batch * o.context);
    if (o.validation_every == 0 || done % o.validation_every != 0 || done == o.steps) continue;
    validate(done, kValidationBlocks);
    progress.say("step " + std::to_string(done) + " writes:\n" + nn::as_text(sample(done)));
  }
  run.tokens_per_second = progress.tokens_per_second();
  run.interrupted = interrupt.requested();
  if (run.interrupted) {
    run.exit_code = interrupt.exit_code();
  } else {
    validate(done, 0);
    sample(done);
  }
  run.seconds = progress.seconds();
  progress.finish();
  return run;
}

}  // namespace train_hybrid
