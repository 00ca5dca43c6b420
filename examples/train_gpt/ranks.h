// Processes that train one model together.
#pragma once

#include <functional>
#include <span>

namespace train_gpt {

/// The processes that train a model together, as one of them sees them: each takes some sequences of every batch, and
/// all have the same model before and after each step. This base class represents a single process.
class Ranks {
 public:
  virtual ~Ranks() = default;

  virtual int rank() const { return 0; }
  virtual int count() const { return 1; }
  /// Whether this process is the one that writes to the terminal and to files.
  bool is_first() const { return rank() == 0; }

  /// Replaces each element by its sum over all ranks, in the order of ranks: the same bits on all of them, and in each
  /// run with the same number of ranks.
  virtual void add_up(std::span<float> /*numbers*/) {}
  virtual double add_up(double own) { return own; }
  /// Whether `own` is true on any rank.
  virtual bool any(bool own) { return own; }
};

/// Runs the program on all ranks that mpirun started, and reports an exception as training::run_program() does, once.
/// Without MPI it only reports that MPI is missing.
int run_over_ranks(int& argc, char**& argv, const std::function<int(Ranks&)>& program);

}  // namespace train_gpt
