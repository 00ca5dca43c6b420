// The linear map of a layer, and its gradients.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <span>

#include "attn/core/base/ranges.h"
#include "attn/core/flash/call_tensors.h"
#include "attn/core/kernels/backward_kernels.h"
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
  Index stride = outputs;  ///< distance between rows of y

  /// Maps all tokens at once. x (tokens, inputs) and y (tokens, outputs) are row-major, and rows of x adjacent. Of the
  /// options, executor, instruction set, `compute` and row_invariant are used. If `memory` is empty, the call
  /// allocates; otherwise its size must be bytes().
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
        run_tile(from_row(x, rows.begin), y + rows.begin * stride, rows.size(), columns, family, m);
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
      store_out(family, result, kernels.queries, {reinterpret_cast<std::byte*>(y + first), kDType, stride, 1}, rows,
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
        family.unpack_rows(result, 1, count, {reinterpret_cast<std::byte*>(y + r * stride + first), kDType, stride, 1});
      }
    }
  }
};

/// Computes to = fromᵀ: `from` (rows, columns) and `to` (columns, rows) are row-major without gaps. Both element types
/// must have the same computed_t.
template <class From, class To>
void transpose_into(To* to, const From* from, Index rows, Index columns, const Options& options) {
  using T = computed_t<From>;
  constexpr int kSide = 32;  // of a block: 16 kB of long double, which fits any thread's stack
  constexpr bool kNative = dtype_of<From> == DType::native && dtype_of<To> == DType::native;
  const KernelFamily<T>& family = kernel_family<T, !kNative>(vectors_of(isa_of(options)));
  const Workers workers({kFlopsToMove * static_cast<double>(rows) * static_cast<double>(columns)}, options.executor);
  workers.run(ceil_div(columns, kSide), [&](Index task, int) {
    alignas(kAlignment) Array<T, kSide * kSide> block;
    const Index column = task * kSide, width = std::min<Index>(kSide, columns - column);
    for (Index row = 0; row < rows; row += kSide) {
      const Index height = std::min<Index>(kSide, rows - row);
      const RowsToRead transposed{reinterpret_cast<const std::byte*>(from + row * columns + column), dtype_of<From>, 1,
                                  columns};
      family.pack_rows(transposed, width, height, block);
      family.unpack_rows(block, width, height,
                         {reinterpret_cast<std::byte*>(to + column * rows + row), dtype_of<To>, rows, 1});
    }
  });
}

/// Computes the gradient of y = x * weightᵀ + bias with respect to x: grad_x = grad_y * weight, for all tokens. All
/// matrices are row-major without gaps, as in Linear.
template <class T>
void input_gradient(const Linear<T>& map, const T* grad_y, T* grad_x, Index tokens, const Options& options) {
  if (tokens == 0) return;
  auto columns = Tensor<T, 2>::uninitialized({map.inputs, map.outputs});
  transpose_into(columns.data(), map.weight, map.outputs, map.inputs, options);
  Linear<T>{columns.data(), nullptr, map.outputs, map.inputs}(grad_y, grad_x, tokens, options);
}

/// Accumulates the gradients of y = x * weightᵀ + bias with respect to weight and bias. `bias` may be null.
///
/// 16-bit parameters have 32-bit gradients: a 16-bit sum over many calls would stop growing once each term is less than
/// half a rounding step of the sum (in bfloat16, 1/256 of the sum).
template <class T>
struct LinearGradients {
  using Number = computed_t<T>;
  Number* weight;
  Number* bias;
  Index inputs;
  Index outputs;

  /// Adds grad_yᵀ * x to weight and the sum of the rows of grad_y to bias, for all tokens: x (tokens, inputs) and
  /// grad_y (tokens, outputs). A token whose grad_y is 0 adds nothing, even if its x is not finite: masks may have
  /// dropped it. If `memory` has the size bytes(), nothing is allocated, and the call either adds everything or fails
  /// before it adds anything. If `memory` is empty, the call allocates.
  void add(const T* x, const T* grad_y, Index tokens, const Options& options, std::span<std::byte> memory = {}) const {
    const ChosenKernels<Number> kernels = kernels_for(options);
    for (Index first = 0; first < tokens; first += kMost) {
      const Tokens some{x + first * inputs, grad_y + first * outputs, std::min(kMost, tokens - first)};
      if (kernels.on_matrix_unit())
        add_on_matrix_unit(some, options, memory);
      else
        add_by_rows(some, kernels, options, memory);
    }
  }
  /// Returns the size in bytes of the memory that add() uses.
  Index bytes(Index tokens, const Options& options) const {
    if (tokens == 0) return 0;
    const Index most = std::min(kMost, tokens);
    const ChosenKernels<Number> kernels = kernels_for(options);
    if (kernels.on_matrix_unit()) return ColumnMemory::bytes(*this, most, options);
    const Index row = row_of(kernels);
    return Workspace::needed(worker_bytes(row), workers_of_rows(most, options).count(), panel_bytes(row, most));
  }

