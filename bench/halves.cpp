// Times attention over 16-bit floats against float, with all runs interleaved. Reports the share of the machine's peak
// and the error against double.
#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <iostream>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include <attn/attn.h>

#include "peak.h"
#include "program.h"
#include "progress.h"
#include "random_tensor.h"
#include "table.h"
#include "timing.h"

namespace {

using namespace bench;
using attn::Index;

struct Work {
  Index batch, heads, kv_heads, q_len, kv_len, dim;
  bool causal = false;

  double pairs() const {
    const double all = static_cast<double>(q_len) * static_cast<double>(kv_len);
    const double kept = causal ? static_cast<double>(q_len) * static_cast<double>(kv_len - q_len) +
                                     0.5 * static_cast<double>(q_len) * static_cast<double>(q_len + 1)
                               : all;
    return static_cast<double>(batch * heads) * kept;
  }
  double flops() const { return 4 * pairs() * static_cast<double>(dim); }
  Index numbers_read() const { return 2 * batch * kv_heads * kv_len * dim; }
};

std::string text(const Work& w) {
  return "B=" + std::to_string(w.batch) + " H=" + std::to_string(w.heads) +
         (w.heads == w.kv_heads ? "" : "/" + std::to_string(w.kv_heads)) + " N=" + std::to_string(w.q_len) +
         (w.q_len == w.kv_len ? "" : " M=" + std::to_string(w.kv_len)) + " D=" + std::to_string(w.dim) +
         (w.causal ? " causal" : "");
}

template <class To, class From>
attn::Tensor<To, 4> converted(const attn::TensorView<const From, 4>& from) {
  auto to = attn::Tensor<To, 4>::uninitialized(from.shape());
  Index i = 0;
  for (Index b = 0; b < from.dim(0); ++b)
    for (Index h = 0; h < from.dim(1); ++h)
      for (Index n = 0; n < from.dim(2); ++n)
        for (Index d = 0; d < from.dim(3); ++d) to.data()[i++] = static_cast<To>(static_cast<float>(from(b, h, n, d)));
  return to;
}

/// One variant of a row of the table.
struct Variant {
  std::string name;
  attn::Explanation what;
  std::function<void()> call;
  double error;  ///< largest error of the first head, against double
  Index bytes;   ///< of all keys and values
};

/// Tensors of S, and variants that use them. Must outlive these variants.
template <class S>
class Tensors {
 public:
  Tensors(const Work& w, const attn::Tensor<float, 4>& q, const attn::Tensor<float, 4>& k,
          const attn::Tensor<float, 4>& v)
      : work_(w),
        q_(converted<S, float>(q.view())),
        k_(converted<S, float>(k.view())),
        v_(converted<S, float>(v.view())),
        out_({w.batch, w.heads, w.q_len, w.dim}) {}

  void add_to(std::vector<Variant>& variants, std::string_view name, const attn::Options& options) {
    const auto call = [this, options] {
      if (work_.causal)
        attn::attention_into(out_, q_, k_, v_, attn::causal(), options);
      else
        attn::attention_into(out_, q_, k_, v_, attn::Mods<>(), options);
    };
    call();
    const attn::Explanation what = attn::explain(q_, k_, v_, attn::Mods<>(), options);
    variants.push_back({std::string(name), what, call, error(), work_.numbers_read() * static_cast<Index>(sizeof(S))});
  }

 private:
  double error() const {
    const auto first_head = [](const attn::Tensor<S, 4>& t) {
      return attn::TensorView<const S, 4>(t.data(), {1, 1, t.dim(2), t.dim(3)});
    };
    const auto q = converted<double, S>(first_head(q_)), k = converted<double, S>(first_head(k_)),
               v = converted<double, S>(first_head(v_));
    const attn::Tensor<double, 4> want =
        work_.causal ? attn::attention(q, k, v, attn::causal()).out : attn::attention(q, k, v).out;
    double largest = 0;
    for (Index i = 0; i < want.size(); ++i)
      largest = std::max(largest, std::abs(want.data()[i] - static_cast<double>(static_cast<float>(out_.data()[i]))));
    return largest;
  }

