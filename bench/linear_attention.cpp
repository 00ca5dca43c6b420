// Times linear attention, its gated forms and the delta rules, with gradients: against the FMA peak of the same run,
// against their token-by-token definitions and, for single tokens, against reading and writing their states. Also times
// the causal convolution that precedes many recurrences, against a copy. On the calling thread.
#include <cmath>
#include <functional>
#include <iostream>
#include <string>
#include <utility>
#include <vector>

#include <attn/attn.h>

#include "program.h"
#include "progress.h"
#include "random_tensor.h"
#include "table.h"
#include "timing.h"
#include "timing_with_peak.h"

namespace {

using namespace bench;
using attn::Index;
using Tensor4 = attn::Tensor<float, 4>;
using Tensor3 = attn::Tensor<float, 3>;

const attn::Options kSerial{.executor = attn::serial()};

/// Inputs of all forms. Keys have norm 1, as the delta rule expects; gates let states remember about a hundred tokens.
/// The vectors of the DPLR delta rule remove roughly what the delta rule would.
struct Inputs {
  Inputs(Index batch, Index heads, Index len, Index dim)
      : q(random_tensor({batch, heads, len, dim}, 1)),
        k(random_tensor({batch, heads, len, dim}, 2)),
        v(random_tensor({batch, heads, len, dim}, 3)),
        gates(random_tensor({batch, heads, len, dim}, 4)),
        gate({batch, heads, len}),
        beta({batch, heads, len}),
        out({batch, heads, len, dim}) {
    for (Index i = 0; i < gates.size(); ++i) gates.data()[i] = -0.01f * std::abs(gates.data()[i]);
    for (Index i = 0; i < gate.size(); ++i) {
      gate.data()[i] = gates.data()[i * dim];
      beta.data()[i] = 1 / (1 + std::exp(q.data()[i * dim]));
      Eigen::Map<Eigen::VectorXf>(k.data() + i * dim, dim).normalize();
    }
    a = b = k;
    for (Index i = 0; i < b.size(); ++i) b.data()[i] *= -beta.data()[i / dim];
  }
  Index tokens() const { return gate.size(); }
  Index dim() const { return q.dim(3); }

  Tensor4 q, k, v, gates, a, b;
  Tensor3 gate, beta;
  Tensor4 out;
};

struct Variant {
  std::string name;
  double flops;
  std::function<void()> call;
};

/// `flops_of_token`: nominal flops per token, in units of head_dim * v_dim.
Variant variant(const std::string& name, const Inputs& in, double flops_of_token, std::function<void()> call) {
  const double dim = static_cast<double>(in.dim());
  return {name, flops_of_token * static_cast<double>(in.tokens()) * dim * dim, std::move(call)};
}

/// Destinations of a run's results.
struct Output {
  Results& results;
  Progress progress;
  BarChart chart;

  /// Adds a bar for a variant of a workload; `share` is relative to the yardstick.
  void add(const std::string& work, const std::string& variant, const Timing& time, double share, Counters counters) {
    const std::string heading = work != last_ ? work : "";
    last_ = work;
    chart.groups.push_back({.name = variant,
                            .detail = "",
                            .bars = {{0, {{100 * share, time_text(time.seconds)}}}},
                            .mark = BarChart::kNone,
                            .heading = heading});
    results.add(work + "/" + variant, time, std::move(counters));
  }

