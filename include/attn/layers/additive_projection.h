// The linear maps of queries and keys before an additive score, forward and backward.
#pragma once

#include <vector>

#include "attn/core/mods/learned_mods.h"
#include "attn/layers/additive_parameters.h"
#include "attn/layers/linear.h"

namespace attn::detail::inline ATTN_BUILT_FOR {

/// Calls visit(batch, head, options) for each head. If there are enough heads for all workers, they run in parallel;
/// otherwise they run one after the other, each with all workers.
template <class Visit>
void for_each_head(Index batch, Index heads, const Work& work, const Options& options, const Visit& visit) {
  const Workers workers(work, options.executor);
  if (batch * heads < workers.count()) {
    for (Index i = 0; i < batch * heads; ++i) visit(i / heads, i % heads, options);
    return;
  }
  Options own = options;
  own.executor = serial();
  workers.run(batch * heads, [&](Index task, int) { visit(task / heads, task % heads, own); });
}

/// Computes `to` (batch, heads, len, hidden) = x * weightᵀ + bias, or x + bias if there is no weight.
template <class T>
void project(const DTypeView<const T>& x, const HeadParameter<T>& weight, const HeadParameter<T>& bias,
             const TensorView<T, 4>& to, const Options& options) {
  const Index len = to.dim(2), hidden = to.dim(3);
  if (to.size() == 0) return;
  const KernelFamily<T>& family = kernel_family<T>(vectors_of(isa_of(options)));
  const Work work{2 * static_cast<double>(to.size()) * static_cast<double>(x.dim(3))};
  for_each_head(to.dim(0), to.dim(1), work, options, [&](Index b, Index h, const Options& own) {
    T* const rows = &to(b, h, 0, 0);
    const T* const added = bias.is_given() ? bias.of(h) : nullptr;
    if (weight.is_given()) return Linear<T>{weight.of(h), added, x.dim(3), hidden}(x.rows(b, h), rows, len, own);
    family.pack_rows(x.rows(b, h), len, hidden, rows);
    for (Index i = 0; added && i < len; ++i)
      for (Index f = 0; f < hidden; ++f) rows[i * hidden + f] += added[f];
  });
}

/// Adds the rows of a tensor (batch, heads, len, hidden), times a factor, to a parameter (hidden), which is separate
/// for each head or shared by all.
template <class T>
void add_up_rows(const Tensor<T, 4>& rows, T factor, HeadParameter<T>& to) {
  const Index hidden = rows.dim(3), heads = rows.dim(1);
  std::vector<GradientSum<T>> sums(static_cast<std::size_t>(hidden * to.heads()), 0);
  for (Index b = 0; b < rows.dim(0); ++b)
    for (Index h = 0; h < heads; ++h) {
      GradientSum<T>* const of_head = sums.data() + (to.heads() == 1 ? 0 : h * hidden);
      for (Index i = 0; i < rows.dim(2); ++i)
        for (Index f = 0; f < hidden; ++f) of_head[f] += static_cast<GradientSum<T>>(rows(b, h, i, f));
    }
  for (std::size_t i = 0; i < sums.size(); ++i) to.of(0)[i] += factor * static_cast<T>(sums[i]);
}

/// Backward pass of project(). Computes the gradient of x from `grad` (batch, heads, len, hidden), and adds to the
/// gradient of the weight. A token whose gradient is 0 adds nothing, even if its x is not finite.
template <class T>
void project_back(const Tensor<T, 4>& grad, const DTypeView<const T>& x, const HeadParameter<T>& weight,
                  HeadParameter<T>& weight_sum, const DTypeView<T>& grad_x, const Options& options) {
  const Index batch = grad.dim(0), heads = grad.dim(1), len = grad.dim(2), hidden = grad.dim(3), dim = x.dim(3);
  if (grad.size() == 0) return;
  const KernelFamily<T>& family = kernel_family<T>(vectors_of(isa_of(options)));
  Tensor<T, 2> rows = Tensor<T, 2>::uninitialized({len, dim});
  for (Index b = 0; b < batch; ++b)
    for (Index h = 0; h < heads; ++h) {
      const T* const of_head = &grad(b, h, 0, 0);
      if (!weight.is_given()) {
        family.unpack_rows(of_head, len, hidden, grad_x.rows(b, h));
        continue;
      }
      family.pack_rows(x.rows(b, h), len, dim, rows.data());
      LinearGradients<T>{weight_sum.of(h), nullptr, dim, hidden}.add(rows.data(), of_head, len, options);
      input_gradient(Linear<T>{weight.of(h), nullptr, dim, hidden}, of_head, rows.data(), len, options);
      family.unpack_rows(rows.data(), len, dim, grad_x.rows(b, h));
    }
}

}  // namespace attn::detail::inline ATTN_BUILT_FOR
