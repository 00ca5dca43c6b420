// Times each mod, alternating with plain attention over as many pairs as it keeps, and measures the share of time that
// its hints take.
#include <functional>
#include <iostream>
#include <numeric>
#include <optional>
#include <random>
#include <string>
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

constexpr Index kDim = 64;

/// Destinations of a run's results.
struct Output {
  Results& results;
  Progress progress;
  BarChart chart;
};

/// Mods that are timed at one length.
class Bench {
 public:
  Bench(Index heads, Index tokens)
      : q_(random_tensor({1, heads, tokens, kDim}, 1)),
        k_(random_tensor({1, heads, tokens, kDim}, 2)),
        v_(random_tensor({1, heads, tokens, kDim}, 3)),
        out_({1, heads, tokens, kDim}) {}

  Index tokens() const { return q_.dim(2); }
  Index heads() const { return q_.dim(1); }

  /// `kept`: the share of all pairs that the mod keeps; by default counted with its predicate.
  template <class M>
  void add(const std::string& name, const M& mods, std::optional<double> kept = std::nullopt) {
    rows_.push_back({name, kept ? *kept : share_kept(mods),
                     [=, this] { attn::attention_into(out_, q_, k_, v_, mods, options_); },
                     [=, this] { attn::explain(q_, k_, v_, mods, options_); }});
  }
  /// Adds a call that is not a mod, for comparison.
  void add_call(const std::string& name, double kept, std::function<void()> call) {
    rows_.push_back({name, kept, std::move(call), {}});
  }

  /// Computes documents one by one, for comparison with packing them.
  void separate_documents(Index length) {
    const auto part = [&](const attn::Tensor<float, 4>& t, Index first) {
      return attn::TensorView<const float, 4>(&t(0, 0, first, 0), {1, heads(), length, kDim}, t.view().strides());
    };
    for (Index first = 0; first < tokens(); first += length)
      attn::attention_into(
          attn::TensorView<float, 4>(&out_(0, 0, first, 0), {1, heads(), length, kDim}, out_.view().strides()),
          part(q_, first), part(k_, first), part(v_, first), attn::full(), options_);
  }

  /// Times all rows, interleaved with plain attention over `plain_tokens` tokens.
  void print(Index plain_tokens, const Budget& budget, Output& output) const {
    const std::string sizes = std::to_string(heads()) + (heads() == 1 ? " head, " : " heads, ") +
                              std::to_string(tokens()) + " tokens, D=" + std::to_string(kDim);
    output.progress.begin_row(sizes);
    const auto plain = random_tensor({1, heads(), plain_tokens, kDim}, 4);
    auto plain_out = attn::Tensor<float, 4>(plain.shape());
    std::vector<std::function<void()>> calls{
        [&] { attn::attention_into(plain_out, plain, plain, plain, attn::Mods<>(), options_); }};
    for (const Row& row : rows_) calls.push_back(row.call);
    const auto [times, peak] = interleaved_with_peak<float>(calls, budget, options_.executor, output.progress);
    output.progress.clear();
    const double pairs = static_cast<double>(heads() * tokens()) * static_cast<double>(tokens());
    const double plain_pairs = static_cast<double>(heads() * plain_tokens) * static_cast<double>(plain_tokens);
    const double seconds_per_pair = times[0].seconds / plain_pairs;

    std::cout << sizes << ", float, one thread, " << to_string(attn::default_isa()) << "; plain attention at "
              << fixed(100 * 4 * kDim / seconds_per_pair / peak, 0) << " % of the FMA peak of " << fixed(peak / 1e9, 0)
              << " GFLOP/s\n\n";
    Table table(1);
    table.column("", "mod");
    table.column("pairs", "kept");
    table.column("", "time");
    table.column("plain,", "as many pairs");
    table.column("relative", "speed");
    table.column("hints,", "of the time");
    for (std::size_t i = 0; i < rows_.size(); ++i) {
      const Row& row = rows_[i];
      const double as_many = row.kept * pairs * seconds_per_pair, time = times[i + 1].seconds;
      const std::string hints =
          row.hints ? fixed(100 * median({seconds(row.hints), seconds(row.hints), seconds(row.hints)}) / time, 2) + " %"
                    : "";
      table.row({row.name, fixed(100 * row.kept, 2) + " %", fixed(1e3 * time, 2) + " ms",
                 fixed(1e3 * as_many, 2) + " ms", fixed(100 * as_many / time, 0) + " %", hints});
      output.chart.groups.push_back(
          {.name = row.name,
           .detail = "",
           .bars = {{0, {{100 * as_many / time, time_text(time)}, {100 * row.kept, fixed(100 * row.kept, 2) + " %"}}}},
           .mark = 100,
           .heading = i == 0 ? sizes : ""});
      output.results.add(sizes + "/" + row.name, times[i + 1],
                         {{"kept", row.kept}, {"relative_speed", as_many / time}});
    }
    table.print(std::cout);
    std::cout << '\n';
  }