 private:
  struct Tokens {
    const T* x;
    const T* grad_y;
    Index count;
  };

  static constexpr DType kDType = dtype_of<T>;
  /// Tokens at a time, so that the memory does not grow with their number and long sums are rounded less.
  static constexpr Index kMost = 2048;
  static constexpr Index kOutputs = 32, kFewestOutputs = 8;  ///< outputs whose sums one task computes
  /// Tokens over which sums stay in registers. With 768 tokens and 128 -> 512 features, sums over 128 tokens are 2 to
  /// 15 % slower, because they are stored and loaded more often, and sums over 512 tokens are 10 % slower, because
  /// their data no longer fit in the L1 cache.
  static constexpr Index kTogether = 256;
  static constexpr Index kPacked = 32;  ///< tokens that one task packs
  static_assert(kTogether % kPacked == 0 && kPacked <= kOutputs);

  static ChosenKernels<Number> kernels_for(const Options& options) {
    const Compute compute = kDType == DType::bf16 ? Compute::bf16 : options.compute;
    return choose_kernels<Number, kDType != DType::native>(options, bf16_products(compute, {DType::native}));
  }
  Workers workers_of_rows(Index tokens, const Options& options) const {
    const double products = static_cast<double>(inputs) * static_cast<double>(outputs);
    return {{2 * static_cast<double>(tokens) * products}, options.executor};
  }
  Index row_of(const ChosenKernels<Number>& kernels) const {
    return padded(inputs, backward_kernels<Number>(kernels.vectors).columns);
  }
  static Index panel_bytes(Index row, Index tokens) {
    return padded(row * tokens * static_cast<Index>(sizeof(Number)), kAlignment);
  }

  bool is_zero(const T* grad) const {
    return std::all_of(grad, grad + outputs, [](T g) { return static_cast<Number>(g) == 0; });
  }

  static RowsToRead readable(const T* first, Index stride, Index column) {
    return {reinterpret_cast<const std::byte*>(first), kDType, stride, column};
  }

