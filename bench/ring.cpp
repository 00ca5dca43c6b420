// Attention over the ranks of MPI against one process with as many threads: time, bytes sent, waiting, and what the
// model of scale says. Start it with mpirun.
#include <mpi.h>
#include <sched.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <functional>
#include <iostream>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <attn/attn.h>
#include <attn/mpi.h>
#include <CLI/CLI.hpp>

#include "program.h"
#include "progress.h"
#include "random_tensor.h"
#include "scale_model.h"
#include "table.h"
#include "timing.h"

namespace {

using namespace bench;
using attn::Index;

/// One row of the table.
struct Work {
  Index len;
  bool causal = false;
  Index window = 0;  ///< 0: none
  bool backward = false;
  Way way = Way::zigzag;
};

struct Settings {
  Index len = 0;  ///< 0: those of the table
  Index heads = 8, kv_heads = 8, dim = 64;
  int threads = 1, rounds = 3;
  std::string only;  ///< of the rows those whose names have it
};

std::string text(const Work& w) {
  return "N=" + std::to_string(w.len) + (w.causal ? " causal" : "") +
         (w.window > 0 ? " window=" + std::to_string(w.window) : "") + (w.backward ? " backward" : "");
}

std::string way_text(const Work& w) { return "/" + std::string(kWayNames[static_cast<std::size_t>(w.way)]); }

/// The ranks, as this program meets them.
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

  /// Waits for all ranks, asleep: rank 0 may have the whole machine to itself meanwhile.
  void meet() const {
    MPI_Request request;
    MPI_Ibarrier(MPI_COMM_WORLD, &request);
    for (int done = 0; !done;) {
      MPI_Test(&request, &done, MPI_STATUS_IGNORE);
      if (!done) std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
  }

 private:
  static double reduced(double x, MPI_Op op) {
    double result = 0;
    MPI_Allreduce(&x, &result, 1, MPI_DOUBLE, op, MPI_COMM_WORLD);
    return result;
  }

  int rank_ = 0, ranks_ = 1;
};

/// Rank 0 is compared with as many threads as all ranks have, which must not share a core.
void expect_cores(const Settings& s, const World& world) {
  cpu_set_t cores;
  if (!world.is_first() || sched_getaffinity(0, sizeof cores, &cores) != 0) return;
  const int needed = s.threads * world.ranks(), has = CPU_COUNT(&cores);
  if (has < needed)
    std::cerr
        << "ring: rank 0 may use " << has << (has == 1 ? " core" : " cores") << ", and is to run " << needed
        << " threads by itself: that side of the comparison will be slow. Open MPI binds ranks to cores unless told "
           "--bind-to none\n";
}

/// Calls use(mods) with the masks of a work.
template <class Use>
void with_mods(const Work& w, const Use& use) {
  if (w.window > 0)
    use(attn::causal() | attn::sliding_window(w.window));
  else if (w.causal)
    use(attn::causal());
  else
    use(attn::Mods<>());
}

/// The tensors of a whole text on rank 0, and the rows of all ranks.
struct Tensors {
  Tensors(const Work& w, const Settings& s, const World& world, attn::mpi::Ring& ring) {
    const attn::Shape<4> queries{1, s.heads, w.len, s.dim}, keys{1, s.kv_heads, w.len, s.dim};
    const auto draw = [&](attn::Tensor<float, 4>& own, std::optional<attn::Tensor<float, 4>>& whole,
                          const attn::Shape<4>& shape, unsigned seed) {
      if (world.is_first()) whole = random_tensor(shape, seed);
      own = ring.scatter(whole ? *whole : attn::Tensor<float, 4>({1, 1, 0, 1}), 0);
    };
    draw(q, whole_q, queries, 1);
    draw(k, whole_k, keys, 2);
    draw(v, whole_v, keys, 3);
    if (w.backward) draw(grad, whole_grad, queries, 4);
  }

