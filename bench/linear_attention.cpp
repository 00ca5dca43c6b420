// Linear attention, its gated forms and the gated delta rule: against the FMA peak of the same run, against their
// definitions token by token, and, single tokens, against reading and writing their states. On the calling thread.
#include <cmath>
#include <functional>
#include <iostream>
#include <string>
#include <utility>
#include <vector>

#include <attn/attn.h>
#include <CLI/CLI.hpp>

#include "peak.h"
#include "random_tensor.h"
#include "report.h"
#include "table.h"
#include "timing.h"

namespace {

using namespace bench;
using attn::Index;
using Tensor4 = attn::Tensor<float, 4>;
using Tensor3 = attn::Tensor<float, 3>;

const attn::Options kSerial{.executor = attn::serial()};

/// Inputs of all forms. Keys have length 1, as the delta rule wants them; gates are those of states that remember some
/// hundred tokens.
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
  }
  Index tokens() const { return gate.size(); }
  Index dim() const { return q.dim(3); }

  Tensor4 q, k, v, gates;
  Tensor3 gate, beta;
  Tensor4 out;
};

struct Way {
  std::string name;
  double flops;
  std::function<void()> call;
};

/// `flops_of_token` is what a token counts as, times head_dim * v_dim.
Way way(const std::string& name, const Inputs& in, double flops_of_token, std::function<void()> call) {
  const double dim = static_cast<double>(in.dim());
  return {name, flops_of_token * static_cast<double>(in.tokens()) * dim * dim, std::move(call)};
}

void print_rates(const std::string& title, const std::vector<Way>& ways, const Budget& budget) {
  std::vector<std::function<void()>> calls;
  for (const Way& w : ways) calls.push_back(w.call);
  std::vector<double> peaks;
  const std::vector<double> times =
      interleaved(calls, budget, [&](int, int) { peaks.push_back(measure_fma_peak<float>(attn::serial())); });
  const double peak = median(peaks);
  Table table(1);
  for (const char* heading : {"", "ms", "GFLOP/s", "% of peak"}) table.column(heading, "");
  for (std::size_t i = 0; i < ways.size(); ++i)
    table.row({ways[i].name, fixed(1e3 * times[i], 2), fixed(ways[i].flops / times[i] / 1e9, 1),
               fixed(100 * ways[i].flops / times[i] / peak, 1)});
  std::cout << title << "; FMA peak " << fixed(peak / 1e9, 0) << " GFLOP/s\n";
  table.print(std::cout);
  std::cout << '\n';
}

void lengths(Index len, const Budget& budget) {
  Inputs in(1, 1, len, 64);
  const auto favor = attn::favor(64, 1);
  const auto linear = [&](const auto& map, const auto& mods) {
    return [&in, map, mods] { attn::linear_attention_into(in.out, in.q, in.k, in.v, map, mods, kSerial); };
  };
  print_rates("One head, N=" + std::to_string(len) + " D=64",
              {way("elu1, every key", in, 4, linear(attn::elu1(), attn::Mods<>())),
               way("elu1, causal", in, 6, linear(attn::elu1(), attn::causal())),
               way("relu, causal", in, 6, linear(attn::relu(), attn::causal())),
               way("favor of 64, causal", in, 6, linear(favor, attn::causal()))},
              budget);
}

