// Times additive attention against its hyperbolic tangents alone, computed in the L1 cache; their timings alternate
// with those of the calls. One head, on the calling thread.
#include <cmath>
#include <functional>
#include <iostream>
#include <string>
#include <vector>

#include <attn/attn.h>

#include "program.h"
#include "progress.h"
#include "random_tensor.h"
#include "table.h"
#include "timing.h"

namespace {

using namespace bench;
using attn::Index;
using attn::Tensor;

/// The kernels' tanh alone, over values that stay in the L1 cache.
template <class T, int kBytes>
struct TanhAlone {
  using V = attn::detail::Vec<T, kBytes>;
  static ATTN_INLINE void run(T* to, const T* from, Index count) {
    for (Index i = 0; i < count; i += V::kLanes) tanh(V::load(from + i)).store(to + i);
  }
};
/// Returns the number of hyperbolic tangents per second, computed with the instruction set that calls in this process
/// use.
template <class T>
double measure_tanh_rate() {
  constexpr Index kCount = 2048, kTimes = 400;
  static const std::vector<T> from = [] {
    std::vector<T> numbers(kCount);
    const auto drawn = random_tensor({1, 1, 1, kCount}, 9);
    for (Index i = 0; i < kCount; ++i) numbers[static_cast<std::size_t>(i)] = static_cast<T>(2 * drawn.data()[i]);
    return numbers;
  }();
  static std::vector<T> to(kCount);
  using attn::detail::VectorSet;
  return attn::detail::with_vectors<T>(attn::detail::vectors_of(attn::default_isa()), []<VectorSet kSet>() {
    constexpr auto run = attn::detail::compiled<kSet, TanhAlone<T, attn::detail::kVectorBytes<kSet>>::run>;
    const double time = seconds([] {
      for (Index i = 0; i < kTimes; ++i) run(to.data(), from.data(), kCount);
    });
    return static_cast<double>(kCount * kTimes) / time;
  });
}

struct Work {
  Index q_len, kv_len, hidden, dim = 64;
  bool causal = false;
  bool projected = false;  ///< whether keys are already projected