 private:
  struct Row {
    std::string name;
    double kept;
    std::function<void()> call, hints;
  };

  template <class M>
  double share_kept(const M& mods) const {
    attn::Problem p;
    p.heads = p.kv_heads = heads();
    p.q_len = p.kv_len = tokens();
    const auto bound = attn::detail::bind(mods, p);
    Index kept = 0;
    for (Index h = 0; h < p.heads; ++h)
      for (Index i = 0; i < p.q_len; ++i)
        for (Index j = 0; j < p.kv_len; ++j) kept += bound.keep({0, h, i, j});
    return static_cast<double>(kept) / static_cast<double>(p.heads * p.q_len) / static_cast<double>(p.kv_len);
  }

  attn::Options options_{.executor = attn::serial()};
  attn::Tensor<float, 4> q_, k_, v_;
  attn::Tensor<float, 4> out_;
  std::vector<Row> rows_;
};

attn::Tensor<bool, 4> random_bools(const attn::Shape<4>& shape, double chance) {
  attn::Tensor<bool, 4> t(shape);
  std::mt19937 random(5);
  std::bernoulli_distribution draw(chance);
  for (Index i = 0; i < t.size(); ++i) t.data()[i] = draw(random);
  return t;
}

/// Returns lists of `count` different keys out of `keys`, in random order.
attn::Tensor<int, 2> random_lists(Index lists, Index count, Index keys) {
  attn::Tensor<int, 2> t({lists, count});
  std::vector<int> all(static_cast<std::size_t>(keys));
  std::iota(all.begin(), all.end(), 0);
  std::mt19937 random(7);
  for (Index i = 0; i < lists; ++i) {
    for (Index j = 0; j < count; ++j)
      std::swap(all[static_cast<std::size_t>(j)],
                all[static_cast<std::size_t>(std::uniform_int_distribution<Index>(j, keys - 1)(random))]);
    std::copy_n(all.begin(), count, &t(i, 0));
  }
  return t;
}

