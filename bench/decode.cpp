// Decoding: attention of the newest tokens with a cache, which is bound by how fast memory is read. Times in turn with
// reading the same keys and values, on the same threads.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <deque>
#include <functional>
#include <iostream>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <attn/attn.h>
#include <CLI/CLI.hpp>

#include "program.h"
#include "progress.h"
#include "random_tensor.h"
#include "read.h"
#include "table.h"
#include "timing.h"

namespace {

using namespace bench;
using attn::Index;

/// Sequences of some lengths, of which each gets q_lens[i] new tokens.
struct Work {
  std::string name;
  Index heads, kv_heads, dim;
  std::vector<Index> lengths, q_lens;

  Index tokens() const { return sum(lengths); }
  Index queries() const { return sum(q_lens); }
  static Index sum(const std::vector<Index>& of) {
    Index all = 0;
    for (Index n : of) all += n;
    return all;
  }
};

Work decode(Index batch, Index heads, Index kv_heads, Index dim, Index length) {
  const auto n = static_cast<std::size_t>(batch);
  return {"B=" + std::to_string(batch) + " H=" + std::to_string(heads) + "/" + std::to_string(kv_heads) +
              " D=" + std::to_string(dim) + " M=" + std::to_string(length),
          heads,
          kv_heads,
          dim,
          std::vector<Index>(n, length),
          std::vector<Index>(n, 1)};
}

/// Keys, values and queries of a work, one sequence behind the other.
struct Numbers {
  explicit Numbers(const Work& w)
      : q(random_tensor({1, w.heads, w.queries(), w.dim}, 1)),
        k(random_tensor({1, w.kv_heads, w.tokens(), w.dim}, 2)),
        v(random_tensor({1, w.kv_heads, w.tokens(), w.dim}, 3)) {}
  attn::Tensor<float, 4> q, k, v;
};

/// One way to do a work.
struct Way {
  std::string name;
  std::function<void()> call;
  const attn::Tensor<float, 4>* out;  ///< null: there is none to compare
  std::vector<Bytes> read;            ///< the memory that has to be read
};

/// What lives as long as the ways do.
template <class T>
struct Contiguous {
  Contiguous(const Work& w, const Numbers& n, const attn::Options& o)
      : cache({.batch = static_cast<Index>(w.lengths.size()),
               .kv_heads = w.kv_heads,
               .capacity = *std::max_element(w.lengths.begin(), w.lengths.end()),
               .head_dim = w.dim}),
        q(n.q),
        lens(w.q_lens),
        options(o),
        out({1, w.heads, w.queries(), w.dim}) {
    cache.append(n.k, n.v, w.lengths);
  }
  Way way(const std::string& name) {
    std::vector<Bytes> read;
    for (Index s = 0; s < cache.config().batch; ++s)
      for (const auto& view : {cache.keys(s), cache.values(s)})
        for (Index h = 0; h < view.dim(1); ++h)
          if (view.dim(2) > 0) read.push_back(bytes_of(&view(0, h, 0, 0), view.dim(2) * view.dim(3)));
    for (const auto& scales : {cache.key_scales(), cache.value_scales()})
      for (Index s = 0; s < scales.dim(0); ++s)
        for (Index h = 0; h < scales.dim(1); ++h)
          if (cache.length(s) > 0) read.push_back(bytes_of(&scales(s, h, 0), cache.length(s)));
    return {name, [this] { attn::attention_into(out, attn::ragged(q, lens), cache, attn::causal(), options); }, &out,
            read};
  }
  attn::KvCache<T> cache;
  const attn::Tensor<float, 4>& q;
  std::vector<Index> lens;
  attn::Options options;
  attn::Tensor<float, 4> out;
};

struct Paged {
  Paged(const Work& w, const Numbers& n, Index page_size, const attn::Options& o)
      : cache({.pages = pages_for(w, page_size), .page_size = page_size, .kv_heads = w.kv_heads, .head_dim = w.dim}),
        q(n.q),
        lens(w.q_lens),
        options(o),
        out({1, w.heads, w.queries(), w.dim}) {
    for (std::size_t s = 0; s < w.lengths.size(); ++s) ids.push_back(cache.add());
    // Page by page of each in turn, as when all grow together: the pages of a sequence do not lie side by side.
    std::vector<Index> lengths(ids.size(), 0), first(ids.size(), 0);
    for (std::size_t s = 1; s < ids.size(); ++s) first[s] = first[s - 1] + w.lengths[s - 1];
    for (bool more = true; more;) {
      more = false;
      for (std::size_t s = 0; s < ids.size(); ++s) {
        const Index some = std::min(page_size, w.lengths[s] - lengths[s]);
        if (some == 0) continue;
        const auto part = [&](const attn::Tensor<float, 4>& t) {
          return t.view().part((first[s] + lengths[s]) * w.dim, {1, w.kv_heads, some, w.dim}, t.view().strides());
        };
        cache.append(ids[s], part(n.k), part(n.v));
        lengths[s] += some;
        more = true;
      }
    }
  }
  Way way(const std::string& name) {
    std::vector<Bytes> read;
    for (Index id : ids)
      for (Index h = 0; h < cache.config().kv_heads; ++h)
        for (const auto& pages : {cache.key_pages(), cache.value_pages()}) {
          Index left = cache.length(id);
          for (Index page : cache.table(id)) {
            const Index tokens = std::min(left, pages.dim(2));
            read.push_back(bytes_of(&pages(page, h, 0, 0), tokens * pages.dim(3)));
            left -= tokens;
          }
        }
    return {name,
            [this] { attn::attention_into(out, attn::ragged(q, lens), cache.view(ids), attn::causal(), options); },
            &out, read};
  }
  static Index pages_for(const Work& w, Index page_size) {
    Index pages = 0;
    for (Index n : w.lengths) pages += (n + page_size - 1) / page_size;
    return pages;
  }

