// Measures all kinds of attention over growing lengths: time, memory beyond inputs and output, and the exponents of
// their growth; for time, also the exponent over long lengths alone. One head of 64 features, on the calling thread.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <ctime>
#include <functional>
#include <iostream>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include <attn/attn.h>

#include "family_chart.h"
#include "memory.h"
#include "program.h"
#include "progress.h"
#include "random_tensor.h"
#include "table.h"
#include "timing.h"

namespace {

using namespace bench;
using attn::Index;

constexpr Index kDim = 64, kWindow = 256, kSelected = 256, kHidden = 64;

/// Tensors of one length.
struct Inputs {
  explicit Inputs(Index n)
      : q(random_tensor({1, 1, n, kDim}, 1)),
        k(random_tensor({1, 1, n, kDim}, 2)),
        v(random_tensor({1, 1, n, kDim}, 3)),
        out({1, 1, n, kDim}),
        gate({1, 1, n}),
        lse({1, 1, n}),
        beta({1, 1, n}),
        indices({n, std::min(n, kSelected)}),
        hidden_weight(random_tensor({1, 1, kHidden, kDim}, 4)),
        score_weight({kHidden}) {
    std::mt19937_64 random(5);
    for (Index i = 0; i < n; ++i) {
      gate.data()[i] = -0.01f;
      beta.data()[i] = 0.5f;
      Eigen::Map<Eigen::VectorXf>(k.data() + i * kDim, kDim).normalize();
    }
    std::uniform_int_distribution<std::int32_t> any_key(0, static_cast<std::int32_t>(n) - 1);
    for (Index i = 0; i < indices.size(); ++i) indices.data()[i] = any_key(random);
    std::fill_n(score_weight.data(), kHidden, 0.1f);
  }

