// Layer 2: the linear map of a layer.
#pragma once

#include "attn/detail/query_tiles.h"
#include "attn/parallel.h"

namespace attn::detail {
inline namespace ATTN_BUILT_FOR {

/// y = x * weightᵀ + bias: `outputs` rows of a weight matrix with row-major rows of `inputs` numbers. Null bias: none.
///
/// Runs on the score kernels, tokens as queries and rows of the weight as keys: as fast as they are without any
/// compiler flag, where Eigen's product has the instruction set of the flags.
template <class T>
struct Linear {
  const T* weight;
  const T* bias;
  Index inputs;
  Index outputs;

  /// All tokens at once. x (tokens, inputs) and y (tokens, outputs) are row-major without gaps.
  void operator()(const T* x, T* y, Index tokens, Isa isa, const Executor& asked) const {
    if (tokens == 0) return;
    const KernelFamily<T>& family = kernel_family<T>(isa);
    constexpr Index kFew = 4;  // more tokens make a vector worth its empty lanes
    const QueryTiles<T> tiles(family, tokens, kFew);
    const double flops = 2.0 * static_cast<double>(tokens) * static_cast<double>(inputs) * static_cast<double>(outputs);
    const Executor executor = executor_for(flops, asked);
    const TileWorkspace<T> workspace(TileLayout<T>{tiles.most_queries(), inputs, 0, 0, 0}, executor.concurrency());
    // Few tokens, as in decoding, are few tiles: then the outputs are shared out too.
    constexpr Index kTasksPerWorker = 4;  // so that the last one to end is not much later than the others
    const Index blocks = (outputs + kKeyTile - 1) / kKeyTile;
    const Index wanted = kTasksPerWorker * executor.concurrency() / tiles.count();
    const Index parts = executor.concurrency() == 1 ? 1 : std::clamp<Index>(wanted, 1, std::max<Index>(blocks, 1));
    executor.run(tiles.count() * parts, [&](Index task, int worker) {
      const Range rows = tiles.rows(task / parts);
      const Index part = task % parts;
      const Range columns{blocks * part / parts * kKeyTile, std::min(blocks * (part + 1) / parts * kKeyTile, outputs)};
      run_tile(x + rows.begin * inputs, y + rows.begin * outputs, rows.size(), columns, family,
               tiles.kernels(rows.size()), workspace.of(worker));
    });
  }

 private:
  void run_tile(const T* x, T* y, Index rows, Range columns, const KernelFamily<T>& family, const KernelSet<T>& kernels,
                TileMemory<T> m) const {
    family.load_columns(m.query, kernels.queries, {x, inputs}, rows, inputs, T(1));
    m.out = m.scores;  // they are the result already, to be stored without being divided
    std::fill_n(m.sum, kernels.queries, T(1));
    for (Index first = columns.begin; first < columns.end; first += kKeyTile) {
      const Index count = std::min(kKeyTile, columns.end - first);
      kernels.score(m, {weight + first * inputs, inputs}, count, inputs);
      family.store_out(m, kernels.queries, y + first, outputs, rows, count);
      for (Index i = 0; bias && i < rows; ++i)
        for (Index o = first; o < first + count; ++o) y[i * outputs + o] += bias[o];
    }
  }
};

}  // namespace ATTN_BUILT_FOR
}  // namespace attn::detail
