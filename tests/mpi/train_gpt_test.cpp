// Training a GPT on several ranks against training on a single one.
#include <gtest/gtest.h>
#include <mpi.h>

#include <cmath>
#include <cstddef>
#include <stdexcept>
#include <vector>

#include "mpi_ranks.h"
#include "trainer.h"

namespace {

using namespace train_gpt;

/// A batch size that neither two nor three ranks divide, and dropout, which must drop the same values as on one rank.
Options small_options() {
  Options options;
  options.model = {.context = 24, .layers = 2, .heads = 2, .features = 20, .dropout = 0.2};
  options.batch = 5;
  options.steps = 12;
  options.warm_up = 2;
  options.seed = 4;
  return options;
}

std::vector<float> parameter_values(State& state) {
  std::vector<float> all = state.losses;
  for (const nn::Parameter<float>& p : nn::parameters_of<float>(state.model))
    all.insert(all.end(), p.values.begin(), p.values.end());
  return all;
}

/// Losses and parameters after all steps.
std::vector<float> learned(const Text& text, Ranks& ranks) {
  State state(small_options(), text);
  while (state.step < state.options.steps) train_step(state, text, ranks);
  return parameter_values(state);
}

TEST(TrainGptOverRanks, MatchesASingleRank) {
  const Text text("");
  Ranks alone;
  MpiRanks all(MPI_COMM_WORLD);
  const std::vector<float> one = learned(text, alone), several = learned(text, all);
  ASSERT_EQ(one.size(), several.size());
  const auto steps = static_cast<std::size_t>(small_options().steps);
  for (std::size_t i = 0; i < steps; ++i) EXPECT_NEAR(several[i], one[i], 2e-5) << "loss of step " << i + 1;
  // AdamW divides gradients by their own size, so a rounding of a gradient near 0 may become a whole step; the average
  // difference must be small.
  double difference = 0, size = 0;
  for (std::size_t i = steps; i < one.size(); ++i) {
    difference += static_cast<double>(std::abs(several[i] - one[i]));
    size += static_cast<double>(std::abs(one[i]));
  }
  EXPECT_LT(difference, 1e-4 * size);
  EXPECT_EQ(learned(text, all), several) << "differs from run to run";

  std::vector<float> first = several;
  MPI_Bcast(first.data(), static_cast<int>(first.size()), MPI_FLOAT, 0, MPI_COMM_WORLD);
  EXPECT_EQ(first, several) << "differs between ranks";
}

TEST(TrainGptOverRanks, AddsInTheOrderOfRanks) {
  MpiRanks ranks(MPI_COMM_WORLD);
  // More values than are summed at once, with all of a float's digits, so that the order matters. Each rank can compute
  // the values of all.
  const auto number = [](int rank, std::size_t i) {
    const std::size_t digits = (i * 2654435761 + static_cast<std::size_t>(rank) * 7654321) % (1 << 23);
    return std::ldexp(1.0f + std::ldexp(static_cast<float>(digits), -23), (static_cast<int>(i % 7) + 5 * rank) % 7);
  };
  std::vector<float> own((std::size_t{1} << 22) + 5), wanted(own.size(), 0.0f);
  for (std::size_t i = 0; i < own.size(); ++i) {
    own[i] = number(ranks.rank(), i);
    for (int r = 0; r < ranks.count(); ++r) wanted[i] += number(r, i);
  }
  ranks.add_up(own);
  EXPECT_TRUE(own == wanted);
  EXPECT_EQ(ranks.add_up(1.0 + ranks.rank()), ranks.count() * (ranks.count() + 1) / 2);
  EXPECT_TRUE(ranks.any(ranks.rank() == ranks.count() - 1));
  EXPECT_FALSE(ranks.any(false));
}

TEST(TrainGptOverRanks, EachRankNeedsASequence) {
  const MpiRanks ranks(MPI_COMM_WORLD);
  Options options = small_options();
  options.batch = ranks.count();
  EXPECT_NO_THROW(require_sequences_for(ranks, options));
  options.batch = ranks.count() - 1;
  EXPECT_THROW(require_sequences_for(ranks, options), std::invalid_argument);
}

}  // namespace