void every_mod(Index n, const Budget& budget, Output& output) {
  using namespace attn;
  constexpr Index kHeads = 4;
  Bench bench(kHeads, n);
  const auto lambda = mask_mod([](auto p) { return p.kv <= p.q; });
  std::vector<Index> drafts;  // eight chains, one after another
  for (Index i = 0; i < n; ++i) drafts.push_back(i % (n / 8) == 0 ? -1 : i - 1);
  Tensor<bool, 1> padding({n});
  std::fill_n(padding.data(), n / 2, true);
  bench.add("causal()", causal());
  bench.add("the same mask as a lambda", lambda);
  bench.add("block_mask of the lambda", block_mask(lambda, n, n));
  bench.add("sliding_window(256)", sliding_window(256));
  bench.add("prefix_lm({n / 4})", prefix_lm({n / 4}));
  bench.add("key_lengths({n / 2})", key_lengths({n / 2}));
  bench.add("query_lengths({n / 2})", query_lengths({n / 2}));
  bench.add("documents_at, 8 documents",
            documents_at({0, n / 8, n / 4, n * 3 / 8, n / 2, n * 5 / 8, n * 3 / 4, n * 7 / 8, n}));
  bench.add("block_sparse, a quarter of the blocks",
            block_sparse(Tensor(random_bools({1, 1, n / 64, n / 64}, 0.25)), 64, 64));
  bench.add("bidirectional_spans, 3 spans",
            bidirectional_spans({{n / 16, n / 8}, {n / 4, n / 4 + n / 16}, {n / 2, n / 2 + n / 8}}));
  bench.add("neighbourhood, 7 x 7 of 64 columns", neighbourhood({n / 64, 64}, {7, 7}));
  bench.add("select, 1/16 of the keys, a list per query", select(random_lists(n, n / 16, n)), 1.0 / 16);
  bench.add("select, 1/16 of the keys, one list for all", select(random_lists(1, n / 16, n)), 1.0 / 16);
  bench.add("strided_sparse(64)", strided_sparse(64));
  bench.add("fixed_sparse(64, 8)", fixed_sparse(64, 8));
  bench.add("dilated(128, 4)", dilated(128, 4));
  bench.add("any_of(window, global)", any_of(sliding_window(128, 128), global_tokens({0, 1, 2, 3})));
  bench.add("tree of 8 drafts", tree(drafts));
  bench.add("all_of(causal(), not_(window))", all_of(causal(), not_(sliding_window(256))));
  bench.add("keep, half of the keys", keep(padding));
  bench.add("drop, random keys", drop(Tensor<bool, 4>(random_bools({1, 1, 1, n}, 0.5))));
  bench.add("drop, random pairs", drop(Tensor<bool, 4>(random_bools({1, 1, n, n}, 0.5))));
  bench.add("bias, one per key", bias(Tensor<float, 4>(random_tensor({1, 1, 1, n}, 6))));
  bench.add("bias, one per pair", bias(Tensor<float, 4>(random_tensor({1, 1, n, n}, 6))));
  bench.add("softcap(50)", softcap(50));
  bench.add("alibi", alibi(alibi_slopes(kHeads)));
  bench.add("relative_bias, T5 buckets", relative_bias(Tensor<float, 2>({kHeads, 32}), T5Buckets()));
  bench.add("temperature", temperature(std::vector<double>(kHeads, 2)));
  bench.add("sinks", sinks(std::vector<double>(kHeads, 1)));
  bench.add("dropout(0.1)", dropout(0.1, 1));
  bench.add("causal | softcap | alibi", causal() | softcap(50) | alibi(alibi_slopes(kHeads)));
  bench.print(n, budget, output);
  std::cout << "Making block_mask took " << fixed(1e3 * seconds([&] { block_mask(lambda, n, n); }), 2)
            << " ms, once for all heads.\n\n";
}

void long_rows(Index n, const Budget& budget, Output& output) {
  using namespace attn;
  Bench bench(1, n);
  const double tokens = static_cast<double>(n), document = tokens / 64;
  std::vector<Index> offsets;
  for (Index i = 0; i <= 64; ++i) offsets.push_back(n / 64 * i);
  bench.add("sliding_window(256)", sliding_window(256), 257 / tokens);
  bench.add("strided_sparse(256)", strided_sparse(256), 257 / tokens + 1.0 / 512);
  bench.add("fixed_sparse(256, 8)", fixed_sparse(256, 8), 128 / tokens + 8.0 / 512);
  bench.add("dilated(256, 64)", dilated(256, 64), 257 / tokens);
  bench.add("neighbourhood, 13 x 13 of 128 columns", neighbourhood({n / 128, 128}, {13, 13}), 169 / tokens);
  bench.add("neighbourhood, 4 x 7 x 7 of 32 x 32", neighbourhood({n / 1024, 32, 32}, {4, 7, 7}), 196 / tokens);
  bench.add("documents_at, 64 documents", documents_at(offsets), document / tokens);
  bench.add_call("64 calls, one per document", document / tokens, [&] { bench.separate_documents(n / 64); });
  bench.print(n / 8, budget, output);
}

