// Small calls, where checks, dispatch and packing weigh as much as the products: against the same written by hand with
// Eigen, and row-major against column-major matrices. One head, float, on the calling thread; all in turn.
#include <cmath>
#include <cstddef>
#include <functional>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include <attn/attn.h>
#include <CLI/CLI.hpp>

#include "report.h"
#include "table.h"
#include "timing.h"

namespace {

using namespace bench;
using attn::Index;
using RowMajor = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using ColMajor = Eigen::MatrixXf;

struct Sizes {
  Index q_len, kv_len, dim;
};

template <class Matrix>
struct Problem {
  explicit Problem(const Sizes& s)
      : q(Matrix::Random(s.q_len, s.dim)),
        k(Matrix::Random(s.kv_len, s.dim)),
        v(Matrix::Random(s.kv_len, s.dim)),
        out(s.q_len, s.dim),
        scores(s.q_len, s.kv_len),
        memory(attn::workspace_bytes(q, k, v, attn::Mods<>(), options)) {}

  /// What one would write: nothing is allocated, and the softmax is Eigen's.
  void by_hand() {
    const float scale = 1 / std::sqrt(static_cast<float>(q.cols()));
    scores.noalias() = scale * q * k.transpose();
    scores = (scores.colwise() - scores.rowwise().maxCoeff()).array().exp().matrix();
    scores.array().colwise() /= scores.rowwise().sum().array().eval();
    out.noalias() = scores * v;
  }
  void allocating() { out = attn::attention(q, k, v, attn::Mods<>(), options).out; }
  void into() { attn::attention_into(out, q, k, v, attn::Mods<>(), options); }
  void into_with_workspace() {
    attn::Options with = options;
    with.workspace = memory;
    attn::attention_into(out, q, k, v, attn::Mods<>(), with);
  }

  attn::Options options{.executor = attn::serial()};
  Matrix q, k, v, out, scores;
  std::vector<std::byte> memory;
};

std::string text(const Sizes& s) {
  return std::to_string(s.q_len) + " x " + std::to_string(s.kv_len) + " x " + std::to_string(s.dim);
}

std::string time(double seconds) {
  return seconds < 1e-5 ? fixed(seconds * 1e9, 0) + " ns" : fixed(seconds * 1e6, 1) + " µs";
}

/// Sizes, and a call of each way in turn; the first way is the one that the others are compared with.
void print(const std::vector<std::string>& ways, const std::vector<Sizes>& sizes, const Budget& budget,
           const std::function<std::vector<std::function<void()>>(const Sizes&)>& calls_of) {
  Table table(1);
  table.column("queries x keys x features", "");
  for (const std::string& way : ways) {
    table.column(way, "time");
    if (way != ways.front()) table.column(way, "ratio");
  }
  for (const Sizes& s : sizes) {
    const std::vector<double> seconds = interleaved(calls_of(s), budget, [](int, int) {});
    std::vector<std::string> row{text(s), time(seconds[0])};
    for (std::size_t i = 1; i < seconds.size(); ++i) {
      row.push_back(time(seconds[i]));
      row.push_back(fixed(seconds[i] / seconds[0], 2));
    }
    table.row(row);
  }
  table.print(std::cout);
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{"Times small calls against products written by hand, and column-major matrices against row-major ones."};
  bool quick = false;
  app.add_flag("--quick", quick, "A look only");
  CLI11_PARSE(app, argc, argv);
  const Budget budget = quick ? Budget{0.01, 3} : Budget{1, 31};

  print({"by hand, Eigen", "attention()", "attention_into()", "with a workspace"},
        {{1, 1, 8}, {1, 16, 64}, {8, 8, 16}, {1, 256, 64}, {16, 16, 64}, {64, 64, 64}}, budget, [](const Sizes& s) {
          const auto p = std::make_shared<Problem<RowMajor>>(s);
          return std::vector<std::function<void()>>{[p] { p->by_hand(); }, [p] { p->allocating(); }, [p] { p->into(); },
                                                    [p] { p->into_with_workspace(); }};
        });
  std::cout << '\n';
  print({"row-major", "column-major"},
        {{1, 1024, 64}, {8, 8, 16}, {64, 64, 64}, {256, 256, 64}, {1024, 1024, 64}, {4096, 4096, 64}}, budget,
        [](const Sizes& s) {
          const auto rows = std::make_shared<Problem<RowMajor>>(s);
          const auto columns = std::make_shared<Problem<ColMajor>>(s);
          return std::vector<std::function<void()>>{[rows] { rows->into_with_workspace(); },
                                                    [columns] { columns->into_with_workspace(); }};
        });
}
