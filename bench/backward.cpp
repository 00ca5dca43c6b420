// Times gradients, with all runs interleaved: the backward pass, both passes and forward mode against the forward pass,
// and the backward pass against its definition. The FMA peak is measured before each round. One head.
#include <array>
#include <cmath>
#include <cstddef>
#include <functional>
#include <iostream>
#include <stdexcept>
#include <string>
#include <vector>

#include <attn/attn.h>

#include "memory.h"
#include "peak.h"
#include "program.h"
#include "progress.h"
#include "table.h"
#include "timing.h"
#include "timing_with_peak.h"
#include "workload.h"

namespace {

using namespace bench;

struct Work {
  Workload call;
  int threads = 1;
  bool naive = false;  ///< whether to time the definition too, which needs several q_len x kv_len matrices
};

std::string text(const Work& w) {
  return sizes(w.call) + (w.call.mod_set == ModSet::full ? "" : std::string(" ").append(name(w.call.mod_set))) +
         (w.call.scalar == Scalar::float32 ? "" : " double") + (w.threads == 1 ? "" : " 2 threads");
}

enum Variant { forward, backward, both, jvp, naive };
constexpr std::size_t kVariants = 5;
constexpr std::array<const char*, kVariants> kNames{"forward", "backward", "both", "jvp", "naive backward"};
/// Flops of each variant relative to the forward pass, which has two products; the backward pass has five and forward
/// mode six.
constexpr std::array<double, kVariants> kFlops{1, 2.5, 3.5, 3, 2.5};

struct Timings {
  std::string work;
  std::array<Timing, kVariants> times{};
  std::array<double, kVariants> rates{};  ///< 0 if not timed
  double peak = 0;
  std::ptrdiff_t memory = 0, naive_memory = 0;
};

template <class T>
double dot(const attn::Tensor<T, 4>& a, const attn::Tensor<T, 4>& b) {
  double sum = 0;
  for (Index i = 0; i < a.size(); ++i) sum += static_cast<double>(a.data()[i]) * static_cast<double>(b.data()[i]);
  return sum;
}

/// Checks gradients against a tangent. @throws std::runtime_error if they disagree.
template <class T>
void check(const std::string& work, double by_gradients, double by_tangent, double size) {
  const double allowed = (std::is_same_v<T, float> ? 1e-4 : 1e-12) * size;
  if (std::abs(by_gradients - by_tangent) <= allowed) return;
  throw std::runtime_error(work + ": gradients say " + std::to_string(by_gradients) + ", the tangent " +
                           std::to_string(by_tangent));
}

template <class T>
Timings measure(const Work& w, const Budget& budget, Progress& progress) {
  const attn::Options options{.executor = attn::threads(w.threads)};
  const Inputs<T> x = make_inputs<T>(w.call), direction = make_inputs<T>(w.call, 2);
  const attn::Tensor<T, 4>&q = x.q_numbers, &k = x.k_numbers, &v = x.v_numbers;
  const attn::Tensor<T, 4>&dq = direction.q_numbers, &dk = direction.k_numbers, &dv = direction.v_numbers;
  const attn::Tensor<T, 4> grad_out = make_inputs<T>(w.call, 3).q_numbers;
  Timings row;
  row.work = text(w);
  with_mods(w.call, [&](const auto& mods) {
    auto result = attn::attention(q, k, v, mods, options);
    auto grad_q = q, grad_k = k, grad_v = v;
    const auto gradients = [&](const attn::Options& o) {
      attn::attention_backward_into(grad_q, grad_k, grad_v, grad_out, q, k, v, result.out, result.lse, mods, o);
    };
    // The workspace is reused, as in training. Otherwise variants would be timed with the page faults that follow when
    // another variant frees its memory.
    std::vector<std::byte> workspace(attn::backward_workspace_bytes(q, k, v, mods, options));
    attn::Options with_workspace = options;
    with_workspace.workspace = workspace;
    std::array<std::function<void()>, kVariants> calls;
    calls[forward] = [&] { attn::attention_into(result.out, result.lse, q, k, v, mods, options); };
    calls[backward] = [&] { gradients(with_workspace); };
    calls[both] = [&] {
      calls[forward]();
      calls[backward]();
    };
    calls[jvp] = [&] { attn::attention_jvp(q, k, v, dq, dk, dv, mods, options); };
    calls[naive] = [&] { attn::naive_attention_backward(grad_out, q, k, v, mods, options); };

    row.memory = extra_memory([&] { gradients(options); });
    const auto tangent = attn::attention_jvp(q, k, v, dq, dk, dv, mods, options).tangent;
    const double by_gradients = dot(grad_q, dq) + dot(grad_k, dk) + dot(grad_v, dv),
                 size = std::sqrt(dot(grad_out, grad_out) * dot(tangent, tangent));
    check<T>(row.work, by_gradients, dot(grad_out, tangent), size);
    if (w.naive) {
      row.naive_memory = extra_memory(calls[naive]);
      const auto g = attn::naive_attention_backward(grad_out, q, k, v, mods, options);
      check<T>(row.work, dot(g.query, dq) + dot(g.key, dk) + dot(g.value, dv), by_gradients, size);
    }

    const std::vector<std::function<void()>> timed(calls.begin(), calls.begin() + (w.naive ? naive + 1 : naive));
    const auto [times, peak] = interleaved_with_peak<T>(timed, budget, options.executor, progress);
    for (std::size_t i = 0; i < times.size(); ++i) {
      row.times[i] = times[i];
      row.rates[i] = kFlops[i] * flops(w.call) / times[i].seconds;
    }
    row.peak = peak;
  });
  return row;
}

std::string mebibytes(std::ptrdiff_t bytes) { return fixed(static_cast<double>(bytes) / (1 << 20), 1) + " MiB"; }

void print(const std::vector<Timings>& rows) {
  Table table(1);
  table.column("", "work");
  for (int variant : {forward, backward, both, jvp}) {
    table.column(kNames[static_cast<std::size_t>(variant)], "ms");
    table.column(kNames[static_cast<std::size_t>(variant)], "GFLOP/s");
    table.column(kNames[static_cast<std::size_t>(variant)], "of peak");
    if (variant == backward || variant == jvp) table.column(kNames[static_cast<std::size_t>(variant)], "of forward");
  }
  table.column("naive backward", "ms");
  table.column("naive backward", "speed-up");
  table.column("extra memory", "backward");
  table.column("extra memory", "naive");
  for (const Timings& r : rows) {
    std::vector<std::string> cells{r.work};
    for (std::size_t variant : {forward, backward, both, jvp}) {
      cells.push_back(fixed(1e3 * r.times[variant].seconds, 1));
      cells.push_back(fixed(r.rates[variant] / 1e9, 0));
      cells.push_back(fixed(100 * r.rates[variant] / r.peak, 0) + " %");
      if (variant == backward || variant == jvp) cells.push_back(fixed(r.rates[variant] / r.rates[forward], 2) + " x");
    }
    const bool timed = r.rates[naive] > 0;
    cells.push_back(timed ? fixed(1e3 * r.times[naive].seconds, 1) : "");
    cells.push_back(timed ? fixed(r.times[naive].seconds / r.times[backward].seconds, 1) + " x" : "");
    cells.push_back(mebibytes(r.memory));
    cells.push_back(timed ? mebibytes(r.naive_memory) : "");
    table.row(cells);
  }
  table.print(std::cout);
}

BarChart chart_of(const std::vector<Timings>& rows) {
  BarChart chart{
      .title = "Gradients compared with the forward pass",
      .notes = {"One head, float and one thread unless stated otherwise; the backward pass does 2.5 times the flops "
                "of the forward pass, jvp 3 times."},
      .series = {kNames.begin(), kNames.end()},
      .mark = "",
      .axes = {{"Speed: longer is better", "share of the FMA peak", BarChart::Scale::linear, " %"},
               {"Extra memory: shorter is better", "peak heap usage during the call (log scale)",
                BarChart::Scale::bytes, "", 240}}};
  for (const Timings& r : rows) {
    BarChart::Group group{.name = r.work, .detail = "", .bars = {}};
    for (std::size_t variant = 0; variant < kVariants; ++variant) {
      if (r.rates[variant] == 0) continue;
      BarChart::Bar bar{variant, {{100 * r.rates[variant] / r.peak, time_text(r.times[variant].seconds)}, {}}};
      const std::ptrdiff_t memory = variant == backward ? r.memory : variant == naive ? r.naive_memory : 0;
      if (memory > 0) bar.on[1] = {static_cast<double>(memory), bytes_text(static_cast<double>(memory))};
      group.bars.push_back(std::move(bar));
    }
    chart.groups.push_back(std::move(group));
  }
  return chart;
}

void add_results(Results& results, const std::vector<Timings>& rows) {
  for (const Timings& r : rows)
    for (std::size_t variant = 0; variant < kVariants; ++variant)
      if (r.rates[variant] > 0)
        results.add(
            r.work + "/" + kNames[variant], r.times[variant],
            {{"flops_per_second", r.rates[variant]}, {"of_fma_peak", r.rates[variant] / r.peak}, {"fma_peak", r.peak}});
}

Work work(Index len, Index dim, ModSet mod_set = ModSet::full, bool with_naive = false, Scalar scalar = Scalar::float32,
          int threads = 1) {
  return {{.scalar = scalar,
           .mod_set = mod_set,
           .heads = 1,
           .kv_heads = 1,
           .q_len = len,
           .kv_len = len,
           .head_dim = dim,
           .v_dim = dim},
          threads,
          with_naive};
}

}  // namespace

