// Predicts attention over long sequences on many ranks by the scaling model, with the speed of kernels on this machine.
// The benchmark `ring` compares the model with measurements.
#include <algorithm>
#include <cmath>
#include <functional>
#include <iostream>
#include <string>
#include <vector>

#include <attn/attn.h>

#include "program.h"
#include "random_tensor.h"
#include "scale_model.h"
#include "svg.h"
#include "table.h"
#include "timing.h"

namespace {

using namespace bench;
using attn::Index;

struct Settings {
  double gflops = 0, latency_us = 20, gigabytes = 1.25;  // 10 Gbit/s Ethernet
  std::vector<double> lens{1e4, 1e5, 1e7};
  SelfAttention attention{.len = 0, .heads = 32, .kv_heads = 8, .dim = 128, .causal = true};
  bool full = false;
  int threads = 1, most_ranks = 1024;
};

/// Returns the flop/s of attention on `s.threads` threads of this machine.
double measured_speed(const Settings& s, bool quick) {
  const Index len = quick ? 256 : 2048, heads = 2 * s.threads, dim = static_cast<Index>(s.attention.dim);
  const auto q = random_tensor({1, heads, len, dim}, 1), k = random_tensor({1, heads, len, dim}, 2);
  const attn::Options options{.executor = attn::threads(s.threads)};
  std::vector<double> times;
  for (int round = 0; round < 5; ++round) times.push_back(seconds([&] { attn::attention(q, k, k, options); }));
  const auto n = static_cast<double>(len);
  return 4 * n * n * static_cast<double>(heads * dim) / median(times);
}

struct Line {
  std::string name;
  SelfAttention attention;
  Distribution distribution;
  std::vector<std::pair<int, Prediction>> points;
};

/// Predictions of all distributions for sequences of one length, backward passes last.
struct Panel {
  double len;
  std::vector<Line> lines;
};

std::string count_text(double n) {
  const double thousands = n / 1000, millions = n / 1e6;
  if (n >= 1e6 && millions == std::floor(millions * 10) / 10)
    return fixed(millions, std::fmod(n, 1e6) == 0 ? 0 : 1) + " million";
  if (n >= 1e4 && std::fmod(n, 1000) == 0) return fixed(thousands, 0) + " thousand";
  return fixed(n, 0);
}

/// Draws efficiency over ranks, a panel per length.
std::string svg_of(const Settings& s, const Cluster& cluster, const std::vector<Panel>& panels) {
  constexpr double kLeft = 64, kTop = 128, kWidth = 300, kHeight = 300, kGap = 40;
  constexpr display::TextStyle kTick{11, "faint", "middle"};
  const auto count = static_cast<double>(panels.size());
  const double octaves = std::max(1.0, std::log2(static_cast<double>(s.most_ranks)));
  const auto at_y = [&](double share) { return kTop + kHeight * (1 - share); };
  const std::string title = "Predicted efficiency of attention over ranks";
  display::Svg svg(kLeft + count * (kWidth + kGap), kTop + kHeight + 60, title);
  svg.text(24, 34, title, {20, "ink", "start", true});
  svg.text(24, 56,
           std::string(s.attention.causal ? "Causal, " : "") + fixed(s.attention.heads, 0) + " heads on " +
               fixed(s.attention.kv_heads, 0) + " of " + fixed(s.attention.dim, 0) + " features; " +
               fixed(cluster.flops_per_second / 1e9, 0) + " GFLOP/s per rank, " + time_text(cluster.latency) + ", " +
               fixed(cluster.bandwidth / 1e9, 2) + " GB/s",
           {12, "faint"});
  double x = 24;
  for (std::size_t i = 0; i < panels.front().lines.size(); ++i) {
    const Line& line = panels.front().lines[i];
    svg.line(x, 80, x + 28, 80, display::series_class('s', i % 3), 2, line.attention.backward ? "6 3" : "");
    svg.marker(x + 14, 80, display::series_class('f', i % 3), i % 3);
    svg.text(x + 36, 84, line.name);
    x += 60 + display::text_width(line.name);
  }
  for (std::size_t p = 0; p < panels.size(); ++p) {
    const double left = kLeft + static_cast<double>(p) * (kWidth + kGap);
    const auto at_x = [&](double ranks) { return left + kWidth * std::log2(ranks) / octaves; };
    svg.text(left + kWidth / 2, kTop - 12, count_text(panels[p].len) + " tokens", {13, "ink", "middle", true});
    for (int percent = 0; percent <= 100; percent += 20) {
      svg.line(left, at_y(percent / 100.0), left + kWidth, at_y(percent / 100.0), "grid");
      if (p == 0) svg.text(left - 10, at_y(percent / 100.0) + 4, std::to_string(percent) + " %", {11, "faint", "end"});
    }
    for (int ranks = 1; ranks <= s.most_ranks; ranks *= 4) {
      svg.line(at_x(ranks), kTop, at_x(ranks), kTop + kHeight, "grid");
      svg.text(at_x(ranks), kTop + kHeight + 18, std::to_string(ranks), kTick);
    }
    svg.text(left + kWidth / 2, kTop + kHeight + 42, "ranks (log scale)", {12, "ink", "middle"});
    for (std::size_t i = 0; i < panels[p].lines.size(); ++i) {
      const auto& points = panels[p].lines[i].points;
      for (std::size_t n = 0; n + 1 < points.size(); ++n)
        svg.line(at_x(points[n].first), at_y(points[n].second.efficiency), at_x(points[n + 1].first),
                 at_y(points[n + 1].second.efficiency), display::series_class('s', i % 3), 2,
                 panels[p].lines[i].attention.backward ? "6 3" : "");
      for (const auto& [ranks, prediction] : points)
        svg.marker(at_x(ranks), at_y(prediction.efficiency), display::series_class('f', i % 3), i % 3);
    }
  }
  return svg.str();
}

Panel predicted(const Settings& s, double len, const Cluster& cluster) {
  Panel panel{len, {}};
  for (const bool backward : {false, true})
    for (const Distribution distribution : {Distribution::contiguous, Distribution::zigzag, Distribution::by_heads}) {
      Line line{
          std::string(kDistributionNames[static_cast<std::size_t>(distribution)]) + (backward ? ", backward" : ""),
          s.attention,
          distribution,
          {}};
      line.attention.len = len;
      line.attention.backward = backward;
      for (int ranks = 1; ranks <= s.most_ranks; ranks *= 2)
        if (distribution != Distribution::by_heads || ranks <= s.attention.heads)
          line.points.emplace_back(ranks, predict(line.attention, distribution, ranks, cluster));
      panel.lines.push_back(line);
    }
  return panel;
}

void print(const Panel& panel, Results& results) {
  std::cout << '\n' << count_text(panel.len) << " tokens\n\n";
  Table table(1);
  table.column("", "ranks");
  for (const Line& line : panel.lines)
    for (const char* what : {"time", "efficiency"}) table.column(line.name, what);
  for (std::size_t row = 0; row < panel.lines.front().points.size(); ++row) {
    const int ranks = panel.lines.front().points[row].first;
    std::vector<std::string> cells{std::to_string(ranks)};
    for (const Line& line : panel.lines) {
      if (row >= line.points.size()) {
        cells.insert(cells.end(), 2, "");
        continue;
      }
      const Prediction& p = line.points[row].second;
      cells.insert(cells.end(), {time_text(p.seconds), fixed(100 * p.efficiency, 1) + " %"});
      results.add("N=" + fixed(panel.len, 0) + " ranks=" + std::to_string(ranks) + "/" + line.name, {p.seconds, 0, 1},
                  {{"efficiency", p.efficiency}, {"bytes_sent", p.bytes_sent}});
    }
    table.row(cells);
  }
  table.print(std::cout);
}

void run(Program& program, Settings s) {
  s.attention.causal = !s.full;
  const Cluster cluster{s.gflops > 0 ? 1e9 * s.gflops : measured_speed(s, program.quick()), 1e-6 * s.latency_us,
                        1e9 * s.gigabytes};
  std::cout << s.attention.heads << " heads on " << s.attention.kv_heads << " of " << s.attention.dim << " features"
            << (s.attention.causal ? ", causal" : "") << "; a rank computes "
            << fixed(cluster.flops_per_second / 1e9, 1) << " GFLOP/s and sends " << fixed(cluster.bandwidth / 1e9, 2)
            << " GB/s after " << time_text(cluster.latency) << '\n';
  std::vector<Panel> panels;
  for (const double len : s.lens) {
    panels.push_back(predicted(s, len, cluster));
    print(panels.back(), program.results());
  }
  program.draw(svg_of(s, cluster, panels));
}

}  // namespace

