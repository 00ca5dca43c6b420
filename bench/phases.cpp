// Times the kernels of one tile of the flash path separately, over the keys of one head.
#include <array>
#include <iostream>
#include <string>

#include <attn/attn.h>

#include "peak.h"
#include "program.h"
#include "progress.h"
#include "table.h"
#include "timing.h"

namespace {

using namespace bench;
using attn::Index;
namespace detail = attn::detail;

constexpr Index kKeys = 2048;
constexpr int kRounds = 25;

/// The steps of a tile of queries over all keys, in the order of the prefill loop.
template <class T>
class Phases {
 public:
  explicit Phases(Index dim)
      : dim_(dim),
        family_(detail::kernel_family<T>(detail::vectors_of(attn::default_isa()))),
        kernels_(family_.by_vectors[family_.widest - 1]),
        query_(Matrix::Random(kernels_.queries, dim)),
        key_(Matrix::Random(kKeys, dim)),
        value_(Matrix::Random(kKeys, dim)),
        columns_(value_),
        out_(kernels_.queries, dim),
        layout_({.queries = kernels_.queries,
                 .query = dim,
                 .out = detail::padded(dim, family_.format.out),
                 .packed_key = dim,
                 .packed_value = dim}),
        workspace_(layout_.bytes(), 1),
        memory_(layout_.at(workspace_.of(0))) {}

  static constexpr std::array<const char*, 5> kNames = {"loading queries, storing output", "score product", "softmax",
                                                        "value product", "packing of column-major values"};

  /// Returns the time of each step, timed in turn.
  std::vector<Timing> measure(const Budget& budget, Progress& progress) {
    begin();
    return interleaved({[this] { queries_and_output(); }, [this] { scores(); }, [this] { softmax(); },
                        [this] { values(); }, [this] { packing(); }},
                       budget, [&](int round, int rounds) {
                         progress.round(round, rounds);
                         begin();
                       });
  }

  double flops_of_product() const {
    return 2.0 * static_cast<double>(kernels_.queries) * static_cast<double>(kKeys) * static_cast<double>(dim_);
  }
  Index queries() const { return kernels_.queries; }

 private:
  using Matrix = Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

  /// Initialises the data so that values stay in range however often a step runs.
  void begin() {
    family_.load_columns(memory_.query, kernels_.queries, {query_.data(), dim_}, kernels_.queries, dim_, T(0.125));
    std::fill_n(memory_.scores, detail::kKeyTile * kernels_.queries, T(0.01));
    std::fill_n(memory_.out, dim_ * kernels_.queries, T(0));
    std::fill_n(memory_.max, kernels_.queries, T(1));
    std::fill_n(memory_.tile_max, kernels_.queries, T(1));
    std::fill_n(memory_.sum, kernels_.queries, T(1));
  }
  void queries_and_output() {
    family_.load_columns(memory_.query, kernels_.queries, {query_.data(), dim_}, kernels_.queries, dim_, T(0.125));
    family_.store_out(memory_, kernels_.queries, out_.data(), dim_, kernels_.queries, dim_);
  }
  void scores() {
    for (Index j = 0; j < kKeys; j += detail::kKeyTile) kernels_.score(memory_, rows(key_, j), detail::kKeyTile, dim_);
  }
  void softmax() {
    std::fill_n(memory_.scores, detail::kKeyTile * kernels_.queries, T(0.01));
    for (Index j = 0; j < kKeys; j += detail::kKeyTile)
      kernels_.softmax(memory_, detail::kKeyTile, rows(value_, j), dim_);
  }
  void values() {
    std::fill_n(memory_.scores, detail::kKeyTile * kernels_.queries, T(0.01));
    for (Index j = 0; j < kKeys; j += detail::kKeyTile) {
      const Index next = (j + detail::kKeyTile) % kKeys;
      kernels_.value(memory_, rows(value_, j), detail::kKeyTile, dim_, detail::OutUpdate::add, ahead(next));
    }
  }
  void packing() {
    for (Index j = 0; j < kKeys; j += detail::kKeyTile)
      family_.pack_rows({reinterpret_cast<const std::byte*>(columns_.data() + j), detail::DType::native, 1, kKeys},
                        detail::kKeyTile, dim_, memory_.packed_value);
  }

