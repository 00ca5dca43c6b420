// Workloads of the benchmark `ring`, and measurement of the machine parameters that the scaling model takes.
#pragma once

#include <mpi.h>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include <attn/attn.h>
#include <attn/mpi.h>

#include "meet.h"
#include "random_tensor.h"
#include "scale_model.h"
#include "timing.h"

namespace bench {

using attn::Index;

/// One row of the table.
struct Work {
  Index len;
  bool causal = false;
  Index window = 0;  ///< 0: none
  bool backward = false;
  Distribution distribution = Distribution::zigzag;
};

struct Settings {
  Index len = 0;  ///< 0: those of the table
  Index heads = 8, kv_heads = 8, dim = 64;
  int threads = 1, rounds = 3;
  std::string only;  ///< run only rows whose names contain this
};

/// Rank, number of ranks and reductions of MPI_COMM_WORLD.
class World {
 public:
  World() {
    MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks_);
  }
  int rank() const { return rank_; }
  int ranks() const { return ranks_; }
  bool is_first() const { return rank_ == 0; }

  double most(double x) const { return reduced(x, MPI_MAX); }
  double sum(double x) const { return reduced(x, MPI_SUM); }

 private:
  static double reduced(double x, MPI_Op op) {
    double result = 0;
    MPI_Allreduce(&x, &result, 1, MPI_DOUBLE, op, MPI_COMM_WORLD);
    return result;
  }

  int rank_ = 0, ranks_ = 1;
};

/// Rows of tensors that are sent to the next rank while others arrive from the previous one. Their speed depends on
/// their layout, because MPI packs rows that are not contiguous, and on the number of concurrent messages.
class Parcel {
 public:
  /// Each message sends the first `rows` rows of `out`, (batch, heads, rows, dim), into those of `in`.
  struct Shapes {
    attn::Shape<4> out, in;
    Index rows;
    std::size_t messages = 1;
  };
  Parcel(const Shapes& shapes, const World& world)
      : next_((world.rank() + 1) % world.ranks()),
        last_((world.rank() + world.ranks() - 1) % world.ranks()),
        rows_(shapes.rows),
        out_(tensors(shapes.messages, shapes.out)),
        in_(tensors(shapes.messages, shapes.in)),
        messages_(comm_) {}

  void begin() {
    using attn::detail::DTypeView, attn::detail::MessageKind, attn::detail::rows_of_tensor;
    for (attn::Tensor<float, 4>& t : in_)
      messages_.receive(rows_of_tensor(DTypeView<float>(t.view()), 0, rows_), last_, MessageKind::rows, pending_);
    for (const attn::Tensor<float, 4>& t : out_)
      messages_.send(rows_of_tensor(DTypeView<const float>(t.view()), 0, rows_), next_, MessageKind::rows, pending_);
  }
  void poll() { messages_.poll(); }
  void end() { messages_.finish(pending_); }
  double bytes() const {
    return static_cast<double>(in_.size() * sizeof(float)) * static_cast<double>(in_[0].dim(1) * rows_ * in_[0].dim(3));
  }

 private:
  static std::vector<attn::Tensor<float, 4>> tensors(std::size_t count, const attn::Shape<4>& shape) {
    return std::vector<attn::Tensor<float, 4>>(count, attn::Tensor<float, 4>(shape));
  }

  const int next_, last_;
  const Index rows_;
  std::vector<attn::Tensor<float, 4>> out_, in_;
  attn::detail::Communicator comm_{MPI_COMM_WORLD};
  int pending_ = 0;
  attn::detail::Messages messages_;
};

/// One step of the model: all queries of a rank with half of another rank's keys.
class Step {
 public:
  Step(const Work& w, const Settings& s, int ranks)
      : rows(std::max<Index>(2, w.len / ranks) / 2 * 2),
        flops(static_cast<double>(w.backward ? 10 : 4) * static_cast<double>(rows) * static_cast<double>(rows / 2) *
              static_cast<double>(s.heads * s.dim)),
        backward_(w.backward),
        q_(random_tensor({1, s.heads, rows, s.dim}, 5)),
        k_(random_tensor({1, s.kv_heads, rows / 2, s.dim}, 6)),
        forward_(attn::attention(q_, k_, k_)) {}