  attn::PagedKvCache<float> cache;
  std::vector<Index> ids;
  const attn::Tensor<float, 4>& q;
  std::vector<Index> lens;
  attn::Options options;
  attn::Tensor<float, 4> out;
};

/// Eigen's products on the same cache; a sequence of one query each.
struct Naive {
  Naive(const Work& w, const attn::KvCache<float>& c, const Numbers& n, const attn::Options& o)
      : cache(c), q(n.q), options(o), out({1, w.heads, w.queries(), w.dim}) {}
  Way way() {
    return {"naive",
            [this] { attn::naive_attention_into(out, q, cache.keys(0), cache.values(0), attn::Mods<>(), options); },
            &out,
            {}};
  }
  const attn::KvCache<float>& cache;
  const attn::Tensor<float, 4>& q;
  attn::Options options;
  attn::Tensor<float, 4> out;
};

/// Each sequence by a call of its own.
struct OneByOne {
  OneByOne(const Work& w, const attn::KvCache<float>& c, const Numbers& n, const attn::Options& o)
      : cache(c), q(n.q), lens(w.q_lens), options(o), out({1, w.heads, w.queries(), w.dim}) {}
  Way way() {
    return {"a call for each sequence",
            [this] {
              Index first = 0;
              for (std::size_t s = 0; s < lens.size(); ++s) {
                const auto part = [&](auto view) {
                  return view.part(first * view.dim(3), {1, view.dim(1), lens[s], view.dim(3)}, view.strides());
                };
                const auto sequence = static_cast<Index>(s);
                attn::attention_into(part(out.view()), part(q.view()), cache.keys(sequence), cache.values(sequence),
                                     attn::causal(), options);
                first += lens[s];
              }
            },
            &out,
            {}};
  }
  const attn::KvCache<float>& cache;
  const attn::Tensor<float, 4>& q;
  std::vector<Index> lens;
  attn::Options options;
  attn::Tensor<float, 4> out;
};

std::string share(double part, double whole) { return fixed(100 * part / whole, 1) + " %"; }

class Bench {
 public:
  /// Works without `only` in their names are left out; `works` is how many there are in all.
  Bench(const attn::Executor& executor, const Budget& budget, std::string only, std::size_t works, Results& results)
      : executor_(executor), budget_(budget), only_(std::move(only)), table_(2), progress_(works), results_(results) {
    table_.column("", "work");
    table_.column("", "cache");
    table_.column("", "MiB");
    table_.column("", "time");
    table_.column("", "GB/s");
    table_.column("of reading", "the same");
    table_.column("of the first", "way's time");
    table_.column("largest difference", "from the first");
  }

