// Times cache operations: one KvCaches against one cache per layer, sliding windows against a cache of constant length,
// and dropping the oldest tokens against one pass over the keys. Float, on the calling thread; variants alternate.
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

const attn::Options kSerial{.executor = attn::serial()};

/// A new token, and the earlier tokens that fill all caches.
struct Tokens {
  Tokens(Index heads, Index kv_heads, Index dim, Index length)
      : q(random_tensor({1, heads, 1, dim}, 1)),
        k(random_tensor({1, kv_heads, 1, dim}, 2)),
        v(random_tensor({1, kv_heads, 1, dim}, 3)),
        keys(random_tensor({1, kv_heads, length, dim}, 4)),
        values(random_tensor({1, kv_heads, length, dim}, 5)),
        out({1, heads, 1, dim}),
        rope({.head_dim = dim}) {}
  Index length() const { return keys.dim(2); }

  attn::Tensor<float, 4> q, k, v, keys, values, out;
  attn::Rope rope;
};

struct Variant {
  std::string name;
  std::function<void()> call;
};

/// Destinations of a run's results.
struct Output {
  Results& results;
  Budget budget;
  Progress progress;
  Table table;
  BarChart chart;

  /// Times variants in turn and compares them with the first. prepare() is called before each round and is not timed.
  void compare(
      const std::string& work, const std::vector<Variant>& variants, const std::function<void()>& prepare = [] {}) {
    progress.begin_row(work);
    std::vector<std::function<void()>> calls;
    for (const Variant& variant : variants) calls.push_back(variant.call);
    const std::vector<Timing> times = interleaved(calls, budget, [&](int round, int rounds) {
      progress.round(round, rounds);
      prepare();
    });
    for (std::size_t i = 0; i < variants.size(); ++i) {
      const double ratio = times[i].seconds / times[0].seconds;
      table.row({i == 0 ? work : "", variants[i].name, time_text(times[i].seconds), fixed(ratio, 2)});
      chart.groups.push_back({.name = variants[i].name,
                              .detail = "",
                              .bars = {{0, {{ratio, time_text(times[i].seconds)}}}},
                              .mark = 1,
                              .heading = i == 0 ? work : ""});
      results.add(work + "/" + variants[i].name, times[i], {{"of_first_variants_time", ratio}});
    }
  }
};

/// Times one token through all layers of a decoder.
void layers(Output& output) {
  constexpr Index kLayers = 6, kPage = 64;
  Tokens t(8, 8, 64, 1024);
  const Index capacity = t.length() + kPage;
  std::vector<attn::KvCache<float>> contiguous;
  std::vector<attn::PagedKvCache<float>> paged;
  for (Index l = 0; l < kLayers; ++l) {
    contiguous.emplace_back(attn::KvCacheConfig{.kv_heads = 8, .capacity = capacity, .head_dim = 64, .rope = t.rope});
    contiguous.back().append(t.keys, t.values);
    paged.emplace_back(attn::PagedKvCacheConfig{
        .pages = capacity / kPage, .page_size = kPage, .kv_heads = 8, .head_dim = 64, .rope = t.rope});
    paged.back().append(paged.back().add(), t.keys, t.values);
  }
  const auto all_layers = [&](Index page_size) {
    attn::KvCaches<float> caches({.layers = kLayers,
                                  .kv_heads = 8,
                                  .head_dim = 64,
                                  .pages = capacity / page_size,
                                  .page_size = page_size,
                                  .rope = t.rope});
    auto step = caches.step({caches.add()}, t.length());
    for (Index l = 0; l < kLayers; ++l) step.layer(l).append(t.keys, t.values);
    step.commit();
    return caches;
  };
  attn::KvCaches<float> one_page = all_layers(capacity), pages = all_layers(kPage);
  const auto step_over = [&](attn::KvCaches<float>& caches) {
    auto step = caches.step({0}, 1);
    for (Index l = 0; l < kLayers; ++l) {
      step.layer(l).append(t.k, t.v);
      attn::attention_into(t.out, t.q, step.layer(l), attn::causal(), kSerial);
    }
    step.commit();
    caches.truncate(0, t.length());
  };
  output.compare("a token through 6 layers, 8 heads x 64, 1024 tokens",
                 {{"6 KvCache",
                   [&] {
                     for (auto& cache : contiguous) {
                       cache.append(t.k, t.v);
                       attn::attention_into(t.out, t.q, cache, attn::causal(), kSerial);
                       cache.truncate(0, t.length());
                     }
                   }},
                  {"KvCaches, contiguous", [&] { step_over(one_page); }},
                  {"6 PagedKvCache, pages of 64",
                   [&] {
                     for (auto& cache : paged) {
                       cache.append(0, t.k, t.v);
                       attn::attention_into(t.out, t.q, cache.view({0}), attn::causal(), kSerial);
                       cache.truncate(0, t.length());
                     }
                   }},
                  {"KvCaches, pages of 64", [&] { step_over(pages); }}});
}