  std::optional<attn::Tensor<float, 4>> whole_q, whole_k, whole_v, whole_grad;
  attn::Tensor<float, 4> q, k, v, grad;
};

/// What was measured of a row.
struct Row {
  Timing ring, one;
  double bytes_sent = 0, bytes_held = 0, waited = 0;
};

attn::mpi::Layout layout_of(Way way) {
  return way == Way::contiguous ? attn::mpi::Layout::contiguous : attn::mpi::Layout::zigzag;
}

Row measure(const Work& w, const Settings& s, const World& world, Progress* progress) {
  attn::mpi::Ring ring(MPI_COMM_WORLD, layout_of(w.way));
  Tensors x(w, s, world, ring);
  attn::Options own{.executor = s.threads == 1 ? attn::serial() : attn::threads(s.threads)};
  const attn::Executor all = attn::threads(s.threads * world.ranks());

  Row row;
  std::vector<double> times, one, waits;
  with_mods(w, [&](const auto& mods) {
    const auto forward = [&] {
      return w.way == Way::by_heads ? ring.attention_by_heads(x.q, x.k, x.v, mods, own)
                                    : ring.attention(x.q, x.k, x.v, mods, own);
    };
    const auto result = forward();
    std::optional<decltype(attn::attention(*x.whole_q, *x.whole_k, *x.whole_v, mods))> whole;
    if (world.is_first()) whole = attn::attention(*x.whole_q, *x.whole_k, *x.whole_v, mods, {.executor = all});

    for (int round = 0; round < s.rounds; ++round) {
      if (progress) progress->round(round, s.rounds);
      world.meet();
      times.push_back(world.most(seconds([&] {
        if (w.backward && w.way == Way::by_heads)
          ring.attention_by_heads_backward(x.grad, x.q, x.k, x.v, result, mods, own);
        else if (w.backward)
          ring.attention_backward(x.grad, x.q, x.k, x.v, result, mods, own);
        else
          forward();
      })));
      waits.push_back(world.most(ring.traffic().seconds_waited));
      if (world.is_first())
        one.push_back(seconds([&] {
          const attn::Options options{.executor = all};
          if (w.backward)
            attn::attention_backward(*x.whole_grad, *x.whole_q, *x.whole_k, *x.whole_v, *whole, mods, options);
          else
            attn::attention(*x.whole_q, *x.whole_k, *x.whole_v, mods, options);
        }));
    }
  });
  row.ring = {median(times), 0, s.rounds};
  row.one = {median(one), 0, s.rounds};
  row.waited = median(waits);
  row.bytes_sent = world.sum(static_cast<double>(ring.traffic().bytes_sent));
  row.bytes_held = world.most(static_cast<double>(ring.traffic().bytes_held));
  return row;
}

/// Rows of half of a rank's keys, of about so many bytes: they go to the next rank while others come from the last.
class Parcels {
 public:
  Parcels(const Settings& s, const World& world, std::size_t bytes)
      : next_((world.rank() + 1) % world.ranks()),
        last_((world.rank() + world.ranks() - 1) % world.ranks()),
        rows_(std::max<Index>(1, static_cast<Index>(bytes / sizeof(float)) / (s.kv_heads * s.dim))),
        out_({1, s.kv_heads, 2 * rows_, s.dim}),
        in_(out_.shape()),
        messages_(comm_) {}

  void begin() {
    using attn::detail::DTypeView, attn::detail::MessageKind, attn::detail::rows_of_tensor;
    messages_.receive(rows_of_tensor(DTypeView<float>(in_.view()), 0, rows_), last_, MessageKind::keys, under_way_);
    messages_.send(rows_of_tensor(DTypeView<const float>(out_.view()), 0, rows_), next_, MessageKind::keys, under_way_);
  }
  void poll() { messages_.poll(); }
  void end() { messages_.finish(under_way_); }
  double bytes() const { return static_cast<double>(out_.size() / 2) * sizeof(float); }