  /// Times some ways and, in turn with each, reading the memory that it has to read.
  void compare(const Work& w, const std::vector<Way>& ways) {
    // First all ways, then all readings: what a cache of the processor still holds is the same for both.
    std::vector<std::function<void()>> calls;
    for (const Way& way : ways) calls.push_back(way.call);
    for (const Way& way : ways) calls.push_back([this, &way] { read_all(executor_, way.read); });
    const std::vector<Timing> times =
        interleaved(calls, budget_, [this](int round, int rounds) { progress_.round(round, rounds); });
    BarChart::Group group{.name = w.name, .detail = "", .bars = {}};
    for (std::size_t i = 0; i < ways.size(); ++i) {
      const double time = times[i].seconds, reading = times[ways.size() + i].seconds,
                   bytes = static_cast<double>(size_of(ways[i].read));
      const bool reads = bytes > 0;
      std::ostringstream difference;
      difference.precision(2);
      difference << largest_difference(*ways[0].out, *ways[i].out);
      table_.row({i == 0 ? w.name : "", ways[i].name, reads ? fixed(bytes / (1 << 20), 1) : "",
                  fixed(1e3 * time, 3) + " ms", reads ? fixed(bytes / time / 1e9, 1) : "",
                  reads ? share(reading, time) : "", i == 0 ? "" : fixed(time / times[0].seconds, 3),
                  i == 0 ? "" : difference.str()});
      group.bars.push_back({i,
                            {{reads ? 100 * reading / time : BarChart::kNone, ways[i].name + ", " + time_text(time)},
                             {times[0].seconds / time, fixed(times[0].seconds / time, 2) + " ×"}}});
      Counters counters{{"of_first_ways_time", time / times[0].seconds}};
      if (reads) counters.insert(counters.end(), {{"bytes_per_second", bytes / time}, {"of_reading", reading / time}});
      results_.add(w.name + "/" + ways[i].name, times[i], std::move(counters));
    }
    chart_.groups.push_back(std::move(group));
  }

  /// A work in a contiguous cache, in pages, and in fewer bits.
  void add(const Work& w, const std::vector<Index>& page_sizes, bool narrow = false) {
    if (!begins(w)) return;
    const Numbers n(w);
    const attn::Options options{.executor = executor_};
    Contiguous<float> floats(w, n, options);
    std::vector<Way> ways{floats.way("float")};
    std::deque<Paged> paged;
    for (Index size : page_sizes)
      ways.push_back(paged.emplace_back(w, n, size, options).way("pages of " + std::to_string(size)));
    if (!narrow) return compare(w, ways);
    Contiguous<Eigen::bfloat16> bf16(w, n, options);
    Contiguous<Eigen::half> f16(w, n, options);
    Contiguous<std::int8_t> i8(w, n, options);
    ways.push_back(bf16.way("bf16"));
    ways.push_back(f16.way("f16"));
    ways.push_back(i8.way("int8"));
    compare(w, ways);
  }

  void add_naive(const Work& w) {
    if (!begins(w)) return;
    const Numbers n(w);
    const attn::Options options{.executor = executor_};
    Contiguous<float> floats(w, n, options);
    Naive naive(w, floats.cache, n, options);
    compare(w, {floats.way("float"), naive.way()});
  }

  void add_one_by_one(const Work& w) {
    if (!begins(w)) return;
    const Numbers n(w);
    const attn::Options options{.executor = executor_};
    Contiguous<float> floats(w, n, options);
    Paged paged(w, n, 64, options);
    OneByOne calls(w, floats.cache, n, options);
    compare(w, {floats.way("float"), paged.way("pages of 64"), calls.way()});
  }

  void print() {
    progress_.clear();
    table_.print(std::cout);
  }
  const BarChart& chart() const { return chart_; }

 private:
  bool begins(const Work& w) {
    progress_.begin_row(w.name);
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
  std::string only_;
  Table table_;
  Progress progress_;
  Results& results_;
  BarChart chart_{.title = "Decoding: attention of the newest tokens with a cache",
                  .notes = {},
                  .series = {},
                  .mark = "",
                  .axes = {{"Speed: longer is better", "share of the speed of reading the same memory",
                            BarChart::Scale::linear, " %"},
                           {"Against float in one piece", "times its speed", BarChart::Scale::linear, " ×", 200}}};
};

/// From `shortest` to `longest`, evenly.
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
  // One prompt of 1024 tokens, the others decoding.
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
  CLI::App& app = program.options();
  app.add_option("--threads", threads, "workers")->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--only", only, "works whose names contain this");
  app.add_option("--seconds", seconds, "for each way of each row")->check(CLI::PositiveNumber)->capture_default_str();
  return program.main(argc, argv, [&] {
    const bool quick = program.quick();
    std::ostringstream conditions;
    conditions << threads << (threads == 1 ? " thread, " : " threads, ") << to_string(attn::default_isa())
               << "; medians, all in turn";
    std::cout << conditions.str() << "\n\n";
    Bench bench(attn::threads(threads), quick ? Budget{0.001, 1} : Budget{seconds, 15}, only, quick ? 3 : 10,
                program.results());
    run(bench, quick);
    bench.print();
    BarChart chart = bench.chart();
    chart.notes = {conditions.str()};
    program.draw(chart);
  });
}
