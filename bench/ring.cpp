// Times attention over MPI ranks against one process with as many threads: time, bytes sent, waiting, and the
// prediction of the scaling model. Start it with mpirun.
#include <mpi.h>
#include <sched.h>

#include <array>
#include <cstddef>
#include <functional>
#include <iostream>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <attn/attn.h>
#include <attn/mpi.h>

#include "meet.h"
#include "program.h"
#include "progress.h"
#include "random_tensor.h"
#include "ring_machine.h"
#include "scale_model.h"
#include "table.h"
#include "timing.h"

namespace {

using namespace bench;

std::string text(const Work& w) {
  return "N=" + std::to_string(w.len) + (w.causal ? " causal" : "") +
         (w.window > 0 ? " window=" + std::to_string(w.window) : "") + (w.backward ? " backward" : "");
}

std::string distribution_text(const Work& w) {
  return "/" + std::string(kDistributionNames[static_cast<std::size_t>(w.distribution)]);
}

/// Warns if rank 0 has too few cores to run as many threads as all ranks together, for the comparison.
void expect_cores(const Settings& s, const World& world) {
  cpu_set_t cores;
  if (!world.is_first() || sched_getaffinity(0, sizeof cores, &cores) != 0) return;
  const int needed = s.threads * world.ranks(), has = CPU_COUNT(&cores);
  if (has < needed)
    std::cerr << "ring: rank 0 may use " << has << (has == 1 ? " core" : " cores") << ", but must run " << needed
              << " threads for the comparison, whose times will therefore be too long. Open MPI binds ranks to cores "
                 "unless run with "
                 "--bind-to none\n";
}

/// Calls use(mods) with the masks of a workload.
template <class Use>
void with_mods(const Work& w, const Use& use) {
  if (w.window > 0)
    use(attn::causal() | attn::sliding_window(w.window));
  else if (w.causal)
    use(attn::causal());
  else
    use(attn::Mods<>());
}

/// Tensors of the whole sequence on rank 0, and the rows of all ranks.
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

/// Measurements of a row.
struct Row {
  Timing ring, one;
  double bytes_sent = 0, bytes_held = 0, waited = 0;
};

attn::mpi::Layout layout_of(Distribution distribution) {
  return distribution == Distribution::contiguous ? attn::mpi::Layout::contiguous : attn::mpi::Layout::zigzag;
}

Row measure(const Work& w, const Settings& s, const World& world, Progress* progress) {
  attn::mpi::Ring ring(MPI_COMM_WORLD, layout_of(w.distribution));
  Tensors x(w, s, world, ring);
  attn::Options own{.executor = s.threads == 1 ? attn::serial() : attn::threads(s.threads)};
  const attn::Executor all = attn::threads(s.threads * world.ranks());

  Row row;
  std::vector<double> times, one, waits;
  with_mods(w, [&](const auto& mods) {
    const auto forward = [&] {
      return w.distribution == Distribution::by_heads ? ring.attention_by_heads(x.q, x.k, x.v, mods, own)
                                                      : ring.attention(x.q, x.k, x.v, mods, own);
    };
    const auto result = forward();
    std::optional<decltype(attn::attention(*x.whole_q, *x.whole_k, *x.whole_v, mods))> whole;
    if (world.is_first()) whole = attn::attention(*x.whole_q, *x.whole_k, *x.whole_v, mods, {.executor = all});

    for (int round = 0; round < s.rounds; ++round) {
      if (progress) progress->round(round, s.rounds);
      ranks::meet_asleep();  // the other ranks sleep while rank 0 uses the machine alone
      times.push_back(world.most(seconds([&] {
        if (w.backward && w.distribution == Distribution::by_heads)
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

/// Returns the minimum number of bytes of keys and values that ranks need from others: those up to one window before
/// their own.
double bytes_needed(const Work& w, const Settings& s, int ranks) {
  const double window = static_cast<double>(w.window - 1);
  return (ranks - 1) * window * 2.0 * static_cast<double>(s.kv_heads * s.dim) * sizeof(float);
}

std::vector<Work> workloads(bool quick, int ranks, const Settings& s) {
  const Index n = s.len > 0 ? s.len : quick ? 512 : 16384;
  std::vector<Work> all{{n}, {n, true}, {n, true, 0, false, Distribution::contiguous}};
  if (s.heads >= ranks) all.push_back({n, true, 0, false, Distribution::by_heads});
  all.push_back({n, false, 0, true});
  all.push_back({n, true, 0, true});
  if (s.heads >= ranks) all.push_back({n, true, 0, true, Distribution::by_heads});
  all.push_back({quick ? 2048 : 65536, true, quick ? 64 : 1024, false, Distribution::contiguous});
  keep_named(all, s.only, [](const Work& w) { return text(w) + distribution_text(w); });
  return all;
}

void run(Program& program, const Settings& settings, const World& world) {
  Settings s = settings;
  if (program.quick()) s.rounds = 2;
  expect_cores(s, world);
  const std::vector<Work> all = workloads(program.quick(), world.ranks(), s);
  std::optional<Progress> progress;
  if (world.is_first()) progress.emplace(all.size());
  std::map<std::string, Cluster> clusters;  // per length, pass and kind of messages
  const auto cluster_of = [&](const Work& w) {
    const std::string key = "N=" + std::to_string(w.len) + (w.backward ? " backward" : "") +
                            (w.distribution == Distribution::by_heads ? " by heads" : "");
    if (!clusters.contains(key)) clusters[key] = measured_cluster(w, s, world);
    return clusters[key];
  };
  const Cluster first = cluster_of(all.front());

  Table table(2);
  for (const auto& [heading, below] :
       std::initializer_list<std::pair<const char*, const char*>>{{"", "work"},
                                                                  {"", "distribution"},
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
                           fixed(first.flops_per_second / 1e9, 0) + " GFLOP/s per rank, " + time_text(first.latency) +
                           " and " + fixed(first.bandwidth / 1e9, 2) + " GB/s between ranks"},
                 .series = {"measured", "predicted"},
                 .mark = "one process with as many threads",
                 .axes = {{.heading = "time (shorter is better)", .unit = "seconds"}}};
  for (const Work& w : all) {
    if (progress) progress->begin_row(text(w) + distribution_text(w));
    const std::optional<Cluster> cluster = w.window == 0 ? std::optional(cluster_of(w)) : std::nullopt;
    const Row row = measure(w, s, world, progress ? &*progress : nullptr);
    if (!world.is_first()) continue;
    const double time = row.ring.seconds;
    std::optional<Prediction> predicted;
    if (cluster)
      predicted = predict({static_cast<double>(w.len), static_cast<double>(s.heads), static_cast<double>(s.kv_heads),
                           static_cast<double>(s.dim), sizeof(float), w.causal, w.backward},
                          w.distribution, world.ranks(), *cluster);
    const std::string distribution = distribution_text(w).substr(1);
    std::string sent = bytes_text(row.bytes_sent);
    if (w.window > 0 && world.ranks() > 1)
      sent += " (" + fixed(row.bytes_sent / bytes_needed(w, s, world.ranks()), 2) + " x needed)";
    table.row({text(w), distribution, time_text(time), fixed(row.one.seconds / time, 2) + " x",
               predicted ? time_text(predicted->seconds) + " (" + fixed(predicted->seconds / time, 2) + " x)" : "",
               sent, fixed(100 * row.waited / time, 1) + " %", bytes_text(row.bytes_held)});
    Counters counters{{"of_one_process", row.one.seconds / time},
                      {"bytes_sent", row.bytes_sent},
                      {"bytes_held", row.bytes_held},
                      {"share_waited", row.waited / time}};
    if (predicted) counters.emplace_back("predicted_seconds", predicted->seconds);
    program.results().add(text(w) + "/" + distribution, row.ring, counters);
    BarChart::Group group{
        .name = text(w), .detail = distribution, .bars = {{0, {{time, time_text(time)}}}}, .mark = row.one.seconds};
    if (predicted) group.bars.push_back({1, {{predicted->seconds, time_text(predicted->seconds)}}});
    chart.groups.push_back(group);
  }
  if (!world.is_first()) return;
  progress->clear();
  std::cout << world.ranks() << " ranks of " << s.threads << " threads\n";
  for (const auto& [name, c] : clusters) {
    std::cout << name << ": " << fixed(c.flops_per_second / 1e9, 1) << " GFLOP/s per rank, " << time_text(c.latency)
              << " and " << fixed(c.bandwidth / 1e9, 2) << " GB/s between ranks, "
              << fixed(c.bandwidth_computing / 1e9, 2) << " GB/s while they compute, "
              << fixed(1e3 * c.lost * (1 << 20), 2) << " ms of computing lost per MiB sent\n";
    for (const auto& [what, value] :
         std::initializer_list<std::pair<const char*, double>>{{"flops_per_second", c.flops_per_second},
                                                               {"latency", c.latency},
                                                               {"bandwidth", c.bandwidth},
                                                               {"bandwidth_computing", c.bandwidth_computing},
                                                               {"lost_ms_per_mib", 1e3 * c.lost * (1 << 20)}})
      program.results().about(name + " " + what, std::to_string(value));
  }
  std::cout << '\n';
  table.print(std::cout);
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
                    "against the scaling model. Rank 0 writes the results.");
    Settings settings;
    program.number("--threads", settings.threads, "threads per rank", 1, 1024);
    program.number("--rounds", settings.rounds, "rounds, of which the median is reported", 1, 100);
    program.text("--only", settings.only, "rows whose name (\"N=16384 causal/zigzag\") contains this");
    program.number("--len", settings.len, "tokens, instead of 16384", 1, 1 << 24);
    program.number("--heads", settings.heads, "query heads", 1, 1024);
    program.number("--kv-heads", settings.kv_heads, "key/value heads", 1, 1024);
    program.number("--dim", settings.dim, "features per head", 1, 1024);
    if (!world.is_first()) program.be_silent();
    code = program.main(argc, argv, [&] { run(program, settings, world); });
  }
  // A rank that fails alone would leave the others waiting.
  if (code != 0) MPI_Abort(MPI_COMM_WORLD, code);
  MPI_Finalize();
  return code;
}