/// Times tokens over a window. Each call decodes as many tokens as fill two pages, so that the window slides at least
/// twice.
void windows(Index page_size, Output& output) {
  constexpr Index kWindow = 1024;
  const Index tokens = 2 * page_size;
  Tokens t(8, 4, 64, kWindow);
  const auto filled = [&](Index window, Index sinks) {
    attn::PagedKvCache<float> cache({.pages = kWindow / page_size + 4,
                                     .page_size = page_size,
                                     .kv_heads = 4,
                                     .head_dim = 64,
                                     .rope = t.rope,
                                     .window = window,
                                     .sinks = sinks});
    cache.append(cache.add(), t.keys, t.values);
    return cache;
  };
  attn::PagedKvCache<float> full = filled(0, 0), window = filled(kWindow, 0), with_sinks = filled(kWindow, 4);
  const auto decode = [&](attn::PagedKvCache<float>& cache, const auto& mods) {
    cache.append(0, t.k, t.v);
    attn::attention_into(t.out, t.q, cache.view({0}), mods, kSerial);
  };
  output.compare(std::to_string(tokens) + " tokens over 1024, 8 heads on 4 x 64, pages of " + std::to_string(page_size),
                 {{"a cache of 1024",
                   [&] {
                     for (Index i = 0; i < tokens; ++i) full.truncate(0, kWindow - 1), decode(full, attn::causal());
                   }},
                  {"window of 1024",
                   [&] {
                     const auto mods = attn::causal() | attn::sliding_window(kWindow - 1);
                     for (Index i = 0; i < tokens; ++i) decode(window, mods);
                   }},
                  {"window of 1024 and 4 sinks", [&] {
                     for (Index i = 0; i < tokens; ++i) decode(with_sinks, attn::causal());
                   }}});
}

/// Times dropping the oldest tokens. Four caches drop theirs, so that interleaved() does not repeat the call within a
/// turn. Caches are refilled between rounds.
void drops(Output& output) {
  constexpr Index kDropped = 256;
  constexpr std::size_t kCaches = 4;
  Tokens t(8, 8, 128, 4096);
  std::vector<attn::KvCache<float>> contiguous(
      kCaches, attn::KvCache<float>({.kv_heads = 8, .capacity = t.length(), .head_dim = 128, .rope = t.rope}));
  std::vector<attn::PagedKvCache<float>> pages(
      kCaches, attn::PagedKvCache<float>(
                   {.pages = t.length() / 64, .page_size = 64, .kv_heads = 8, .head_dim = 128, .rope = t.rope}));
  for (auto& cache : contiguous) cache.append(t.keys, t.values);
  for (auto& cache : pages) cache.append(cache.add(), t.keys, t.values);
  const auto k = t.keys.view().slice(2, 0, kDropped), v = t.values.view().slice(2, 0, kDropped);
  Eigen::ArrayXf keys = Eigen::ArrayXf::Ones(static_cast<Index>(kCaches) * t.keys.size());
  output.compare("dropping 256 of 4096 tokens from 4 caches, 8 heads x 128",
                 {{"reading and writing the keys once", [&] { keys = -keys; }},
                  {"KvCache",
                   [&] {
                     for (auto& cache : contiguous) cache.drop(0, 0, kDropped);
                   }},
                  {"PagedKvCache, pages of 64",
                   [&] {
                     for (auto& cache : pages) cache.drop(0, 0, kDropped);
                   }}},
                 [&] {
                   for (auto& cache : contiguous)
                     while (cache.length(0) < t.length()) cache.append(k, v);
                   for (auto& cache : pages)
                     while (cache.length(0) < t.length()) cache.append(0, k, v);
                 });
}

}  // namespace

int main(int argc, char** argv) {
  Program program("caches", "Times layers, windows and drops of caches.");
  return program.main(argc, argv, [&] {
    const std::string conditions =
        "float, 1 thread, " + std::string(to_string(attn::default_isa())) + "; medians of interleaved runs";
    std::cout << conditions << "\n\n";
    Output output{
        program.results(),
        program.quick() ? Budget{0.001, 1} : Budget{2, 31},
        Progress(4),
        Table(2),
        {.title = "Caches",
         .notes = {conditions},
         .series = {},
         .mark = "time of the first variant",
         .axes = {{"Time: shorter is better", "relative to the first variant", BarChart::Scale::linear, " ×"}}}};
    for (const char* heading : {"", "", "time", "to the first"}) output.table.column(heading, "");
    layers(output);
    for (const Index page_size : {16, 64}) windows(page_size, output);
    drops(output);
    output.progress.clear();
    output.table.print(std::cout);
    program.draw(output.chart);
  });
}