  std::string last_ = "";
};

void print_rates(const std::string& title, const std::vector<Variant>& variants, const Budget& budget, Output& output) {
  output.progress.begin_row(title);
  std::vector<std::function<void()>> calls;
  for (const Variant& w : variants) calls.push_back(w.call);
  const auto [times, peak] = interleaved_with_peak<float>(calls, budget, attn::serial(), output.progress);
  output.progress.clear();
  Table table(1);
  for (const char* heading : {"", "ms", "GFLOP/s", "% of peak"}) table.column(heading, "");
  for (std::size_t i = 0; i < variants.size(); ++i) {
    const double rate = variants[i].flops / times[i].seconds;
    table.row({variants[i].name, fixed(1e3 * times[i].seconds, 2), fixed(rate / 1e9, 1), fixed(100 * rate / peak, 1)});
    output.add(title + ": share of the FMA peak", variants[i].name, times[i], rate / peak,
               {{"flops_per_second", rate}, {"of_fma_peak", rate / peak}, {"fma_peak", peak}});
  }
  std::cout << title << "; FMA peak " << fixed(peak / 1e9, 0) << " GFLOP/s\n";
  table.print(std::cout);
  std::cout << '\n';
}

void lengths(Index len, const Budget& budget, Output& output) {
  Inputs in(1, 1, len, 64);
  const auto favor = attn::favor(64, 1);
  const auto linear = [&](const auto& map, const auto& mods) {
    return [&in, map, mods] { attn::linear_attention_into(in.out, in.q, in.k, in.v, map, mods, kSerial); };
  };
  print_rates("One head, N=" + std::to_string(len) + " D=64",
              {variant("elu1, every key", in, 4, linear(attn::elu1(), attn::Mods<>())),
               variant("elu1, causal", in, 6, linear(attn::elu1(), attn::causal())),
               variant("relu, causal", in, 6, linear(attn::relu(), attn::causal())),
               variant("favor of 64, causal", in, 6, linear(favor, attn::causal()))},
              budget, output);
}

void gates(Index len, const Budget& budget, Output& output) {
  Inputs in(1, 8, len, 128);
  const auto decays = attn::retention_decay(8);
  attn::RecurrentState<float> state({.kv_heads = 8, .features = 128});
  const auto token = [](auto& t, Index i) { return t.view().slice(2, i, i + 1); };
  print_rates("8 heads, N=" + std::to_string(len) + " D=128",
              {variant("a gate for each head", in, 6,
                       [&] { attn::gated_attention_into(in.out, in.q, in.k, in.v, decays, kSerial); }),
               variant("a gate for each token", in, 6,
                       [&] { attn::gated_attention_into(in.out, in.q, in.k, in.v, in.gate, kSerial); }),
               variant("a gate for each feature", in, 6,
                       [&] { attn::gated_attention_into(in.out, in.q, in.k, in.v, in.gates, kSerial); }),
               variant("gated delta rule", in, 6,
                       [&] { attn::gated_delta_rule_into(in.out, in.q, in.k, in.v, in.gate, in.beta, kSerial); }),
               variant("gated delta rule, a gate for each feature", in, 6,
                       [&] { attn::gated_delta_rule_into(in.out, in.q, in.k, in.v, in.gates, in.beta, kSerial); }),
               variant("DPLR delta rule", in, 8,
                       [&] { attn::dplr_delta_rule_into(in.out, in.q, in.k, in.v, in.a, in.b, in.gates, kSerial); }),
               variant("gated delta rule, one token per call", in, 6,
                       [&] {
                         state.reset();
                         for (Index i = 0; i < in.q.dim(2); ++i)
                           attn::gated_delta_rule_into(token(in.out, i), state, token(in.q, i), token(in.k, i),
                                                       token(in.v, i), token(in.gate, i), token(in.beta, i), kSerial);
                       }),
               variant("gated delta rule by its definition", in, 6,
                       [&] { attn::naive_gated_delta_rule(in.q, in.k, in.v, in.gate, in.beta, kSerial); })},
              budget, output);
}

/// Prints times relative to that of the first variant, which reads and writes `bytes` and does nothing else. Calls
/// `begin` before each round.
void print_shares(const std::string& title, double bytes, const std::string& yardstick,
                  const std::vector<Variant>& variants, const std::function<void()>& begin, const Budget& budget,
                  Output& output) {
  std::vector<std::function<void()>> calls;
  for (const Variant& w : variants) calls.push_back(w.call);
  output.progress.begin_row(title);
  const std::vector<Timing> times = interleaved(calls, budget, [&](int round, int rounds) {
    output.progress.round(round, rounds);
    begin();
  });
  output.progress.clear();
  Table table(1);
  for (const std::string& heading : {std::string(), std::string("us"), std::string("GB/s"), "% of " + yardstick})
    table.column(heading, "");
  for (std::size_t i = 0; i < variants.size(); ++i) {
    const double time = times[i].seconds, share = times[0].seconds / time;
    table.row({variants[i].name, fixed(1e6 * time, 1), fixed(bytes / time / 1e9, 1), fixed(100 * share, 1)});
    output.add(title + ": share of " + yardstick, variants[i].name, times[i], share,
               {{"bytes_per_second", bytes / time}, {"of_reading_and_writing", share}});
  }
  std::cout << title << '\n';
  table.print(std::cout);
  std::cout << '\n';
}

/// Reads and writes all of a state, as processing a token requires.
void touch(attn::RecurrentState<float>& state) {
  float* const x = state.sums().data();
  const Index n = state.bytes() / static_cast<Index>(sizeof(float)) - state.normaliser().size();
  for (Index i = 0; i < n; ++i) x[i] *= 0.999f;
}

void decode(Index batch, const Budget& budget, Output& output) {
  Inputs in(batch, 32, 1, 128);
  attn::RecurrentState<float> state({.batch = batch, .kv_heads = 32, .features = 128});
  const auto decays = attn::retention_decay(32);
  const std::vector<Variant> variants = {
      {"reading and writing it", 0, [&] { touch(state); }},
      {"linear, elu1", 0,
       [&] { attn::linear_attention_into(in.out, state, in.q, in.k, in.v, attn::elu1(), attn::causal(), kSerial); }},
      {"a gate for each head", 0,
       [&] { attn::gated_attention_into(in.out, state, in.q, in.k, in.v, decays, kSerial); }},
      {"a gate for each token", 0,
       [&] { attn::gated_attention_into(in.out, state, in.q, in.k, in.v, in.gate, kSerial); }},
      {"a gate for each feature", 0,
       [&] { attn::gated_attention_into(in.out, state, in.q, in.k, in.v, in.gates, kSerial); }},
      {"gated delta rule", 0,
       [&] { attn::gated_delta_rule_into(in.out, state, in.q, in.k, in.v, in.gate, in.beta, kSerial); }},
      {"gated delta rule, a gate for each feature", 0,
       [&] { attn::gated_delta_rule_into(in.out, state, in.q, in.k, in.v, in.gates, in.beta, kSerial); }},
      {"DPLR delta rule", 0,
       [&] { attn::dplr_delta_rule_into(in.out, state, in.q, in.k, in.v, in.a, in.b, in.gates, kSerial); }}};
  const double bytes = static_cast<double>(state.bytes());
  print_shares(
      "One token, batch " + std::to_string(batch) + ", 32 heads, D=128: a state of " + bytes_text(bytes), 2 * bytes,
      "reading and writing it", variants, [&] { state.reset(); }, budget, output);
}

/// Outputs and gradients, in turn. A backward pass is counted as three forward passes: it computes the forward pass
/// again, and each product has two gradients.
void gradients(Index len, const Budget& budget, Output& output) {
  Inputs in(1, 8, len, 128);
  const Tensor4 grad = random_tensor({1, 8, len, 128}, 5);
  print_rates("Gradients, 8 heads, N=" + std::to_string(len) + " D=128",
              {variant("a gate for each token", in, 6,
                       [&] { attn::gated_attention_into(in.out, in.q, in.k, in.v, in.gate, kSerial); }),
               variant("a gate for each token, gradients", in, 18,
                       [&] { attn::gated_attention_backward(grad, in.q, in.k, in.v, in.gate, kSerial); }),
               variant("gated delta rule", in, 6,
                       [&] { attn::gated_delta_rule_into(in.out, in.q, in.k, in.v, in.gate, in.beta, kSerial); }),
               variant("gated delta rule, gradients", in, 18,
                       [&] { attn::gated_delta_rule_backward(grad, in.q, in.k, in.v, in.gate, in.beta, kSerial); }),
               variant("DPLR delta rule", in, 8,
                       [&] { attn::dplr_delta_rule_into(in.out, in.q, in.k, in.v, in.a, in.b, in.gates, kSerial); }),
               variant("DPLR delta rule, gradients", in, 24,
                       [&] { attn::dplr_delta_rule_backward(grad, in.q, in.k, in.v, in.a, in.b, in.gates, kSerial); })},
              budget, output);
}

void convolutions(Index len, const Budget& budget, Output& output) {
  constexpr Index kChannels = 2048;
  const Tensor4 numbers = random_tensor({1, 1, len, kChannels}, 1), taps = random_tensor({1, 1, kChannels, 4}, 2);
  const attn::TensorView<const float, 3> x = numbers.view().select(0, 0);
  const attn::TensorView<const float, 2> weight = taps.view().select(0, 0).select(0, 0);
  const attn::Tensor<float, 1> bias({kChannels});
  Tensor3 out(x.shape());
  const attn::ConvOptions plain{.executor = attn::serial()}, silu{.silu = true, .executor = attn::serial()};
  print_shares(
      "Causal convolution, N=" + std::to_string(len) + ", 2048 channels, width 4",
      2 * 4 * static_cast<double>(x.size()), "copying x",
      {{"copying x", 0, [&] { std::copy_n(x.data(), x.size(), out.data()); }},
       {"convolution", 0, [&] { attn::causal_conv1d_into(out, x, weight, attn::no_bias, plain); }},
       {"with bias and SiLU", 0, [&] { attn::causal_conv1d_into(out, x, weight, bias, silu); }},
       {"its gradients", 0, [&] { attn::causal_conv1d_backward(out, x, weight, bias, silu); }}},
      [] {}, budget, output);
}

}  // namespace

