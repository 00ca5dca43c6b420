// MPI ranks that train one model.
#pragma once

#include <mpi.h>

#include <vector>

#include "ranks.h"

namespace train_gpt {

/// The ranks of a communicator, which must outlive this object.
class MpiRanks final : public Ranks {
 public:
  explicit MpiRanks(MPI_Comm comm);

  int rank() const override { return rank_; }
  int count() const override { return count_; }
  void add_up(std::span<float> numbers) override;
  double add_up(double own) override;
  bool any(bool own) override;

 private:
  void add_up_piece(std::span<float> piece);

  MPI_Comm comm_;
  int rank_ = 0, count_ = 1;
  std::vector<float> shares_;
};

}  // namespace train_gpt