  double tanhs() const {
    const double all = static_cast<double>(q_len) * static_cast<double>(kv_len);
    return (causal ? all / 2 + static_cast<double>(q_len) / 2 : all) * static_cast<double>(hidden);
  }
};

std::string text(const Work& w, const char* scalar) {
  return std::string(scalar) + " N=" + std::to_string(w.q_len) + " M=" + std::to_string(w.kv_len) + " hidden " +
         std::to_string(w.hidden) + (w.causal ? " causal" : "") + (w.projected ? ", keys projected before" : "");
}

/// Destinations of a run's results.
struct Output {
  Results& results;
  Progress progress;
  Table table;
  BarChart chart;
};

template <class T>
void measure(const std::vector<Work>& works, const char* scalar, const Budget& budget, Output& output) {
  const attn::Options options{.executor = attn::serial()};
  for (const Work& w : works) {
    const std::string name = text(w, scalar);
    output.progress.begin_row(name);
    const auto drawn = [](const attn::Shape<4>& shape, unsigned seed) {
      const auto numbers = random_tensor(shape, seed);
      auto t = Tensor<T, 4>::uninitialized(shape);
      for (Index i = 0; i < t.size(); ++i) t.data()[i] = static_cast<T>(numbers.data()[i]);
      return t;
    };
    const auto q = drawn({1, 1, w.q_len, w.dim}, 1), k = drawn({1, 1, w.kv_len, w.dim}, 2),
               v = drawn({1, 1, w.kv_len, w.dim}, 3), grad = drawn({1, 1, w.q_len, w.dim}, 4),
               weights = drawn({1, 2, w.hidden, w.dim}, 5), vectors = drawn({1, 2, 1, w.hidden}, 6);
    const auto small = T(1) / std::sqrt(static_cast<T>(w.dim));
    const typename attn::TensorView<T, 2>::Matrix query_weight = small * weights.matrix(0, 0),
                                                  key_weight = small * weights.matrix(0, 1);
    const Eigen::Matrix<T, Eigen::Dynamic, 1> weight = vectors.matrix(0, 0).transpose(),
                                              bias = vectors.matrix(0, 1).transpose();
    attn::AdditiveScore<T> score{query_weight, key_weight, weight, bias};
    if (w.projected) score.key_weight = {};
    const auto with_mods = [&](const auto& use) { w.causal ? use(attn::causal()) : use(attn::full()); };
    std::vector<std::function<void()>> calls;
    Tensor<T, 4> out({1, 1, w.q_len, w.dim});
    Tensor<T, 3> lse({1, 1, w.q_len});
    calls.push_back([&] {
      with_mods([&](const auto& mods) { attn::additive_attention_into(out, lse, q, k, v, score, mods, options); });
    });
    calls.push_back([&] {
      with_mods([&](const auto& mods) {
        attn::additive_attention_backward(grad, q, k, v, score, attn::Result{out.view(), lse.view()}, mods, options);
      });
    });
    const bool by_definition = w.tanhs() < 1e7;
    if (by_definition)
      calls.push_back(
          [&] { with_mods([&](const auto& mods) { attn::naive_additive_attention(q, k, v, score, mods, options); }); });
    std::vector<double> rates;
    const std::vector<Timing> times = interleaved(calls, budget, [&](int round, int rounds) {
      output.progress.round(round, rounds);
      rates.push_back(measure_tanh_rate<T>());
    });
    const double alone = median(rates), forward = times[0].seconds, rate = w.tanhs() / forward,
                 backward = times[1].seconds / forward;
    output.table.row({name, fixed(1e3 * forward, 2) + " ms", fixed(rate / 1e9, 2), fixed(alone / 1e9, 2),
                      fixed(100 * rate / alone, 0) + " %", fixed(backward, 2) + " x",
                      by_definition ? fixed(times[2].seconds / forward, 1) + " x" : "-"});
    output.chart.groups.push_back(
        {.name = name,
         .detail = "",
         .bars = {{0, {{100 * rate / alone, time_text(forward)}, {backward, time_text(times[1].seconds)}}}}});
    output.results.add(name + "/forward", times[0], {{"tanh_per_second", rate}, {"of_tanh_rate", rate / alone}});
    output.results.add(name + "/backward", times[1], {{"of_forwards_time", backward}});
    if (by_definition) output.results.add(name + "/definition", times[2]);
  }
}

}  // namespace

int main(int argc, char** argv) {
  Program program("additive", "Times additive attention against the rate of its hyperbolic tangents.");
  return program.main(argc, argv, [&] {
    std::vector<Work> floats{{1024, 1024, 64}, {1024, 1024, 64, 64, true},    {1024, 1024, 256}, {128, 128, 64},
                             {1, 8192, 64},    {1, 8192, 64, 64, false, true}},
        doubles{{1024, 1024, 64}};
    if (program.quick()) {
      floats = {{40, 70, 8}, {1, 70, 8}, {40, 70, 9, 64, true}};
      doubles = {};
    }
    const Budget budget = program.quick() ? Budget{0.001, 1} : Budget{0.2, 7};
    std::cout << "1 thread, " << to_string(attn::default_isa())
              << ", head_dim and v_dim 64; medians of interleaved runs\n\n";
    Output output{
        program.results(),
        Progress(floats.size() + doubles.size()),
        Table(1),
        {.title = "Additive attention",
         .notes = {"One head, on the calling thread, head_dim and v_dim 64"},
         .series = {},
         .mark = "",
         .axes = {{"Speed: longer is better", "share of the rate of tanh alone", BarChart::Scale::linear, " %"},
                  {"Backward: shorter is better", "relative to the time of the forward pass", BarChart::Scale::linear,
                   " ×", 240}}}};
    output.table.column("", "work");
    output.table.column("", "time");
    output.table.column("G tanh/s", "in the call");
    output.table.column("G tanh/s", "alone");
    output.table.column("G tanh/s", "share");
    output.table.column("backward", "to forward");
    output.table.column("definition", "to forward");
    measure<float>(floats, "float", budget, output);
    measure<double>(doubles, "double", budget, output);
    output.progress.clear();
    output.table.print(std::cout);
    program.draw(output.chart);
  });
}