  /// Vectorises over the inputs. Only grad_y is transposed, in a task's own memory.
  void add_by_rows(const Tokens& tokens, const ChosenKernels<Number>& chosen, const Options& options,
                   std::span<std::byte> memory) const {
    const KernelFamily<Number>& family = chosen.full_precision;
    const BackwardKernelSet<Number> kernels = backward_kernels<Number>(chosen.vectors);
    const Workers workers = workers_of_rows(tokens.count, options);
    const Index row = row_of(chosen), parts = ceil_div(tokens.count, kTogether);
    const auto part = [&](Index i) { return Range{i * kTogether, std::min((i + 1) * kTogether, tokens.count)}; };
    const Workspace workspace(worker_bytes(row), workers.count(), memory, panel_bytes(row, tokens.count));
    Number* const panels = reinterpret_cast<Number*>(workspace.shared());
    const auto memory_of = [&](int worker) { return reinterpret_cast<Number*>(workspace.of(worker)); };

    // Each task packs a few tokens, most likely those that the same worker computed in the previous call.
    const Index packs = ceil_div(tokens.count, kPacked),
                panels_of_row = std::max<Index>(ceil_div(inputs, kernels.panel), 1),
                cuts = std::clamp<Index>(workers.count() / packs, 1, panels_of_row);
    const Work packing{kFlopsToMove * static_cast<double>(tokens.count) * static_cast<double>(inputs)};
    workers.run(packs * cuts, packing.microseconds(), [&](Index task, int worker) {
      const Index begin = task / cuts * kPacked, cut = task % cuts;
      const Range packed{begin, std::min(begin + kPacked, tokens.count)},
          some = part(begin / kTogether),
          columns{panels_of_row * cut / cuts * kernels.panel,
                  std::min(panels_of_row * (cut + 1) / cuts * kernels.panel, inputs)};
      const Rows<Number> rows = adding_rows(tokens, packed, columns, family, memory_of(worker));
      for (Index c = columns.begin; c < columns.end; c += kernels.panel) {
        const Index width = std::min(kernels.panel, columns.end - c);
        kernels.pack_panels(
            {rows.data + (c - columns.begin), rows.stride}, packed.size(), width, Number(1),
            panels + some.begin * row + c * some.size() + (begin - some.begin) * padded(width, kernels.columns));
      }
    });

    // Each task reads its inputs and outputs for all tokens; square blocks read least.
    constexpr Index kTasksPerWorker = 2;
    const Index blocks = ceil_div(inputs, kKeyTile),
                wanted = workers.count() == 1 ? 1 : kTasksPerWorker * workers.count();
    const double inputs_per_output = static_cast<double>(inputs) / static_cast<double>(std::max<Index>(outputs, 1));
    const auto even = static_cast<Index>(std::sqrt(static_cast<double>(wanted) * inputs_per_output));
    const Index column_tasks = std::clamp<Index>(std::min(even, wanted), 1, std::max<Index>(blocks, 1)),
                row_tasks = std::max<Index>({ceil_div(outputs, kOutputs),
                                             std::min(wanted / column_tasks, ceil_div(outputs, kFewestOutputs)), 1});
    workers.run(row_tasks * column_tasks, [&](Index task, int worker) {
      const Index row_task = task / column_tasks, column_task = task % column_tasks;
      const Range rows{outputs * row_task / row_tasks, outputs * (row_task + 1) / row_tasks},
          columns{blocks * column_task / column_tasks * kKeyTile,
                  std::min(blocks * (column_task + 1) / column_tasks * kKeyTile, inputs)};
      const Index width = padded(columns.size(), kernels.columns);
      const bool of_bias_too = bias && column_task == 0;
      Number *const grads = memory_of(worker), *const of_bias = grads + kOutputs * kTogether,
                    *const ones = of_bias + 2 * kOutputs, *const sums = ones + kTogether;
      std::fill_n(of_bias, kOutputs, Number(0));
      std::fill_n(ones, kTogether, Number(1));
      std::fill_n(sums, rows.size() * width, Number(0));
      for (Index i = 0; i < parts; ++i) {
        const Range some = part(i);
        family.pack_rows(readable(tokens.grad_y + some.begin * outputs + rows.begin, 1, outputs), rows.size(),
                         some.size(), grads);
        kernels.add_rows(grads, some.size(), rows.size(), panels + some.begin * row + columns.begin * some.size(),
                         some.size(), width, sums);
        if (!of_bias_too) continue;
        Number* const of_part = of_bias + kOutputs;
        kernels.dot_rows({grads, some.size()}, {ones, 0}, rows.size(), some.size(), of_part);
        for (Index o = 0; o < rows.size(); ++o) of_bias[o] += of_part[o];
      }
      for (Index o = 0; o < rows.size(); ++o) {
        Number* const to = weight + (rows.begin + o) * inputs + columns.begin;
        const Index whole = columns.size() / kernels.columns * kernels.columns;
        kernels.add(to, sums + o * width, whole);
        for (Index f = whole; f < columns.size(); ++f) to[f] += sums[o * width + f];
        if (of_bias_too) bias[rows.begin + o] += of_bias[o];
      }
    });
  }

  /// Returns some columns of x, with zeros in place of tokens whose grad_y is 0. The result is x itself if there are no
  /// such tokens and x needs no conversion; otherwise, it is `copy`.
  Rows<Number> adding_rows(const Tokens& tokens, Range some, Range columns, const KernelFamily<Number>& family,
                           Number* copy) const {
    const T* const x = tokens.x + some.begin * inputs + columns.begin;
    const auto adds_nothing = [&](Index i) { return is_zero(tokens.grad_y + (some.begin + i) * outputs); };
    if constexpr (std::is_same_v<T, Number>) {
      Index adding = 0;
      while (adding < some.size() && !adds_nothing(adding)) ++adding;
      if (adding == some.size()) return {x, inputs};
    }
    family.pack_rows(readable(x, inputs, 1), some.size(), columns.size(), copy);
    for (Index i = 0; i < some.size(); ++i)
      if (adds_nothing(i)) std::fill_n(copy + i * columns.size(), columns.size(), Number(0));
    return {copy, columns.size()};
  }