int main(int argc, char** argv) {
  Program program("ring_model",
                  "Predicts time and efficiency of attention over many ranks, for keys sent around a ring (contiguous "
                  "and zigzag) and for exchanged heads. The speed of a rank is measured unless --gflops is given.");
  Settings s;
  program.number("--gflops", s.gflops, "speed of attention on a rank, GFLOP/s; 0: measure it here", 0.0, 1e9);
  program.number("--threads", s.threads, "threads of a rank in the measurement", 1, 1024);
  program.number("--latency", s.latency_us, "latency between ranks, microseconds", 0.0, 1e9);
  program.number("--bandwidth", s.gigabytes, "bandwidth into and out of a rank, GB/s", 1e-3, 1e6);
  program.number("--len", s.lens, "tokens; each length gets its own panel", 1.0, 1e12);
  program.number("--heads", s.attention.heads, "query heads", 1.0, 1e6);
  program.number("--kv-heads", s.attention.kv_heads, "key/value heads", 1.0, 1e6);
  program.number("--dim", s.attention.dim, "features per head", 1.0, 1024.0);
  program.number_among("--bytes", s.attention.bytes_per_element, "bytes per element of keys and values: 4 or 2",
                       {2.0, 4.0});
  program.number("--most-ranks", s.most_ranks, "predict powers of two up to this number of ranks", 1, 65536);
  program.flag("--full", s.full, "no causal mask");
  return program.main(argc, argv, [&] { run(program, s); });
}