 private:
  const int next_, last_;
  const Index rows_;
  attn::Tensor<float, 4> out_, in_;
  attn::detail::Communicator comm_{MPI_COMM_WORLD};
  int under_way_ = 0;
  attn::detail::Messages messages_;
};

/// What the model is told of the machine: a short message, a long one, attention as a rank computes it while the others
/// do the same; and how far messages come meanwhile, and how much time of the cores they take.
Cluster measured_cluster(const Settings& s, const World& world, bool quick) {
  Cluster cluster{1, 0, 1e300};
  if (world.ranks() > 1) {
    const auto one_way = [&](std::size_t bytes, int rounds) {
      Parcels parcels(s, world, bytes);
      std::vector<double> times;
      for (int round = 0; round <= rounds; ++round) {  // the first makes connections
        MPI_Barrier(MPI_COMM_WORLD);
        times.push_back(world.most(seconds([&] {
          parcels.begin();
          parcels.end();
        })));
      }
      times.erase(times.begin());
      return std::pair(median(times), parcels.bytes());
    };
    cluster.latency = one_way(1, 50).first;
    const auto [time, bytes] = one_way(std::size_t{16} << 20, 5);
    cluster.bandwidth = bytes / time;
  }
  const Index len = quick ? 512 : 2048;
  const auto q = random_tensor({1, s.heads, len, s.dim}, 5), k = random_tensor({1, s.kv_heads, len, s.dim}, 6);
  const attn::Executor own = s.threads == 1 ? attn::serial() : attn::threads(s.threads);
  const auto compute = [&](const attn::Executor& executor) {
    return seconds([&] { attn::attention(q, k, k, attn::Options{.executor = executor}); });
  };
  std::vector<double> alone, beside;
  for (int round = 0; round < 5; ++round) {
    world.meet();
    alone.push_back(world.most(compute(own)));
  }
  const double time = median(alone);
  const auto n = static_cast<double>(len);
  cluster.flops_per_second = 4 * n * n * static_cast<double>(s.heads * s.dim) / time;
  if (world.ranks() > 1) {
    // More than can travel meanwhile: what has not come at the end shows how much has.
    Parcels parcels(s, world, static_cast<std::size_t>(std::min(2 * time * cluster.bandwidth, 64e6)));
    const attn::Executor polling(std::make_shared<attn::detail::ProgressBackend>(own, [&] { parcels.poll(); }));
    std::vector<double> rest;
    for (int round = 0; round < 5; ++round) {
      world.meet();
      parcels.begin();
      beside.push_back(world.most(compute(polling)));
      rest.push_back(world.most(seconds([&] { parcels.end(); })));
    }
    const double moved = std::max(parcels.bytes() - median(rest) * cluster.bandwidth, 0.01 * parcels.bytes());
    cluster.lost = moved < 0.05 * parcels.bytes() ? 0 : std::max(0.0, median(beside) - time) / moved;
    // If all of it has come before the end, it went as fast as it can.
    cluster.bandwidth_beside =
        moved < 0.98 * parcels.bytes() ? std::min(moved / median(beside), cluster.bandwidth) : cluster.bandwidth;
  }
  return cluster;
}

/// Bytes of the keys and values that ranks need of others, at least: those up to a window before their own.
double bytes_needed(const Work& w, const Settings& s, int ranks) {
  const double window = static_cast<double>(w.window - 1);
  return (ranks - 1) * window * 2.0 * static_cast<double>(s.kv_heads * s.dim) * sizeof(float);
}

std::vector<Work> works(bool quick, int ranks, const Settings& s) {
  const Index n = s.len > 0 ? s.len : quick ? 512 : 16384;
  std::vector<Work> all{{n}, {n, true}, {n, true, 0, false, Way::contiguous}};
  if (s.heads >= ranks) all.push_back({n, true, 0, false, Way::by_heads});
  all.push_back({n, false, 0, true});
  all.push_back({n, true, 0, true});
  if (s.heads >= ranks) all.push_back({n, true, 0, true, Way::by_heads});
  all.push_back({quick ? 2048 : 65536, true, quick ? 64 : 1024, false, Way::contiguous});
  all.erase(std::remove_if(all.begin(), all.end(),
                           [&](const Work& w) { return (text(w) + way_text(w)).find(s.only) == std::string::npos; }),
            all.end());
  if (all.empty()) throw std::invalid_argument("no row has \"" + s.only + "\" in its name");
  return all;
}

void run(Program& program, const Settings& settings, const World& world) {
  Settings s = settings;
  if (program.quick()) s.rounds = 2;
  expect_cores(s, world);
  const std::vector<Work> all = works(program.quick(), world.ranks(), s);
  std::optional<Progress> progress;
  if (world.is_first()) progress.emplace(all.size());
  const Cluster cluster = measured_cluster(s, world, program.quick());

  Table table(2);
  for (const auto& [heading, below] :
       std::initializer_list<std::pair<const char*, const char*>>{{"", "work"},
                                                                  {"", "way"},
                                                                  {"", "time"},
                                                                  {"of one process'", "speed"},
                                                                  {"", "predicted"},
                                                                  {"", "sent"},
                                                                  {"waited", "of the time"},
                                                                  {"held by", "a rank"}})
    table.column(heading, below);
  BarChart chart{.title = "Attention over " + std::to_string(world.ranks()) + " ranks of " + std::to_string(s.threads) +
                          (s.threads == 1 ? " thread" : " threads"),
                 .notes = {std::to_string(s.heads) + " heads of " + std::to_string(s.dim) + " features, float; " +
                           fixed(cluster.flops_per_second / 1e9, 0) + " GFLOP/s a rank, " + time_text(cluster.latency) +
                           " and " + fixed(cluster.bandwidth / 1e9, 2) + " GB/s between ranks"},
                 .series = {"measured", "predicted"},
                 .mark = "one process with as many threads",
                 .axes = {{.heading = "time (shorter is better)", .unit = "seconds"}}};
  for (const Work& w : all) {
    if (progress) progress->begin_row(text(w) + way_text(w));
    const Row row = measure(w, s, world, progress ? &*progress : nullptr);
    if (!world.is_first()) continue;
    const double time = row.ring.seconds;
    std::optional<Prediction> predicted;
    if (w.window == 0)
      predicted = predict({static_cast<double>(w.len), static_cast<double>(s.heads), static_cast<double>(s.kv_heads),
                           static_cast<double>(s.dim), sizeof(float), w.causal, w.backward},
                          w.way, world.ranks(), cluster);
    const std::string way = way_text(w).substr(1);
    std::string sent = bytes_text(row.bytes_sent);
    if (w.window > 0 && world.ranks() > 1)
      sent += " (" + fixed(row.bytes_sent / bytes_needed(w, s, world.ranks()), 2) + " x needed)";
    table.row({text(w), way, time_text(time), fixed(row.one.seconds / time, 2) + " x",
               predicted ? time_text(predicted->seconds) + " (" + fixed(predicted->seconds / time, 2) + " x)" : "",
               sent, fixed(100 * row.waited / time, 1) + " %", bytes_text(row.bytes_held)});
    Counters counters{{"of_one_process", row.one.seconds / time},
                      {"bytes_sent", row.bytes_sent},
                      {"bytes_held", row.bytes_held},
                      {"share_waited", row.waited / time}};
    if (predicted) counters.emplace_back("predicted_seconds", predicted->seconds);
    program.results().add(text(w) + "/" + way, row.ring, counters);
    BarChart::Group group{
        .name = text(w), .detail = way, .bars = {{0, {{time, time_text(time)}}}}, .mark = row.one.seconds};
    if (predicted) group.bars.push_back({1, {{predicted->seconds, time_text(predicted->seconds)}}});
    chart.groups.push_back(group);
  }
  if (!world.is_first()) return;
  progress->clear();
  std::cout << world.ranks() << " ranks of " << s.threads << " threads; attention at "
            << fixed(cluster.flops_per_second / 1e9, 1) << " GFLOP/s a rank, " << time_text(cluster.latency) << " and "
            << fixed(cluster.bandwidth / 1e9, 2) << " GB/s between ranks, " << fixed(1e3 * cluster.lost * (1 << 20), 2)
            << " ms of computing lost by a MiB that travels\n\n";
  table.print(std::cout);
  for (const auto& [key, value] :
       std::initializer_list<std::pair<const char*, double>>{{"flops_per_second", cluster.flops_per_second},
                                                             {"latency", cluster.latency},
                                                             {"bandwidth", cluster.bandwidth},
                                                             {"bandwidth_beside", cluster.bandwidth_beside},
                                                             {"lost_ms_per_mib", 1e3 * cluster.lost * (1 << 20)}})
    program.results().about(key, std::to_string(value));
  program.draw(chart);
}

}  // namespace

