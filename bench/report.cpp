#include "report.h"

#include <cstdio>
#include <fstream>
#include <stdexcept>

#include "table.h"

namespace bench {

namespace {

constexpr double kGiga = 1e9, kMebi = 1024.0 * 1024.0;
const std::string kNone = "–";

/// Formats about three significant digits; runs are not more precise.
std::string figures(double value) { return fixed(value, value < 1 ? 3 : value < 10 ? 2 : value < 100 ? 1 : 0); }

}  // namespace

void print_table(std::ostream& out, const Report& report) {
  const auto& names = report.contestants;
  Table table(3);
  table.column("shape", "");
  table.column("type", "");
  table.column("mods", "");
  for (const auto& name : names) table.column("time, ms", name);
  for (std::size_t c = 1; c < names.size(); ++c) table.column("speed-up", names[c]);
  for (const auto& name : names) table.column("extra memory, MiB", name);
  for (const auto& name : names) table.column("GFLOP/s", name);
  for (const auto& name : names) table.column("of FMA peak", name);

  for (const RowResult& row : report.rows) {
    std::vector<std::string> cells{sizes(row.work), std::string(name(row.work.scalar)),
                                   std::string(name(row.work.mod_set))};
    const auto each = [&](std::size_t first, const auto& text) {
      for (std::size_t c = first; c < row.of.size(); ++c) cells.push_back(row.of[c] ? text(*row.of[c]) : kNone);
    };
    each(0, [](const Measurement& m) { return figures(m.time.seconds * 1e3); });
    each(1, [&](const Measurement& m) {
      return row.of[0] ? fixed(row.of[0]->time.seconds / m.time.seconds, 2) + " ×" : kNone;
    });
    each(0, [](const Measurement& m) {
      return memory_is_counted() ? figures(static_cast<double>(m.extra_bytes) / kMebi) : kNone;
    });
    each(0, [](const Measurement& m) { return figures(m.flops_per_second / kGiga); });
    each(0, [&](const Measurement& m) { return fixed(100 * m.flops_per_second / row.fma_peak, 0) + " %"; });
    table.row(std::move(cells));
  }
  table.print(out);
}

void write_csv(const std::string& path, const Report& report) {
  std::ofstream file(path);
  file << "contestant,type,mods,batch,heads,kv_heads,q_len,kv_len,head_dim,v_dim,layout,threads,rounds,seconds,flops_"
          "per_second,"
          "extra_bytes,fma_peak,eigen_product\n";
  for (const RowResult& row : report.rows)
    for (std::size_t c = 0; c < row.of.size(); ++c) {
      if (!row.of[c]) continue;
      const Workload& w = row.work;
      file << report.contestants[c] << ',' << name(w.scalar) << ",\"" << name(w.mod_set) << "\"," << w.batch << ','
           << w.heads << ',' << w.kv_heads << ',' << w.q_len << ',' << w.kv_len << ',' << w.head_dim << ',' << w.v_dim
           << ',' << name(w.layout) << ',' << report.threads << ',' << row.rounds << ',' << row.of[c]->time.seconds
           << ',' << row.of[c]->flops_per_second << ',' << row.of[c]->extra_bytes << ',' << row.fma_peak << ','
           << row.eigen_product << '\n';
    }
  if (!file.flush()) throw std::runtime_error("cannot write " + path);
}

BarChart chart_of(const Report& report) {
  BarChart chart{.title = "Exact attention on the CPU: ",
                 .notes = report.conditions,
                 .series = report.contestants,
                 .mark = "FMA peak, measured alongside each row",
                 .axes = {{"Speed: longer is better", "GFLOP/s: 4 · B · H · kept (query, key) pairs · D / time"},
                          {"Extra memory: shorter is better", "peak heap usage during the call (log scale)",
                           BarChart::Scale::bytes, "", 260}}};
  for (std::size_t c = 0; c < report.contestants.size(); ++c)
    chart.title += (c == 0 ? "" : c == 1 ? " against " : " and ") + report.contestants[c];
  chart.title += ", " + std::to_string(report.threads) + (report.threads == 1 ? " thread" : " threads");
  for (const RowResult& row : report.rows) {
    BarChart::Group group{.name = sizes(row.work),
                          .detail = std::string(name(row.work.mod_set)).append(", ").append(name(row.work.scalar)),
                          .bars = {},
                          .mark = row.fma_peak / kGiga};
    for (std::size_t c = 0; c < row.of.size(); ++c) {
      const auto& m = row.of[c];
      if (!m) {
        group.bars.push_back({c, {{BarChart::kNone, "not run: " + std::string(row.declined[c])}, {}}});
        continue;
      }
      std::string speed = fixed(m->flops_per_second / kGiga, 0);
      if (c > 0 && row.of[0]) speed += ", " + fixed(row.of[0]->time.seconds / m->time.seconds, 2) + " × as fast";
      const auto bytes = static_cast<double>(m->extra_bytes);
      group.bars.push_back({c,
                            {{m->flops_per_second / kGiga, speed},
                             memory_is_counted() ? BarChart::Length{bytes, bytes_text(bytes)} : BarChart::Length{}}});
    }
    chart.groups.push_back(std::move(group));
  }
  return chart;
}

void add_results(Results& results, const Report& report) {
  for (const RowResult& row : report.rows)
    for (std::size_t c = 0; c < row.of.size(); ++c) {
      if (!row.of[c]) continue;
      const Measurement& m = *row.of[c];
      Counters counters{{"flops_per_second", m.flops_per_second},
                        {"of_fma_peak", m.flops_per_second / row.fma_peak},
                        {"fma_peak", row.fma_peak},
                        {"eigen_product", row.eigen_product}};
      if (memory_is_counted()) counters.emplace_back("extra_bytes", static_cast<double>(m.extra_bytes));
      results.add(label(row.work) + "/" + report.contestants[c], m.time, std::move(counters));
    }
}

}  // namespace bench
