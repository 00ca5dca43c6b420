// Layer 3: the linear map of a layer.
#pragma once

#include "attn/detail/choose_kernels.h"
#include "attn/parallel.h"

namespace attn::detail {
inline namespace ATTN_BUILT_FOR {

/// y = x * weightᵀ + bias: `outputs` rows of a weight matrix with row-major rows of `inputs` numbers. Null bias: none.
///
/// Runs on the score kernels, tokens as queries and rows of the weight as keys: as fast as they are without any
/// compiler flag, where Eigen's product has the instruction set of the flags. Numbers of 16 bits are summed up in float and
/// rounded once.
template <class T>
struct Linear {
  const T* weight;
  const T* bias;
  Index inputs;
  Index outputs;

  /// All tokens at once. x (tokens, inputs) and y (tokens, outputs) are row-major without gaps. Of the options, executor,
  /// instruction set and `compute` matter.
  void operator()(const T* x, T* y, Index tokens, const Options& options) const {
    if (tokens == 0) return;
    constexpr Index kFew = 4;  // more tokens make a vector worth its empty lanes
    const ChosenKernels<Number> kernels = choose_kernels<Number>(options, fits_bf16(options.compute, {kStorage}));
    const KernelFamily<Number>& family = tokens <= kFew ? kernels.exact : kernels.family;
    const QueryTiles<Number> tiles(family, tokens, kFew);
    const double flops = 2.0 * static_cast<double>(tokens) * static_cast<double>(inputs) * static_cast<double>(outputs);
    const Executor executor = executor_for(flops, options.executor);
    const Index row = family.format.row(inputs);
    const TileLayout<Number> layout(
        {.queries = tiles.most_queries(), .query = row, .out = kKeyTile, .packed_key = row});
    const Workspace workspace(layout.bytes(), executor.concurrency());
    // Few tokens, as in decoding, are few tiles: then the outputs are shared out too.
    constexpr Index kTasksPerWorker = 4;  // so that the last one to end is not much later than the others
    const Index blocks = (outputs + kKeyTile - 1) / kKeyTile;
    const Index wanted = kTasksPerWorker * executor.concurrency() / tiles.count();
    const Index parts = executor.concurrency() == 1 ? 1 : std::clamp<Index>(wanted, 1, std::max<Index>(blocks, 1));
    executor.run(tiles.count() * parts, [&](Index task, int worker) {
      const Range rows = tiles.rows(task / parts);
      const Index part = task % parts;
      const Range columns{blocks * part / parts * kKeyTile, std::min(blocks * (part + 1) / parts * kKeyTile, outputs)};
      if (family.begin) family.begin();
      run_tile(x + rows.begin * inputs, y + rows.begin * outputs, rows.size(), columns, family,
               tiles.kernels(rows.size()), layout.at(workspace.of(worker)));
      if (family.end) family.end();
    });
  }

 private:
  using Number = computed_t<T>;
  static constexpr Storage kStorage = storage_of<T>;

  void run_tile(const T* x, T* y, Index rows, Range columns, const KernelFamily<Number>& family,
                const KernelSet<Number>& kernels, TileMemory<Number> m) const {
    load_query(family, {reinterpret_cast<const std::byte*>(x), kStorage, inputs, 1}, rows, inputs, Number(1),
               kernels.queries, m);
    std::fill_n(m.sum, kernels.queries, Number(1));
    TileMemory<Number> result = m;
    std::swap(result.out, result.scores);  // they are the result already, to be stored without being divided
    for (Index first = columns.begin; first < columns.end; first += kKeyTile) {
      const Index count = std::min(kKeyTile, columns.end - first);
      const RowsToRead weights{reinterpret_cast<const std::byte*>(weight + first * inputs), kStorage, inputs, 1};
      kernels.score(m, rows_of(family, weights, count, inputs, family.format.keys, m.packed_key), count, inputs);
      for (Index o = 0; bias && o < count; ++o) {
        const auto b = static_cast<Number>(bias[first + o]);
        for (Index i = 0; i < kernels.queries; ++i) m.scores[o * kernels.queries + i] += b;
      }
      store_out(family, result, kernels.queries, {reinterpret_cast<std::byte*>(y + first), kStorage, outputs, 1}, rows,
                count);
    }
  }
};

}  // namespace ATTN_BUILT_FOR
}  // namespace attn::detail
