// The linear map of a layer.
#pragma once

#include <cstddef>
#include <span>

#include "attn/core/base/ranges.h"
#include "attn/core/flash/call_tensors.h"
#include "attn/parallel.h"

namespace attn::detail::inline ATTN_BUILT_FOR {

/// y = x * weightᵀ + bias, with a row-major weight of `outputs` rows of `inputs` elements. `bias` may be null.
///
/// The score kernels compute it, with tokens as queries and rows of the weight as keys. So it is fast without compiler
/// flags, while Eigen's product uses only the instruction set that the flags enable. 16-bit elements are summed in
/// float and rounded once.
template <class T>
struct Linear {
  const T* weight;
  const T* bias;
  Index inputs;
  Index outputs;

  /// Maps all tokens at once. x (tokens, inputs) and y (tokens, outputs) are row-major without gaps. Of the options,
  /// executor, instruction set, `compute` and row_invariant are used. If `memory` is empty, the call allocates;
  /// otherwise its size must be bytes().
  void operator()(const T* x, T* y, Index tokens, const Options& options, std::span<std::byte> memory = {}) const {
    run<kDType == DType::native>(readable(x, inputs), y, tokens, options, memory);
  }
  /// As above, for rows of any strides and dtype.
  void operator()(const RowsToRead& x, T* y, Index tokens, const Options& options,
                  std::span<std::byte> memory = {}) const {
    run<false>(x, y, tokens, options, memory);
  }

  /// Returns the size in bytes of the memory that a call uses.
  Index bytes(Index tokens, const Options& options) const {
    const Plan plan = plan_for<kDType == DType::native>(tokens, options);
    return Workspace::needed(plan.layout.bytes(), plan.workers.count());
  }

 private:
  using Number = computed_t<T>;
  static constexpr DType kDType = dtype_of<T>;

  struct Plan {
    bool few;
    ChosenKernels<Number> kernels;
    QueryTiles<Number> tiles;
    Workers workers;
    TileLayout<Number> layout;

    const KernelFamily<Number>& family() const { return few ? kernels.full_precision : kernels.family; }
  };

  /// `kNative`: all elements are stored in the type of the arithmetic.
  template <bool kNative>
  void run(const RowsToRead& x, T* y, Index tokens, const Options& options, std::span<std::byte> memory) const {
    if (tokens == 0) return;
    const Plan plan = plan_for<kNative>(tokens, options);
    const bool few = plan.few;
    const KernelFamily<Number>& family = plan.family();
    const QueryTiles<Number>& tiles = plan.tiles;
    const TileLayout<Number>& layout = plan.layout;
    const int workers = plan.workers.count();
    const Workspace workspace(layout.bytes(), workers, memory);
    // Few tokens make few tiles; then the outputs are distributed among the workers.
    constexpr Index kTasksPerWorker = 4;  // so that workers finish at about the same time
    const Index blocks = ceil_div(outputs, kKeyTile);
    const Index wanted = kTasksPerWorker * workers / tiles.count();
    const Index parts = workers == 1 ? 1 : std::clamp<Index>(wanted, 1, std::max<Index>(blocks, 1));
    plan.workers.run(tiles.count() * parts, [&](Index task, int worker) {
      const Index part = task % parts;
      const Range rows = tiles.rows(task / parts),
                  columns{blocks * part / parts * kKeyTile, std::min(blocks * (part + 1) / parts * kKeyTile, outputs)};
      const TileMemory<Number> m = layout.at(workspace.of(worker));
      const KernelScope<Number> in_use(family);
      if (few)
        run_rows(x, y, tokens, columns, family, m);
      else
        run_tile(from_row(x, rows.begin), y + rows.begin * outputs, rows.size(), columns, family, m);
    });
  }

  template <bool kNative>
  Plan plan_for(Index tokens, const Options& options) const {
    // With few tokens, as in decoding, reading the weight from memory takes most of the time. The kernels for single
    // queries read it once for all tokens.
    const bool few = tokens <= kQueriesAtATime && !options.row_invariant;
    const ChosenKernels<Number> kernels = choose_kernels<Number, !kNative>(
        options, options.row_invariant ? Bf16Products::none : bf16_products(options.compute, {kDType}));
    const KernelFamily<Number>& family = few ? kernels.full_precision : kernels.family;
    const QueryTiles<Number> tiles(family, tokens, false);
    const double flops = 2.0 * static_cast<double>(tokens) * static_cast<double>(inputs) * static_cast<double>(outputs);
    const double bytes = static_cast<double>(sizeof(T)) * static_cast<double>(inputs) * static_cast<double>(outputs);
    const Index row = family.format.row(inputs);
    const TileLayout<Number> layout({.queries = few ? Index(kQueriesAtATime) : tiles.most_queries(),
                                     .query = row,
                                     .out = kKeyTile,
                                     .packed_key = row});
    return {few, kernels, tiles, Workers({flops, bytes}, options.executor), layout};
  }

  static RowsToRead readable(const T* first, Index columns) {
    return {reinterpret_cast<const std::byte*>(first), kDType, columns, 1};
  }

  static RowsToRead from_row(RowsToRead x, Index row) {
    x.data += row * x.stride * size_of_element<Number>(x.dtype);
    return x;
  }

  void run_tile(const RowsToRead& x, T* y, Index rows, Range columns, const KernelFamily<Number>& family,
                TileMemory<Number> m) const {
    const KernelSet<Number>& kernels = family.set_for(rows);
    load_query(family, x, rows, inputs, Number(1), kernels.queries, m.packed_key, m);
    std::fill_n(m.sum, kernels.queries, Number(1));
    TileMemory<Number> result = m;
    std::swap(result.out, result.scores);  // the scores are the result, stored without a division
    for (Index first = columns.begin; first < columns.end; first += kKeyTile) {
      const Index count = std::min(kKeyTile, columns.end - first);
      const RowsToRead weights = readable(weight + first * inputs, inputs);
      kernels.score(m, rows_of(family, weights, count, inputs, family.format.keys, m.packed_key), count, inputs);
      for (Index o = 0; bias && o < count; ++o) {
        const auto b = static_cast<Number>(bias[first + o]);
        for (Index i = 0; i < kernels.queries; ++i) m.scores[o * kernels.queries + i] += b;
      }
      store_out(family, result, kernels.queries, {reinterpret_cast<std::byte*>(y + first), kDType, outputs, 1}, rows,
                count);
    }
  }

  void run_rows(const RowsToRead& x, T* y, Index rows, Range columns, const KernelFamily<Number>& family,
                const TileMemory<Number>& m) const {
    family.pack_rows(x, rows, inputs, m.query);
    for (Index first = columns.begin; first < columns.end; first += kKeyTile) {
      const Index count = std::min(kKeyTile, columns.end - first);
      Prefetcher fetching;
      if (first + 2 * kKeyTile <= columns.end)
        fetching.add<Number>(readable(weight + (first + kKeyTile) * inputs, inputs), inputs, kKeyTile);
      family.decode.score_of(kDType)(m, rows, readable(weight + first * inputs, inputs), count, inputs, fetching);
      for (Index r = 0; r < rows; ++r) {
        Number* const result = m.scores + r * m.row;
        for (Index o = 0; bias && o < count; ++o) result[o] += static_cast<Number>(bias[first + o]);
        family.unpack_rows(result, 1, count,
                           {reinterpret_cast<std::byte*>(y + r * outputs + first), kDType, outputs, 1});
      }
    }
  }
};

}  // namespace attn::detail::inline ATTN_BUILT_FOR
