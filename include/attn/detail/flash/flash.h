// Attention tile by tile with an online softmax (Milakov & Gimelshein 2018; Dao et al. 2022, algorithm 1).
#pragma once

#include "attn/detail/base/linker_hint.h"
#include "attn/detail/flash/pass_sequence.h"
#include "attn/detail/flash/task_list.h"

namespace attn::detail {
inline namespace ATTN_BUILT_FOR {

/// The kernels of a call.
template <class T>
ChosenKernels<T> kernels_for(const CallTensors<T>& tensors, const Options& options) {
  if (tensors.score)
    return {tensors.score->family, tensors.score->family, vectors_of(isa_of(options)), Amx::not_for_these};
  if (tensors.problem.sigmoid_bias) {
    const VectorSet vectors = vectors_of(isa_of(options));
    const KernelFamily<T>& family = tensors.kernels->sigmoids(vectors);
    return {family, family, vectors, Amx::not_for_these};
  }
  const Problem& problem = tensors.problem;
  ChosenKernels<T> kernels = tensors.kernels->choose(
      options, bf16_products(problem, options, {tensors.q.dtype(), tensors.k.dtype(), tensors.v.dtype()}));
  const IsaParts parts = parts_of(isa_of(options));
  // The processor is asked once more, because software in place of the matrix unit has no dot products.
  if (tensors.choose_dots && parts.dots != DotProducts::none && cpu_has_vnni(parts.vectors))
    kernels.dots = tensors.choose_dots(parts.vectors);
  return kernels;
}

/// Calls use(task list, executor, scheduled pass) for each pass of a call.
template <class T, class Use>
void for_each_pass(const CallTensors<T>& tensors, const PassSequence<T>& passes, const Options& options,
                   const Use& use) {
  const ChosenKernels<T> kernels = kernels_for(tensors, options);
  const auto pass = [&](const CallTensors<T>& t, const TileMods<T>* mods, bool resumes) {
    const FlashPass<T> call(t, mods, kernels, resumes, tensors.kv_bytes());
    const Executor& executor = executor_for(call.flops(), options.executor);
    ScheduledPass<T> scheduled(call, executor.concurrency());
    use(TaskList<T>({&scheduled, 1}), executor, scheduled);
  };
  passes.for_each(tensors, options.accumulate, std::cref(pass));  // a reference: a copy would be allocated
}

template <class T>
void explain_tasks(const TaskList<T>& run, const Executor& executor, Explanation& e) {
  e.tasks += run.tasks();
  e.threads = std::max(e.threads, static_cast<int>(std::min<Index>(executor.concurrency(), run.tasks())));
}

/// Where passes that resume leave their results for each other: the log-sum-exps and what rounding takes from them, and
/// the output, where the caller's has 16 bits and each pass would round it. The memory is a part of the workspace, or
/// allocated.
template <class T>
class PassResults {
 public:
  explicit PassResults(const CallTensors<T>& t) : tensors_(t) {}

  /// The bytes that they take of a workspace, whole cache lines. workspace_bytes() has no output to look at, so this
  /// asks the query instead: an output of 16 bits beside a query of more is allocated.
  Index bytes() const { return 2 * lse_bytes() + (is_narrow(tensors_.q) ? out_bytes() : 0); }

  /// The tensors that the passes work on. Takes bytes() off the front of `workspace`; the passes have the rest.
  CallTensors<T> begin(std::span<std::byte>& workspace, Index workspace_bytes) {
    CallTensors<T> passes = tensors_;
    if (workspace.data() != nullptr) {
      workspace = checked_workspace(workspace, workspace_bytes);
      room_ = workspace.first(static_cast<std::size_t>(bytes()));
      workspace = workspace.subspan(room_.size());
    }
    const Problem& p = tensors_.problem;
    passes.lse = lse_ = {take(own_lse_, lse_bytes()), {p.batch, p.heads, p.q_len}};
    passes.lse_rests = rests_ = {lse_.data(), take(own_rests_, lse_bytes())};
    if (is_narrow(tensors_.out))
      passes.out = TensorView<T, 4>(take(own_out_, out_bytes()), {p.batch, p.heads, p.q_len, p.v_dim});
    out_ = passes.out;
    return passes;
  }

  /// Loads the result that a call which accumulates goes on from.
  void load(const KernelFamily<T>& family) const {
    each_lse([&](T& theirs, T& own) {
      own = theirs;
      rests_.set(&own, tensors_.lse_rests.of(&theirs));
    });
    each_head(
        [&](const RowsToWrite& theirs, T* own, Index rows, Index dim) { family.pack_rows(theirs, rows, dim, own); });
  }

  /// Stores the log-sum-exps of the last pass in the caller's memory, and rounds the output into it.
  void end(const KernelFamily<T>& family) const {
    each_lse([&](T& theirs, const T& own) {
      theirs = own;
      tensors_.lse_rests.set(&theirs, rests_.of(&own));
    });
    each_head([&](const RowsToWrite& theirs, const T* own, Index rows, Index dim) {
      family.unpack_rows(own, rows, dim, theirs);
    });
  }

 private:
  template <class Visit>
  void each_lse(const Visit& visit) const {
    if (!tensors_.lse.data()) return;
    const Problem& p = tensors_.problem;
    for (Index b = 0; b < p.batch; ++b)
      for (Index h = 0; h < p.heads; ++h)
        for (Index i = 0; i < p.q_len; ++i) visit(tensors_.lse(b, h, i), lse_(b, h, i));
  }
  /// Calls visit(rows of the caller's output, the same rows in the passes' own memory, their number and length).
  template <class Visit>
  void each_head(const Visit& visit) const {
    if (!is_narrow(tensors_.out)) return;
    const Problem& p = tensors_.problem;
    for (Index b = 0; b < p.batch; ++b)
      for (Index h = 0; h < p.heads; ++h)
        visit(tensors_.out.rows(b, h), reinterpret_cast<T*>(out_.rows(b, h).data), p.q_len, p.v_dim);
  }
  template <class View>
  static bool is_narrow(const View& view) {
    return view.dtype() != DType::native;
  }
  Index lse_bytes() const { return bytes_of(tensors_.problem.q_len); }
  Index out_bytes() const { return bytes_of(tensors_.problem.q_len * tensors_.problem.v_dim); }
  Index bytes_of(Index numbers) const {
    return padded(tensors_.problem.batch * tensors_.problem.heads * numbers * static_cast<Index>(sizeof(T)),
                  kAlignment);
  }

  /// The next `bytes` of the workspace, or where it has none, `own`.
  T* take(Tensor<std::byte, 1>& own, Index bytes) {
    const auto size = static_cast<std::size_t>(bytes);
    if (room_.size() >= size && room_.data()) {
      T* const taken = reinterpret_cast<T*>(room_.data());
      room_ = room_.subspan(size);
      return taken;
    }
    own = Tensor<std::byte, 1>::uninitialized({bytes});
    return reinterpret_cast<T*>(own.data());
  }

  const CallTensors<T>& tensors_;
  std::span<std::byte> room_;
  Tensor<std::byte, 1> own_lse_, own_rests_, own_out_;
  TensorView<T, 3> lse_;
  KeptLseRests<T> rests_;
  DTypeView<T> out_;
};

template <class T, class = include_attn_instantiate_h_in_one_unit>
Index flash_workspace_bytes(const CallTensors<T>& tensors, const PassSequence<T>& passes, const Options& options) {
  Index most = 0;
  for_each_pass(tensors, passes, options, [&](const TaskList<T>& run, const Executor& executor, const auto&) {
    most = std::max(most, run.workspace_bytes(executor.concurrency()));
  });
  if (!passes.resume(tensors.problem)) return most;
  return PassResults<T>(tensors).bytes() + most + kAlignment - 1;
}

template <class T, class = include_attn_instantiate_h_in_one_unit>
Explanation flash_explanation(const CallTensors<T>& tensors, const PassSequence<T>& passes, const Options& options) {
  Explanation e;
  for_each_pass(tensors, passes, options,
                [&](const TaskList<T>& run, const Executor& executor, const ScheduledPass<T>& scheduled) {
                  scheduled.pass->explain(scheduled.partition, e);
                  explain_tasks(run, executor, e);
                });
  e.workspace_bytes = flash_workspace_bytes(tensors, passes, options);
  e.ignored_isa = ignored_isa(options);
  return e;
}

template <class T, class = include_attn_instantiate_h_in_one_unit>
void flash(const CallTensors<T>& tensors, const PassSequence<T>& passes, const Options& options) {
  const auto run = [&](const CallTensors<T>& of_passes, std::span<std::byte> workspace) {
    for_each_pass(of_passes, passes, options, [&](const TaskList<T>& tasks, const Executor& executor, const auto&) {
      tasks.run(executor, workspace);
    });
  };
  if (!passes.resume(tensors.problem)) return run(tensors, options.workspace);
  std::span<std::byte> workspace = options.workspace;
  PassResults<T> results(tensors);
  const CallTensors<T> of_passes =
      results.begin(workspace, workspace.data() ? flash_workspace_bytes(tensors, passes, options) : 0);
  const KernelFamily<T>& family = kernels_for(tensors, options).full_precision;
  if (options.accumulate) results.load(family);
  run(of_passes, workspace);
  results.end(family);
}

}  // namespace ATTN_BUILT_FOR
}  // namespace attn::detail
