// Training on sentence pairs.
#pragma once

#include "adamw.h"
#include "batches.h"
#include "cross_entropy.h"
#include "schedule.h"

namespace translation {

struct TrainingConfig {
  Index steps = 160, warm_up = 30;
  Index batch_tokens = 4096;  ///< in sources and targets, including padding
  double learning_rate = 3e-3;
  double lowest_rate = 3e-5;  ///< at the last step
  double weight_decay = 0.01;
  double label_smoothing = 0.1;
  double clip = 1;  ///< limit on the norm of all gradients
  /// A character that occurs n times is replaced by kUnknown with probability x / (x + n) in each example, where x is
  /// this number, so that the model learns to handle characters that it has never seen (Kiperwasser & Goldberg 2016).
  double unknown_characters = 0;
  std::uint64_t seed = 1;
};

class Trainer {
 public:
  /// The translator and the examples must outlive it.
  Trainer(Translator& translator, const std::vector<Example>& examples, const TrainingConfig& config);

  struct Step {
    double loss;
    Index tokens;  ///< in the batch, without padding
  };
  /// Takes a step. @throws std::runtime_error if the loss is not finite; the parameters are then unchanged.
  Step step();

  Index steps_done() const { return optimizer_.steps(); }
  Index steps_per_epoch() const { return batches_.per_epoch(); }

 private:
  Translator& translator_;
  const std::vector<Example>& examples_;
  TrainingConfig config_;
  nn::CosineSchedule schedule_;
  Batches batches_;
  nn::Random random_;
  std::vector<double> chances_of_hiding_;  // per character
  nn::CrossEntropy<float> loss_;
  nn::AdamW<float> optimizer_;
};

/// Returns the mean loss over the examples' tokens, without label smoothing.
double mean_loss(const Translator& translator, const std::vector<Example>& examples, Index batch_tokens);

}  // namespace translation
