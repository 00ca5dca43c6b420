// Pairs as a model takes them.
#pragma once

#include <vector>

#include "random.h"
#include "translator.h"

namespace translation {

/// A pair in numbers. The target has no Pieces::kEnd.
struct Example {
  Ids source, target;
};

std::vector<Example> examples_of(const std::vector<Pair>& pairs, const Characters& characters, const Pieces& pieces);

/// Sequences side by side. `lengths` are those of the sources; behind them stands padding. `given` begins with
/// Pieces::kEnd; `wanted` is what follows each of its tokens, and nn::CrossEntropy's kIgnored behind the end.
struct Batch {
  nn::Tokens sources, given, wanted;
  std::vector<Index> lengths;
  Index tokens = 0;  ///< of sources and targets, without padding
};

/// Sequences of different lengths as the rows of one tensor.
nn::Tokens padded(const std::vector<Ids>& rows, std::int32_t padding);

Batch batch_of(const std::vector<Example>& examples, const std::vector<std::size_t>& which);

/// The chance x / (x + n) for each character, which occurs n times in the examples' sources.
std::vector<double> chances_of_hiding(const std::vector<Example>& examples, Index characters, double x);

/// Makes each character of the sources kUnknown with its chance. The ends of the sources stay.
void hide_characters(Batch& batch, const std::vector<double>& chances, nn::Random& random);

/// Which examples each step learns from. Every epoch has all of them once. A batch has examples of similar lengths, and
/// as many as fit into `tokens` tokens with their padding (one example alone may have more).
class Batches {
 public:
  Batches(const std::vector<Example>& examples, Index tokens, std::uint64_t seed);

  const std::vector<std::size_t>& next();

  Index per_epoch() const { return static_cast<Index>(batches_.size()); }

 private:
  void shuffle();

  const std::vector<Example>& examples_;
  Index tokens_;
  nn::Random random_;
  std::vector<std::vector<std::size_t>> batches_;
  std::size_t next_ = 0;
};

}  // namespace translation