  detail::PrefetchPlan ahead(Index j) const {
    constexpr Index kHalf = detail::kKeyTile / 2;
    const Index bytes = dim_ * static_cast<Index>(sizeof(T));
    const auto block = [&](const Matrix& m, Index row) {
      return detail::PrefetchPlan::Block{reinterpret_cast<const std::byte*>(m.data() + row * dim_), bytes, bytes};
    };
    return {{block(key_, j), block(value_, j), block(key_, j + kHalf), block(value_, j + kHalf)}};
  }
  detail::Rows<T> rows(const Matrix& m, Index j) const { return {m.data() + j * dim_, dim_}; }

  Index dim_;
  const detail::KernelFamily<T>& family_;
  const detail::KernelSet<T>& kernels_;
  Matrix query_, key_, value_;
  Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic> columns_;
  Matrix out_;
  detail::TileLayout<T> layout_;
  detail::Workspace workspace_;
  detail::TileMemory<T> memory_;
};

/// Destinations of a run's results.
struct Output {
  Budget budget;
  Results& results;
  Progress progress;
  BarChart chart;
};

template <class T>
void print(const char* scalar, Index dim, Output& output) {
  Phases<T> phases(dim);
  const std::string name = std::string(scalar) + ", D=" + std::to_string(dim);
  output.progress.begin_row(name);
  const std::vector<Timing> times = phases.measure(output.budget, output.progress);
  output.progress.clear();
  double peak = 0;
  for (int i = 0; i < 9; ++i) peak = std::max(peak, measure_fma_peak<T>(attn::serial()));
  double sum = 0;
  for (std::size_t i = 0; i + 1 < times.size(); ++i) sum += times[i].seconds;
  std::cout << name << ": " << phases.queries() << " queries over " << kKeys << " keys, "
            << to_string(attn::default_isa()) << ", FMA peak " << fixed(peak / 1e9, 0) << " GFLOP/s\n";
  BarChart::Group group{.name = name, .detail = std::to_string(phases.queries()) + " queries", .bars = {}};
  for (std::size_t i = 0; i < times.size(); ++i) {
    const double time = times[i].seconds, share = time / sum;
    std::string rate;
    Counters counters{{"of_the_tile", share}};
    if (i == 1 || i == 3) {
      const double of_peak = phases.flops_of_product() / time / peak;
      rate = ", " + fixed(100 * of_peak, 0) + " % of peak";
      counters.emplace_back("of_fma_peak", of_peak);
    }
    if (i == 2) {
      const double exponentials = static_cast<double>(phases.queries() * kKeys) / time;
      rate = ", " + fixed(exponentials / 1e9, 1) + " G exponentials/s";
      counters.emplace_back("exponentials_per_second", exponentials);
    }
    std::cout << "  " << fixed(1e6 * time, 1) << " us  " << fixed(100 * share, 1) << " %  " << Phases<T>::kNames[i]
              << rate << (i + 1 == times.size() ? " (in addition, only if values are column-major)" : "") << '\n';
    group.bars.push_back({i, {{100 * share, time_text(time) + rate}}});
    output.results.add(name + "/" + Phases<T>::kNames[i], times[i], std::move(counters));
  }
  output.chart.groups.push_back(std::move(group));
  std::cout << "  together " << fixed(100 * 2 * phases.flops_of_product() / sum / peak, 0) << " % of peak\n";
}

}  // namespace

int main(int argc, char** argv) {
  Program program("phases", "Times each step of one tile of queries separately, over the keys of one head.");
  return program.main(argc, argv, [&] {
    Output output{
        program.quick() ? Budget{0.001, 3} : Budget{.seconds = 0.2, .rounds = kRounds},
        program.results(),
        Progress(4),
        {.title = "Where the time of a tile goes",
         .notes = {"A tile of queries over " + std::to_string(kKeys) + " keys of one head, on the calling thread; " +
                   Phases<float>::kNames[4] + " takes additional time, if there are any"},
         .series = {Phases<float>::kNames.begin(), Phases<float>::kNames.end()},
         .mark = "",
         .axes = {{"Time", "share of the tile", BarChart::Scale::linear, " %"}}}};
    print<float>("float", 64, output);
    print<float>("float", 128, output);
    print<double>("double", 64, output);
    print<float>("float", 512, output);
    program.draw(output.chart);
  });
}
