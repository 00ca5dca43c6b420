// Several processes that train one model.
#pragma once

#include <functional>
#include <span>

namespace train_gpt {

/// The processes that train a model together, as one of them sees them: each takes some texts of every batch, and all
/// have the same model before and after each step. This class itself is a process alone.
class Ranks {
 public:
  virtual ~Ranks() = default;

  virtual int rank() const { return 0; }
  virtual int count() const { return 1; }
  /// Whether this process is the one that writes to terminal and files.
  bool is_first() const { return rank() == 0; }

  /// Replaces each number by the sum of those of all ranks, added in the order of ranks: the same bits on all of them,
  /// and in each run of as many ranks.
  virtual void add_up(std::span<float> /*numbers*/) {}
  virtual double add_up(double own) { return own; }
  /// Whether `own` holds on any rank.
  virtual bool any(bool own) { return own; }
};

/// Runs the program on all ranks that mpirun started, and reports what it throws as training::run_program() does, once.
/// Without MPI it only reports that there is none.
int run_over_ranks(int& argc, char**& argv, const std::function<int(Ranks&)>& program);

}  // namespace train_gpt
