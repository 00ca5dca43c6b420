// Times decoding (attention of new tokens over a cache, which is bound by memory bandwidth), alternating with reads of
// the same keys and values on the same threads.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <deque>
#include <functional>
#include <iostream>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <attn/attn.h>

#include "decode_variants.h"
#include "program.h"
#include "progress.h"
#include "read.h"
#include "table.h"
#include "timing.h"

namespace {

using namespace bench;
using attn::Index;

std::string share(double part, double whole) { return fixed(100 * part / whole, 1) + " %"; }

class Bench {
 public:
  /// Skips workloads whose names do not contain `only`. `workloads` is the number of workloads before that.
  /// `row_invariant`: also times calls with Options::row_invariant.
  Bench(const attn::Executor& executor, const Budget& budget, std::string only, bool row_invariant,
        std::size_t workloads, Results& results)
      : executor_(executor),
        budget_(budget),
        only_(std::move(only)),
        row_invariant_(row_invariant),
        table_(2),
        progress_(workloads),
        results_(results) {
    table_.column("", "work");
    table_.column("", "cache");
    table_.column("", "MiB");
    table_.column("", "time");
    table_.column("", "GB/s");
    table_.column("share of", "reading speed");
    table_.column("of the first", "variant's time");
    table_.column("largest difference", "from the first");
  }

  /// Times variants of a workload, interleaved with reads of the memory that each must read.
  void compare(const Work& w, const std::vector<Variant>& variants) {
    // Each round runs all variants, then all reads, so that both find the processor's caches in the same state.
    std::vector<std::function<void()>> calls;
    for (const Variant& variant : variants) calls.push_back(variant.call);
    for (const Variant& variant : variants) calls.push_back([this, &variant] { variant.memory.read(executor_); });
    const std::vector<Timing> times =
        interleaved(calls, budget_, [this](int round, int rounds) { progress_.round(round, rounds); });
    BarChart::Group group{.name = w.name, .detail = "", .bars = {}};
    for (std::size_t i = 0; i < variants.size(); ++i) {
      const double time = times[i].seconds, reading = times[variants.size() + i].seconds,
                   bytes = static_cast<double>(variants[i].memory.size());
      const bool reads = bytes > 0;
      std::ostringstream difference;
      difference.precision(2);
      difference << largest_difference(*variants[0].out, *variants[i].out);
      table_.row({i == 0 ? w.name : "", variants[i].name, reads ? fixed(bytes / (1 << 20), 1) : "",
                  fixed(1e3 * time, 3) + " ms", reads ? fixed(bytes / time / 1e9, 1) : "",
                  reads ? share(reading, time) : "", i == 0 ? "" : fixed(time / times[0].seconds, 3),
                  i == 0 ? "" : difference.str()});
      group.bars.push_back(
          {i,
           {{reads ? 100 * reading / time : BarChart::kNone, variants[i].name + ", " + time_text(time)},
            {times[0].seconds / time, fixed(times[0].seconds / time, 2) + " ×"}}});
      Counters counters{{"of_first_variants_time", time / times[0].seconds}};
      if (reads) counters.insert(counters.end(), {{"bytes_per_second", bytes / time}, {"of_reading", reading / time}});
      results_.add(w.name + "/" + variants[i].name, times[i], std::move(counters));
    }
    chart_.groups.push_back(std::move(group));
  }

  /// Adds a workload over a contiguous cache, pages, tensors (batch, len, heads, dim), and, if `narrow`, narrower
  /// types.
  void add(const Work& w, const std::vector<Index>& page_sizes, bool narrow = false) {
    if (!begins(w)) return;
    const DecodeInputs n(w);
    const attn::Options options{.executor = executor_};
    Contiguous<float> floats(w, n, options);
    std::vector<Variant> variants{floats.variant("float")};
    std::optional<Contiguous<float>> invariant;
    if (row_invariant_)
      variants.push_back(invariant.emplace(w, n, attn::Options{.executor = executor_, .row_invariant = true})
                             .variant("float, row-invariant"));
    std::deque<Paged> paged;
    for (Index size : page_sizes)
      variants.push_back(paged.emplace_back(w, n, size, options).variant("pages of " + std::to_string(size)));
    std::optional<ByToken> by_token;
    if (w.lengths.size() == 1) variants.push_back(by_token.emplace(w, n, options).variant("heads of a token together"));
    if (!narrow) return compare(w, variants);
    Contiguous<Eigen::bfloat16> bf16(w, n, options);
    Contiguous<Eigen::half> f16(w, n, options);
    Contiguous<std::int8_t> i8(w, n, options);
    variants.push_back(bf16.variant("bf16"));
    variants.push_back(f16.variant("f16"));
    variants.push_back(i8.variant("int8"));
    Contiguous<attn::Float8E4M3> f8(w, n, options);
    Contiguous<attn::Int4> i4(w, n, options);
    variants.push_back(f8.variant("f8 (E4M3)"));
    variants.push_back(i4.variant("int4"));
    compare(w, variants);
  }