int main(int argc, char** argv) {
  int provided = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &provided);
  int code = 0;
  {
    const World world;
    Program program("ring",
                    "Times attention over the ranks that mpirun starts against one process with as many threads, and "
                    "against the model of scale. Rank 0 writes.");
    Settings settings;
    program.options().add_option("--threads", settings.threads, "of each rank")->check(CLI::Range(1, 1024));
    program.options().add_option("--rounds", settings.rounds, "of which medians are taken")->check(CLI::Range(1, 100));
    program.options().add_option("--only", settings.only, "rows whose name (\"N=16384 causal/zigzag\") has this text");
    program.options().add_option("--len", settings.len, "tokens, in the place of 16384")->check(CLI::Range(1, 1 << 24));
    program.options().add_option("--heads", settings.heads, "query heads")->check(CLI::Range(1, 1024));
    program.options()
        .add_option("--kv-heads", settings.kv_heads, "heads of keys and values")
        ->check(CLI::Range(1, 1024));
    program.options().add_option("--dim", settings.dim, "features of a head")->check(CLI::Range(1, 1024));
    if (!world.is_first()) program.be_silent();
    code = program.main(argc, argv, [&] { run(program, settings, world); });
  }
  // A rank that fails alone would leave the others waiting.
  if (code != 0) MPI_Abort(MPI_COMM_WORLD, code);
  MPI_Finalize();
  return code;
}