  /// Returns the size in bytes of the memory that a task of either kind needs, in whole cache lines.
  static Index worker_bytes(Index row) {
    constexpr Index kRows = kOutputs * kTogether + 2 * kOutputs + kTogether;
    const Index numbers = padded(kRows + kOutputs * row, kAlignment);
    return numbers * static_cast<Index>(sizeof(Number));
  }

  /// Memory of add_on_matrix_unit(): both factors transposed, the sums of some tokens, and the rest for the product.
  struct ColumnMemory {
    static constexpr Index kMost = 512;  ///< tokens at a time

    Tensor<std::byte, 1> own;
    Number *x_columns, *grad_columns, *sums;
    std::span<std::byte> rest;

    ColumnMemory(const LinearGradients& of, Index tokens, const Options& options, std::span<std::byte> memory) {
      const Index most = std::min(kMost, tokens), columns = of.columns(), need = bytes(of, tokens, options);
      if (memory.data() == nullptr) {
        own = Tensor<std::byte, 1>::uninitialized({need});
        memory = {own.data(), static_cast<std::size_t>(need)};
      }
      rest = checked_workspace(memory, need);
      const auto take = [&](Index numbers) {
        std::byte* const first = rest.data();
        rest = rest.subspan(static_cast<std::size_t>(bytes_of(numbers)));
        return reinterpret_cast<Number*>(first);
      };
      x_columns = take(columns * most);
      grad_columns = take(of.outputs * most);
      sums = take(of.outputs * columns);
    }
    static Index bytes(const LinearGradients& of, Index tokens, const Options& options) {
      const Index most = std::min(kMost, tokens), columns = of.columns();
      return bytes_of(columns * most) + bytes_of(of.outputs * most) + bytes_of(of.outputs * columns) +
             Linear<Number>{nullptr, nullptr, most, columns}.bytes(of.outputs, on_matrix_unit(options)) + kAlignment -
             1;
    }
    static Index bytes_of(Index numbers) { return padded(numbers * static_cast<Index>(sizeof(Number)), kAlignment); }
  };
  Index columns() const { return inputs + (bias ? 1 : 0); }
  static Options on_matrix_unit(Options options) {
    if constexpr (kDType == DType::bf16) options.compute = Compute::bf16;  // exact, as the elements are bfloat16
    return options;
  }

  /// The score kernels expect both factors transposed. 512 tokens at a time take 1024 flops per element of the sums, so
  /// that adding the element to the gradient costs little in comparison.
  void add_on_matrix_unit(const Tokens& tokens, const Options& given, std::span<std::byte> memory) const {
    const Options options = on_matrix_unit(given);
    const ColumnMemory m(*this, tokens.count, options, memory);
    for (Index first = 0; first < tokens.count; first += ColumnMemory::kMost) {
      const Index count = std::min(ColumnMemory::kMost, tokens.count - first);
      const T* const grad_y = tokens.grad_y + first * outputs;
      transpose_into(m.x_columns, tokens.x + first * inputs, count, inputs, options);
      transpose_into(m.grad_columns, grad_y, count, outputs, options);
      // The bias is the weight of an input that is always 1.
      if (bias) std::fill_n(m.x_columns + inputs * count, count, Number(1));
      for (Index i = 0; i < count; ++i)
        if (is_zero(grad_y + i * outputs))
          for (Index f = 0; f < inputs; ++f) m.x_columns[f * count + i] = 0;
      Linear<Number>{m.x_columns, nullptr, count, columns()}(m.grad_columns, m.sums, outputs, options, m.rest);
      add_up(m.sums, options);
    }
  }

  void add_up(const Number* sums, const Options& options) const {
    constexpr Index kRows = 16;  // per task
    Workers({kFlopsToMove * static_cast<double>(outputs) * static_cast<double>(columns())}, options.executor)
        .run(ceil_div(outputs, kRows), [&](Index task, int) {
          for (Index o = task * kRows; o < std::min(outputs, (task + 1) * kRows); ++o) {
            const Number* const of_row = sums + o * columns();
            for (Index f = 0; f < inputs; ++f) weight[o * inputs + f] += of_row[f];
            if (bias) bias[o] += of_row[inputs];
          }
        });
  }
};

}  // namespace attn::detail::inline ATTN_BUILT_FOR