void gates(Index len, const Budget& budget) {
  Inputs in(1, 8, len, 128);
  const auto decays = attn::retention_decay(8);
  attn::RecurrentState<float> state({.kv_heads = 8, .features = 128});
  const auto token = [](auto& t, Index i) { return t.view().slice(2, i, i + 1); };
  print_rates(
      "8 heads, N=" + std::to_string(len) + " D=128",
      {way("a gate for each head", in, 6,
           [&] { attn::gated_attention_into(in.out, in.q, in.k, in.v, decays, kSerial); }),
       way("for each token", in, 6, [&] { attn::gated_attention_into(in.out, in.q, in.k, in.v, in.gate, kSerial); }),
       way("for each feature", in, 6, [&] { attn::gated_attention_into(in.out, in.q, in.k, in.v, in.gates, kSerial); }),
       way("gated delta rule", in, 6,
           [&] { attn::gated_delta_rule_into(in.out, in.q, in.k, in.v, in.gate, in.beta, kSerial); }),
       way("  one token a call", in, 6,
           [&] {
             state.reset();
             for (Index i = 0; i < in.q.dim(2); ++i)
               attn::gated_delta_rule_into(token(in.out, i), state, token(in.q, i), token(in.k, i), token(in.v, i),
                                           token(in.gate, i), token(in.beta, i), kSerial);
           }),
       way("  by its definition", in, 6,
           [&] { attn::naive_gated_delta_rule(in.q, in.k, in.v, in.gate, in.beta, kSerial); })},
      budget);
}

/// Reads and writes all of a state, as a token must.
void touch(attn::RecurrentState<float>& state) {
  float* const x = state.sums().data();
  const Index n = state.bytes() / static_cast<Index>(sizeof(float)) - state.normaliser().size();
  for (Index i = 0; i < n; ++i) x[i] *= 0.999f;
}

void decode(Index batch, const Budget& budget) {
  Inputs in(batch, 32, 1, 128);
  attn::RecurrentState<float> state({.batch = batch, .kv_heads = 32, .features = 128});
  const auto decays = attn::retention_decay(32);
  const std::vector<Way> ways = {
      {"reading and writing it", 0, [&] { touch(state); }},
      {"linear, elu1", 0,
       [&] { attn::linear_attention_into(in.out, state, in.q, in.k, in.v, attn::elu1(), attn::causal(), kSerial); }},
      {"a gate for each head", 0,
       [&] { attn::gated_attention_into(in.out, state, in.q, in.k, in.v, decays, kSerial); }},
      {"for each token", 0, [&] { attn::gated_attention_into(in.out, state, in.q, in.k, in.v, in.gate, kSerial); }},
      {"for each feature", 0, [&] { attn::gated_attention_into(in.out, state, in.q, in.k, in.v, in.gates, kSerial); }},
      {"gated delta rule", 0,
       [&] { attn::gated_delta_rule_into(in.out, state, in.q, in.k, in.v, in.gate, in.beta, kSerial); }}};
  std::vector<std::function<void()>> calls;
  for (const Way& w : ways) calls.push_back(w.call);
  const std::vector<double> times = interleaved(calls, budget, [&](int, int) { state.reset(); });
  const double bytes = 2 * static_cast<double>(state.bytes());
  Table table(1);
  for (const char* heading : {"", "us", "GB/s", "% of reading and writing"}) table.column(heading, "");
  for (std::size_t i = 0; i < ways.size(); ++i)
    table.row({ways[i].name, fixed(1e6 * times[i], 1), fixed(bytes / times[i] / 1e9, 1),
               fixed(100 * times[0] / times[i], 1)});
  std::cout << "One token, batch " << batch << ", 32 heads, D=128: a state of "
            << fixed(static_cast<double>(state.bytes()) / (1 << 20), 1) << " MiB\n";
  table.print(std::cout);
  std::cout << '\n';
}

}  // namespace

int main(int argc, char** argv) {
  bool quick = false;
  CLI::App app("Linear attention, its gated forms and the gated delta rule.");
  app.add_flag("--quick", quick, "small sizes, to see that the program works");
  CLI11_PARSE(app, argc, argv);
  const Budget budget = quick ? Budget{.seconds = 0.01, .rounds = 1} : Budget{.seconds = 0.3, .rounds = 9};
  lengths(quick ? 1024 : 65536, budget);
  gates(quick ? 128 : 8192, {.seconds = budget.seconds, .rounds = quick ? 1 : 3});
  for (const Index batch : quick ? std::vector<Index>{1} : std::vector<Index>{1, 16}) decode(batch, budget);
}