  attn::Tensor<float, 4> q, k, v, out;
  attn::Tensor<float, 3> gate, lse, beta;
  attn::Tensor<std::int32_t, 2> indices;
  attn::Tensor<float, 4> hidden_weight;
  attn::Tensor<float, 1> score_weight;
};

struct Kind {
  std::string name;
  Index longest;  ///< the longest length to measure, limited by time or memory
  std::function<void(Inputs&)> call;
};

const attn::Options kSerial{.executor = attn::serial()};

template <class Mods>
std::function<void(Inputs&)> with(const Mods& mods) {
  return [mods](Inputs& x) { attn::attention_into(x.out, x.q, x.k, x.v, mods, kSerial); };
}

void additive(Inputs& x) {
  const attn::TensorView<const float, 2> weight(x.hidden_weight.data(), {kHidden, kDim});
  const attn::AdditiveScore<float> score{
      .query_weight = weight, .key_weight = weight, .score_weight = attn::view(std::as_const(x.score_weight))};
  attn::additive_attention_into(x.out, x.lse, x.q, x.k, x.v, score, attn::Mods<>(), kSerial);
}

std::vector<Kind> kinds() {
  return {
      {"naive", 16384, [](Inputs& x) { attn::naive_attention(x.q, x.k, x.v, attn::Mods<>(), kSerial); }},
      {"additive", 8192, additive},
      {"flash", 65536, with(attn::Mods<>())},
      {"strided, √n", 65536,
       [](Inputs& x) {
         const auto stride = static_cast<Index>(std::lround(std::sqrt(static_cast<double>(x.q.dim(2)))));
         attn::attention_into(x.out, x.q, x.k, x.v, attn::strided_sparse(stride), kSerial);
       }},
      {"window of 256", 65536, with(attn::causal() | attn::sliding_window(kWindow))},
      {"select 256 keys", 65536,
       [](Inputs& x) { attn::attention_into(x.out, x.q, x.k, x.v, attn::select(x.indices), kSerial); }},
      {"gated delta rule", 65536,
       [](Inputs& x) { attn::gated_delta_rule_into(x.out, x.q, x.k, x.v, x.gate, x.beta, attn::Mods<>(), kSerial); }},
      {"linear, causal", 65536,
       [](Inputs& x) { attn::linear_attention_into(x.out, x.q, x.k, x.v, attn::elu1(), attn::causal(), kSerial); }},
      {"linear", 65536,
       [](Inputs& x) { attn::linear_attention_into(x.out, x.q, x.k, x.v, attn::elu1(), attn::Mods<>(), kSerial); }},
  };
}

/// Returns the minimum of several runs, because other load only adds to it.
Timing least_of(const std::function<void()>& call, double budget) {
  Timing least;
  double spent = 0;
  for (int run = 0; run < 50 && (run == 0 || spent < budget); ++run) {
    const std::clock_t cpu = std::clock();
    const double time = seconds(call), cpu_time = static_cast<double>(std::clock() - cpu) / CLOCKS_PER_SEC;
    if (run == 0 || time < least.seconds) least.seconds = time, least.cpu_seconds = cpu_time;
    ++least.calls;
    spent += time;
  }
  return least;
}

std::string length_text(Index n) { return n % 1024 == 0 ? std::to_string(n / 1024) + " Ki" : std::to_string(n); }

/// Measures the kinds whose names contain `only`.
void run(Program& program, const std::string& only) {
  const bool quick = program.quick();
  const Index longest = quick ? 2048 : 65536;
  std::vector<Index> lengths;
  for (Index n = quick ? 256 : 1024; n <= longest; n *= 2) lengths.push_back(n);
  std::vector<Kind> all = kinds();
  keep_named(all, only, [](const Kind& kind) { return kind.name; });
  std::vector<Curve> times, memories;
  for (const Kind& kind : all) times.push_back({kind.name, {}}), memories.push_back({kind.name, {}});

  // Shares of the progress: a row takes half a second, or one call if that is longer, and the time of a call over all
  // pairs grows with the square of the length.
  std::vector<double> shares;
  for (const Index n : lengths)
    for (const Kind& kind : all)
      if (n <= kind.longest)
        shares.push_back(kind.name == "flash" ? 1 + std::pow(static_cast<double>(n) / 16384, 2) : 1);
  Progress progress(shares);
  for (const Index n : lengths) {
    Inputs x(n);
    for (std::size_t i = 0; i < all.size(); ++i) {
      if (n > all[i].longest) continue;
      progress.begin_row("n = " + std::to_string(n) + ", " + all[i].name);
      const auto call = [&] { all[i].call(x); };
      const auto memory = static_cast<double>(extra_memory(call));
      const Timing time = least_of(call, quick ? 0 : 0.5);
      times[i].points.push_back({static_cast<double>(n), time.seconds});
      if (memory > 0) memories[i].points.push_back({static_cast<double>(n), memory});
      program.results().add("n=" + std::to_string(n) + "/" + all[i].name, time, {{"extra_bytes", memory}});
    }
  }
  progress.clear();

  Table table(1);
  table.column("", "kind");
  for (const Index n : lengths) table.column("time, ms", length_text(n));
  const Index late = quick ? 512 : 4096;
  table.column("grows as", "time");
  table.column("grows as", "from " + length_text(late));
  table.column("grows as", "memory");
  table.column("memory", "longest");
  for (std::size_t i = 0; i < all.size(); ++i) {
    std::vector<std::string> row{all[i].name};
    for (std::size_t l = 0; l < lengths.size(); ++l)
      row.push_back(l < times[i].points.size() ? fixed(1e3 * times[i].points[l].y, 2) : "");
    row.push_back("n^" + fixed(exponent(times[i]), 2));
    row.push_back("n^" + fixed(exponent(times[i], static_cast<double>(late)), 2));
    row.push_back(memories[i].points.size() < 2 ? "" : "n^" + fixed(exponent(memories[i]), 2));
    row.push_back(memories[i].points.empty() ? "" : bytes_text(memories[i].points.back().y));
    table.row(row);
  }
  table.print(std::cout);
  program.draw(svg_of("Kinds of attention over growing lengths", times));
}

}  // namespace

int main(int argc, char** argv) {
  Program program(
      "family",
      "Times all kinds of attention over growing lengths, and reports the exponents with which time and memory grow.");
  std::string only;
  program.text("--only", only, "kinds whose names contain this, e.g. linear");
  return program.main(argc, argv, [&] { run(program, only); });
}