/// Times select() among keys that exceed the caches against dense calls in which each query has its own keys, as many
/// as are selected.
void selected_keys(Index queries, Index count, Index keys, const Budget& budget, Output& output) {
  constexpr Index kLong = 128;
  const attn::Options options{.executor = attn::serial()};
  const auto q = random_tensor({1, 1, queries, kLong}, 1), k = random_tensor({1, 1, keys, kLong}, 2),
             v = random_tensor({1, 1, keys, kLong}, 3);
  const auto each_q = random_tensor({queries, 1, 1, kLong}, 1), each_k = random_tensor({queries, 1, count, kLong}, 2),
             each_v = random_tensor({queries, 1, count, kLong}, 3);
  attn::Tensor<float, 4> out(q.shape()), each_out(each_q.shape());
  const auto lists = random_lists(queries, count, keys);
  const auto mod = attn::select(lists);
  const std::string work = "select of " + std::to_string(count) + " of " + std::to_string(keys) + " keys for each of " +
                           std::to_string(queries) + " queries";
  output.progress.begin_row(work);
  const std::vector<Timing> times =
      interleaved({[&] { attn::attention_into(each_out, each_q, each_k, each_v, attn::Mods<>(), options); },
                   [&] { attn::attention_into(out, q, k, v, mod, options); }, [&] { attn::select(lists); }},
                  budget, [&](int round, int rounds) { output.progress.round(round, rounds); });
  output.progress.clear();
  const double dense = times[0].seconds, selected = times[1].seconds;
  std::cout << work << ", D=" << kLong << ", float, one thread: " << fixed(1e3 * selected, 2) << " ms, "
            << fixed(selected / dense, 2) << " times as long as a dense call in which each query has its own keys ("
            << fixed(1e3 * dense, 2) << " ms); making the mod takes " << fixed(1e3 * times[2].seconds, 2) << " ms.\n";
  output.results.add(work + "/dense, separate keys", times[0]);
  output.results.add(work + "/select", times[1], {{"relative_speed", dense / selected}});
  output.results.add(work + "/making the mod", times[2]);
}

}  // namespace

int main(int argc, char** argv) {
  Program program("mods", "Times every mod against plain attention over as many pairs as it keeps.");
  Budget budget{.seconds = 0.5, .rounds = 7};
  program.number("--seconds", budget.seconds, "total time for which the fastest call is timed", 0.001, 3600.0);
  program.number("--rounds", budget.rounds, "minimum number of times each call is timed", 1, 1000);
  return program.main(argc, argv, [&] {
    const bool quick = program.quick();
    if (quick) budget = {.seconds = 0.001, .rounds = 1};
    Output output{
        program.results(),
        Progress({30, 8, 1}),  // roughly the number of rows of each of the three parts below
        {.title = "Cost of each mod",
         .notes = {std::string("float, one thread, ").append(to_string(attn::default_isa())) +
                   ", against plain attention over as many pairs as the mod keeps"},
         .series = {},
         .mark = "as fast as plain attention over as many pairs",
         .axes = {{"Speed: longer is better", "share of the speed of plain attention", BarChart::Scale::linear, " %"},
                  {"Pairs that are kept", "share of all (log scale)", BarChart::Scale::decades, " %", 180}}}};
    every_mod(quick ? 512 : 4096, budget, output);
    long_rows(quick ? 4096 : 65536, budget, output);
    selected_keys(64, quick ? 64 : 2048, quick ? 2048 : 65536, budget, output);
    program.draw(output.chart);
  });
}