  Work work_;
  attn::Tensor<S, 4> q_, k_, v_, out_;
};

std::string share(double part, double whole) { return whole > 0 ? fixed(100 * part / whole, 1) + " %" : "-"; }

/// Destinations of a run's results.
struct Output {
  Results& results;
  Progress progress;
  BarChart chart;
};

constexpr std::array<std::string_view, 5> kVariants{"float", "bf16", "bf16, avx512", "float, compute = bf16", "f16"};

void measure(const std::vector<Work>& works, const attn::Executor& executor, const Budget& budget, Output& output) {
  const bool decode = works.front().q_len == 1;
  Table table(2);
  table.column("", "work");
  table.column("", "tensors");
  table.column("", "time");
  table.column("", decode ? "GB/s" : "GFLOP/s");
  table.column("of float's", "speed");
  if (decode) {
    table.column("of reading", "that much");
  } else {
    table.column("of peak", "FMA");
    table.column("of peak", "AMX");
  }
  table.column("largest error", "against double");
  std::vector<double> fma_peaks, amx_peaks;
  for (const Work& w : works) {
    output.progress.begin_row(text(w));
    const auto q = random_tensor({w.batch, w.heads, w.q_len, w.dim}, 1),
               k = random_tensor({w.batch, w.kv_heads, w.kv_len, w.dim}, 2),
               v = random_tensor({w.batch, w.kv_heads, w.kv_len, w.dim}, 3);
    Tensors<float> floats(w, q, k, v);
    Tensors<Eigen::bfloat16> bf16(w, q, k, v);
    Tensors<Eigen::half> f16(w, q, k, v);
    std::vector<Variant> variants;
    attn::Options options{.executor = executor};
    floats.add_to(variants, kVariants[0], options);
    bf16.add_to(variants, kVariants[1], options);
    if (variants.back().what.in_bf16) {
      options.isa = attn::Isa::avx512;
      if (attn::available(attn::Isa::avx512)) bf16.add_to(variants, kVariants[2], options);
      options.isa = {};
    }
    if (variants[1].what.amx == attn::Amx::used) {
      options.compute = attn::Compute::bf16;
      floats.add_to(variants, kVariants[3], options);
      options.compute = attn::Compute::native;
    }
    f16.add_to(variants, kVariants[4], options);

    std::vector<std::function<void()>> calls;
    for (const Variant& variant : variants) calls.push_back(variant.call);
    std::vector<std::vector<double>> bandwidths(variants.size());
    std::vector<double> fma, amx;
    const std::vector<Timing> times = interleaved(calls, budget, [&](int round, int rounds) {
      output.progress.round(round, rounds);
      fma.push_back(measure_fma_peak<float>(executor));
      amx.push_back(measure_amx_peak(executor));
      for (std::size_t i = 0; decode && i < variants.size(); ++i)
        bandwidths[i].push_back(measure_read_bandwidth(
            std::vector<float>(static_cast<std::size_t>(variants[i].bytes) / sizeof(float), 1.0f)));
    });
    fma_peaks.push_back(median(fma));
    amx_peaks.push_back(median(amx));
    BarChart::Group group{.name = text(w), .detail = "", .bars = {}, .mark = 1};
    for (std::size_t i = 0; i < variants.size(); ++i) {
      const Variant& variant = variants[i];
      const double time = times[i].seconds, speed = times[0].seconds / time;
      const double rate = w.flops() / time, bytes = static_cast<double>(variant.bytes) / time;
      std::vector<std::string> cells{i == 0 ? text(w) : "", variant.name, fixed(1e3 * time, 2) + " ms",
                                     fixed((decode ? bytes : rate) / 1e9, decode ? 1 : 0), fixed(speed, 2) + " x"};
      if (decode) {
        cells.push_back(share(bytes, median(bandwidths[i])));
      } else {
        cells.push_back(share(rate, fma_peaks.back()));
        cells.push_back(variant.what.amx == attn::Amx::used ? share(rate, amx_peaks.back()) : "");
      }
      std::ostringstream error;
      error.precision(2);
      error << variant.error;
      cells.push_back(error.str());
      table.row(cells);
      const auto series =
          static_cast<std::size_t>(std::find(kVariants.begin(), kVariants.end(), variant.name) - kVariants.begin());
      group.bars.push_back({series, {{speed, time_text(time)}, {variant.error, error.str()}}});
      output.results.add(text(w) + "/" + variant.name, times[i],
                         {{"flops_per_second", rate},
                          {"bytes_per_second", bytes},
                          {"of_floats_speed", speed},
                          {"largest_error", variant.error}});
    }
    output.chart.groups.push_back(std::move(group));
  }
  output.progress.clear();
  table.print(std::cout);
  if (!decode)
    std::cout << "\nPeaks, medians over the rows: FMA " << fixed(median(fma_peaks) / 1e9, 0) << " GFLOP/s ("
              << fma_set_name() << "), AMX bf16 "
              << (median(amx_peaks) > 0 ? fixed(median(amx_peaks) / 1e9, 0) + " GFLOP/s" : std::string("none"))
              << ".\n";
  std::cout << '\n';
}

}  // namespace

int main(int argc, char** argv) {
  Program program("halves", "Times attention over 16-bit floats against float.");
  int threads = 1;
  program.number("--threads", threads, "workers", 1, 1024);
  return program.main(argc, argv, [&] {
    const attn::Executor executor = attn::threads(threads);
    const Budget budget = program.quick() ? Budget{0.001, 1} : Budget{1.0, 7};
    std::vector<Work> products{{1, 8, 8, 2048, 2048, 64},         {1, 8, 8, 2048, 2048, 128},
                               {1, 8, 8, 4096, 4096, 128, false}, {1, 8, 8, 4096, 4096, 128, true},
                               {16, 8, 8, 512, 512, 128},         {32, 8, 8, 64, 64, 64}},
        decoding{{1, 32, 8, 1, 4096, 128}, {1, 32, 8, 1, 32768, 128}, {1, 8, 8, 1, 8192, 128}};
    if (program.quick()) {
      products = {{1, 2, 2, 100, 100, 64}, {1, 2, 1, 100, 100, 40, true}};
      decoding = {{1, 4, 2, 1, 200, 64}};
    }
    std::ostringstream conditions;
    conditions << threads << (threads == 1 ? " thread, " : " threads, ") << to_string(attn::default_isa())
               << "; medians of interleaved runs";
    std::cout << conditions.str() << "\n\n";
    Output output{program.results(),
                  Progress(products.size() + decoding.size()),
                  {.title = "16-bit floats against float",
                   .notes = {conditions.str()},
                   .series = {kVariants.begin(), kVariants.end()},
                   .mark = "as fast as float",
                   .axes = {{"Speed: longer is better", "times the speed of float", BarChart::Scale::linear, " ×"},
                            {"Largest error: shorter is better", "against double (log scale)", BarChart::Scale::decades,
                             "", 240}}}};
    measure(products, executor, budget, output);
    measure(decoding, executor, budget, output);
    program.draw(output.chart);
  });
}