int main(int argc, char** argv) {
  Program program("backward", "Times gradients of attention against its forward pass and against the naive gradients.");
  double seconds = 2;
  program.number("--seconds", seconds, "for each variant of each row", 0.001, 3600.0);
  return program.main(argc, argv, [&] {
    using enum ModSet;
    const bool quick = program.quick();
    const std::vector<Work> works = quick ? std::vector<Work>{work(200, 64, causal_softcap_alibi, true),
                                                              work(130, 40, full, true, Scalar::float64, 2)}
                                          : std::vector<Work>{work(2048, 64, full, true),
                                                              work(2048, 128, full, true),
                                                              work(4096, 64, full, true),
                                                              work(8192, 64),
                                                              work(8192, 128),
                                                              work(8192, 64, full, false, Scalar::float32, 2),
                                                              work(2048, 64, causal, true),
                                                              work(4096, 64, causal, true),
                                                              work(4096, 64, causal_softcap_alibi, true),
                                                              work(2048, 64, full, true, Scalar::float64)};
    std::cout << "one thread unless stated otherwise, " << to_string(attn::default_isa()) << ", FMA peak by "
              << fma_set_name() << "; medians of interleaved runs\n\n";
    std::vector<Timings> rows;
    Progress progress(works.size());
    for (const Work& w : works) {
      progress.begin_row(text(w));
      const Budget budget = quick ? Budget{0.001, 1} : Budget{seconds, 5};
      rows.push_back(w.call.scalar == Scalar::float32 ? measure<float>(w, budget, progress)
                                                      : measure<double>(w, budget, progress));
    }
    progress.clear();
    print(rows);
    program.draw(chart_of(rows));
    add_results(program.results(), rows);
  });
}
