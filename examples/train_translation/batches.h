// Batches of sentence pairs, as the model takes them.
#pragma once

#include <vector>

#include "random.h"
#include "translator.h"

namespace translation {

/// A pair as token ids. The target has no Pieces::kEnd.
struct Example {
  Ids source, target;
};

std::vector<Example> examples_of(const std::vector<Pair>& pairs, const Characters& characters, const Pieces& pieces);

/// A batch of sequences. `lengths` are those of the sources, which are padded at their ends. `given` begins with
/// Pieces::kEnd; `wanted` is the token after each of its tokens, and nn::CrossEntropy's kIgnored after the end.
struct Batch {
  nn::Tokens sources, given, wanted;
  std::vector<Index> lengths;
  Index tokens = 0;  ///< in sources and targets, without padding
};

/// Returns sequences of different lengths as the rows of one tensor.
nn::Tokens padded(const std::vector<Ids>& rows, std::int32_t padding);

Batch batch_of(const std::vector<Example>& examples, const std::vector<std::size_t>& which);

/// Returns the probability x / (x + n) for each character, n being its number of occurrences in the examples' sources.
std::vector<double> chances_of_hiding(const std::vector<Example>& examples, Index characters, double x);

/// Replaces each character of the sources by kUnknown with its probability; the sources' kEnd stays.
void hide_characters(Batch& batch, const std::vector<double>& chances, nn::Random& random);

/// Chooses the examples of each step. Every epoch visits each example once. A batch has examples of similar lengths, as
/// many as fit in `tokens` tokens including padding (a single example may exceed this).
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
