// The gradients of a layer's linear map.
#pragma once

#include "attn/detail/layers/linear.h"

namespace attn::detail {
inline namespace ATTN_BUILT_FOR {

/// The flops that a core does in the half nanosecond that it takes to bring a number in and to store it elsewhere.
constexpr double kFlopsToMove = 50;

/// to = fromᵀ: `from` (rows, columns) and `to` (columns, rows) are row-major without gaps. They hold a number that is
/// computed in the same type.
template <class From, class To>
void transpose_into(To* to, const From* from, Index rows, Index columns, const Options& options) {
  using T = computed_t<From>;
  constexpr int kSide = 32;  // of a block: 16 kB of long double, which any thread's stack has
  const KernelFamily<T>& family = choose_kernels<T>(options, false).full_precision;
  const Executor executor =
      executor_for(kFlopsToMove * static_cast<double>(rows) * static_cast<double>(columns), options.executor);
  executor.run(ceil_div(columns, kSide), [&](Index task, int) {
    alignas(kAlignment) Array<T, kSide * kSide> block;
    const Index column = task * kSide, width = std::min<Index>(kSide, columns - column);
    for (Index row = 0; row < rows; row += kSide) {
      const Index height = std::min<Index>(kSide, rows - row);
      const RowsToRead turned{reinterpret_cast<const std::byte*>(from + row * columns + column), dtype_of<From>, 1,
                              columns};
      family.pack_rows(turned, width, height, block);
      family.unpack_rows(block, width, height,
                         {reinterpret_cast<std::byte*>(to + column * rows + row), dtype_of<To>, rows, 1});
    }
  });
}

/// The gradient with respect to x of y = x * weightᵀ + bias: grad_x = grad_y * weight, for all tokens. Row-major
/// without gaps, as in Linear.
template <class T>
void input_gradient(const Linear<T>& map, const T* grad_y, T* grad_x, Index tokens, const Options& options) {
  if (tokens == 0) return;
  auto columns = Tensor<T, 2>::uninitialized({map.inputs, map.outputs});
  transpose_into(columns.data(), map.weight, map.outputs, map.inputs, options);
  Linear<T>{columns.data(), nullptr, map.outputs, map.inputs}(grad_y, grad_x, tokens, options);
}

/// Where the gradients with respect to weight and bias of y = x * weightᵀ + bias are added up. Null bias: none.
///
/// Numbers of 16 bits have gradients of 32: sums over many calls would stop growing where a term is less than half a
/// rounding of the sum, 1/256 of it in bfloat16.
template <class T>
struct LinearGradients {
  using Number = computed_t<T>;
  Number* weight;
  Number* bias;
  Index inputs;
  Index outputs;

  /// weight += grad_yᵀ * x, bias += sum of the rows of grad_y, of all tokens: x (tokens, inputs) and grad_y (tokens,
  /// outputs). A token whose grad_y is 0 adds nothing, even if its x is not finite: it may be one that masks drop.
  void add(const T* x, const T* grad_y, Index tokens, const Options& options) const {
    if (tokens == 0) return;
    // Each product is over some tokens, in memory that does not grow with all, and long sums round less so. Forming it
    // is 1024 flops for each number that is added up.
    constexpr Index kTokens = 512;
    const Index most = std::min(kTokens, tokens), columns = inputs + (bias ? 1 : 0);
    auto x_columns = Tensor<Number, 2>::uninitialized({columns, most});
    auto grad_columns = Tensor<Number, 2>::uninitialized({outputs, most});
    auto sums = Tensor<Number, 2>::uninitialized({outputs, columns});
    Options of_product = options;
    if (dtype_of<T> == DType::bf16) of_product.compute = Compute::bf16;  // rounds nothing
    for (Index first = 0; first < tokens; first += kTokens) {
      const Index count = std::min(kTokens, tokens - first);
      transpose_into(x_columns.data(), x + first * inputs, count, inputs, options);
      transpose_into(grad_columns.data(), grad_y + first * outputs, count, outputs, options);
      // The bias is the weight of an input that is always 1.
      if (bias) std::fill_n(x_columns.data() + inputs * count, count, Number(1));
      for (Index i = 0; i < count; ++i)
        if (is_zero(grad_y + (first + i) * outputs))
          for (Index f = 0; f < inputs; ++f) x_columns.data()[f * count + i] = 0;
      Linear<Number>{x_columns.data(), nullptr, count, columns}(grad_columns.data(), sums.data(), outputs, of_product);
      add_up(sums, columns, options);
    }
  }

 private:
  bool is_zero(const T* row) const {
    return std::all_of(row, row + outputs, [](T g) { return static_cast<Number>(g) == 0; });
  }

  void add_up(const Tensor<Number, 2>& sums, Index columns, const Options& options) const {
    constexpr Index kRows = 16;  // a task
    executor_for(kFlopsToMove * static_cast<double>(sums.size()), options.executor)
        .run(ceil_div(outputs, kRows), [&](Index task, int) {
          for (Index o = task * kRows; o < std::min(outputs, (task + 1) * kRows); ++o) {
            const Number* const of_row = sums.data() + o * columns;
            for (Index f = 0; f < inputs; ++f) weight[o * inputs + f] += of_row[f];
            if (bias) bias[o] += of_row[inputs];
          }
        });
  }
};

}  // namespace ATTN_BUILT_FOR
}  // namespace attn::detail