int main(int argc, char** argv) {
  Program program("linear_attention",
                  "Times linear attention, its gated forms, the delta rules, gradients, and the causal convolution.");
  return program.main(argc, argv, [&] {
    const bool quick = program.quick();
    const Budget budget = quick ? Budget{.seconds = 0.01, .rounds = 1} : Budget{.seconds = 0.3, .rounds = 9};
    const std::vector<Index> batches = quick ? std::vector<Index>{1} : std::vector<Index>{1, 16};
    std::vector<double> shares(4 + batches.size(), 1);
    shares[1] = 8;  // includes the definition, some twenty times as slow as the rest, but timed in fewer rounds
    Output output{
        program.results(),
        Progress(shares),
        {.title = "Linear and gated attention",
         .notes = {"float, on the calling thread"},
         .series = {},
         .mark = "",
         .axes = {{"Speed: longer is better", "share of the FMA peak, or of the speed of reading and writing the state",
                   BarChart::Scale::linear, " %"}}}};
    lengths(quick ? 1024 : 65536, budget, output);
    gates(quick ? 128 : 8192, {.seconds = budget.seconds, .rounds = quick ? 1 : 3}, output);
    gradients(quick ? 128 : 4096, budget, output);
    for (const Index batch : batches) decode(batch, budget, output);
    convolutions(quick ? 64 : 4096, budget, output);
    program.draw(output.chart);
  });
}