  void add_naive(const Work& w) {
    if (!begins(w)) return;
    const DecodeInputs n(w);
    const attn::Options options{.executor = executor_};
    Contiguous<float> floats(w, n, options);
    Naive naive(w, floats.cache, n, options);
    compare(w, {floats.variant("float"), naive.variant()});
  }

  void add_one_by_one(const Work& w) {
    if (!begins(w)) return;
    const DecodeInputs n(w);
    const attn::Options options{.executor = executor_};
    Contiguous<float> floats(w, n, options);
    Paged paged(w, n, 64, options);
    OneByOne calls(w, floats.cache, n, options);
    compare(w, {floats.variant("float"), paged.variant("pages of 64"), calls.variant()});
  }

  void print() {
    progress_.clear();
    table_.print(std::cout);
  }
  const BarChart& chart() const { return chart_; }
  const std::string& names() const { return names_; }  ///< of all workloads

 private:
  bool begins(const Work& w) {
    progress_.begin_row(w.name);
    names_ += (names_.empty() ? "" : ", ") + w.name;
    return w.name.find(only_) != std::string::npos;
  }

  static double largest_difference(const attn::Tensor<float, 4>& a, const attn::Tensor<float, 4>& b) {
    double largest = 0;
    for (Index i = 0; i < a.size(); ++i)
      largest = std::max(largest, std::abs(static_cast<double>(a.data()[i]) - static_cast<double>(b.data()[i])));
    return largest;
  }

  attn::Executor executor_;
  Budget budget_;
  std::string only_, names_;
  bool row_invariant_;
  Table table_;
  Progress progress_;
  Results& results_;
  BarChart chart_{
      .title = "Decoding: attention of the newest tokens with a cache",
      .notes = {},
      .series = {},
      .mark = "",
      .axes = {
          {"Speed: longer is better", "share of the speed of reading the same memory", BarChart::Scale::linear, " %"},
          {"Relative to a contiguous float cache", "times its speed", BarChart::Scale::linear, " ×", 200}}};
};

/// Returns `count` lengths, evenly spaced from `shortest` to `longest`.
std::vector<Index> lengths_between(Index shortest, Index longest, Index count) {
  std::vector<Index> lengths;
  for (Index i = 0; i < count; ++i) lengths.push_back(shortest + (longest - shortest) * i / (count - 1));
  return lengths;
}

void run(Bench& bench, bool quick) {
  if (quick) {
    bench.add(decode(1, 4, 2, 64, 300), {16, 64}, true);
    bench.add_naive(decode(1, 4, 4, 64, 100));
    bench.add_one_by_one({"mixed", 4, 2, 64, {100, 37, 200}, {60, 1, 1}});
    return;
  }
  for (Index length : {512, 4096, 32768}) bench.add(decode(1, 32, 8, 128, length), {64}, true);
  for (Index kv_heads : {1, 4, 32}) bench.add(decode(1, 32, kv_heads, 128, 8192), {});
  bench.add(decode(4, 32, 8, 128, 4096), {64});
  bench.add({"16 sequences, 100 to 8000", 32, 8, 128, lengths_between(100, 8000, 16), std::vector<Index>(16, 1)},
            {16, 64, 256});
  bench.add_naive(decode(1, 8, 8, 64, 512));
  // One sequence has a prompt of 1024 tokens, the others decode.
  std::vector<Index> q_lens(16, 1);
  q_lens[2] = 1024;
  bench.add_one_by_one({"16 sequences, one prefilling 1024", 32, 8, 128, lengths_between(100, 8000, 16), q_lens});
}

}  // namespace

int main(int argc, char** argv) {
  Program program("decode", "Times decoding against reading the same memory.");
  int threads = 1;
  double seconds = 1;
  std::string only;
  bool row_invariant = false;
  program.flag("--row-invariant", row_invariant, "also time calls with Options::row_invariant");
  program.number("--threads", threads, "workers", 1, 1024);
  program.text("--only", only, "workloads whose names contain this");
  program.number("--seconds", seconds, "for each variant of each row", 0.001, 3600.0);
  return program.main(argc, argv, [&] {
    const bool quick = program.quick();
    std::ostringstream conditions;
    conditions << threads << (threads == 1 ? " thread, " : " threads, ") << to_string(attn::default_isa())
               << "; medians of interleaved runs";
    std::cout << conditions.str() << "\n\n";
    Bench bench(attn::threads(threads), quick ? Budget{0.001, 1} : Budget{seconds, 15}, only, row_invariant,
                quick ? 3 : 10, program.results());
    run(bench, quick);
    if (bench.chart().groups.empty())
      throw std::invalid_argument("nothing has \"" + only + "\" in its name; there are: " + bench.names());
    bench.print();
    BarChart chart = bench.chart();
    chart.notes = {conditions.str()};
    program.draw(chart);
  });
}