  /// Runs the step. @returns the seconds of the slowest rank.
  double run(const World& world, const attn::Executor& executor) const {
    return world.most(seconds([&] {
      if (backward_)
        attn::attention_backward(q_, q_, k_, k_, forward_, {.executor = executor});
      else
        attn::attention(q_, k_, k_, attn::Options{.executor = executor});
    }));
  }

  const Index rows;
  const double flops;

 private:
  const bool backward_;
  const attn::Tensor<float, 4> q_, k_;
  const decltype(attn::attention(q_, k_, k_)) forward_;
};

/// Measures the model's parameters: the latency of a short message; the bandwidth of a parcel; the speed of a rank
/// while the others compute too; the bandwidth of a parcel while ranks compute, and the computing time that it costs.
inline Cluster measured_cluster(const Work& w, const Settings& s, const World& world) {
  const attn::Executor own = s.threads == 1 ? attn::serial() : attn::threads(s.threads);
  const Step step(w, s, world.ranks());
  const auto medians_of = [&](int rounds, const auto& measure) {
    std::vector<double> times;
    for (int round = 0; round <= rounds; ++round) {  // the first opens connections
      ranks::meet_asleep();
      times.push_back(measure());
    }
    times.erase(times.begin());
    return median(times);
  };
  const double time = medians_of(5, [&] { return step.run(world, own); });
  Cluster cluster{step.flops / time, 0, 1e300};
  if (world.ranks() == 1) return cluster;
  const auto travel = [&](Parcel& parcel) {
    MPI_Barrier(MPI_COMM_WORLD);  // ranks do not leave meet_asleep() at the same time
    return world.most(seconds([&] {
      parcel.begin();
      parcel.end();
    }));
  };
  // A ring sends keys and values, half of a rank's rows of all heads, into separate buffers. An exchange of heads sends
  // some heads of queries, keys and values into tensors of whole sequences, each half of a rank's rows separately.
  const Index rows = step.rows, heads = std::max<Index>(1, s.kv_heads / world.ranks());
  const bool by_heads = w.distribution == Distribution::by_heads;
  const Parcel::Shapes of_ring{{1, s.kv_heads, rows, s.dim}, {1, s.kv_heads, rows / 2, s.dim}, rows / 2, 2},
      of_heads{{1, heads, rows, s.dim}, {1, heads, rows * world.ranks(), s.dim}, rows / 2, 6};
  Parcel shortest({{1, 1, 1, s.dim}, {1, 1, 1, s.dim}, 1}, world), parcel(by_heads ? of_heads : of_ring, world);
  cluster.latency = medians_of(30, [&] { return travel(shortest); });
  cluster.bandwidth = parcel.bytes() / medians_of(5, [&] { return travel(parcel); });
  if (by_heads) return cluster;  // nothing is computed meanwhile
  // The parcel is sent while the step is computed, as in a ring. The time until the rest has arrived shows how much had
  // arrived before.
  const attn::Executor polling(std::make_shared<attn::detail::ProgressBackend>(own, [&] { parcel.poll(); }));
  std::vector<double> rest;
  const double beside = medians_of(5, [&] {
    parcel.begin();
    const double computing = step.run(world, polling);
    rest.push_back(world.most(seconds([&] { parcel.end(); })));
    return computing;
  });
  rest.erase(rest.begin());
  const double moved = std::max(parcel.bytes() - median(rest) * cluster.bandwidth, 0.01 * parcel.bytes());
  cluster.lost = moved < 0.05 * parcel.bytes() ? 0 : std::max(0.0, beside - time) / moved;
  // If the whole parcel arrived before the step ended, it may have been sent at full bandwidth.
  cluster.bandwidth_computing =
      moved < 0.98 * parcel.bytes() ? std::min(moved / beside, cluster.bandwidth) : cluster.bandwidth;
  return cluster;
}

}  // namespace bench
