// Attention tile by tile with an online softmax (Milakov & Gimelshein 2018; Dao et al. 2022, algorithm 1).
#pragma once

#include "attn/detail/base/linker_hint.h"
#include "attn/detail/flash/passes_of_call.h"
#include "attn/detail/flash/plan.h"

namespace attn::detail {
inline namespace ATTN_BUILT_FOR {

// These are compiled once for each scalar, whatever the types of the mods.

/// Runs passes that do not wait for each other.
template <class T, class = include_attn_instantiate_h_in_one_unit>
void run_passes(std::span<const Pass<T>> passes, const Options& options, std::span<std::byte> workspace) {
  Plan<T>(passes, options).run(workspace);
}

/// The bytes that run_passes() needs of a workspace.
template <class T, class = include_attn_instantiate_h_in_one_unit>
Index bytes_of_passes(std::span<const Pass<T>> passes, const Options& options) {
  return Plan<T>(passes, options).workspace_bytes();
}

/// Adds what run_passes() does to an explanation that may hold other passes already.
template <class T, class = include_attn_instantiate_h_in_one_unit>
void explain_passes(std::span<const Pass<T>> passes, const Options& options, Explanation& e) {
  const Plan<T> plan(passes, options);
  plan.explain(e);
  e.workspace_bytes = std::max(e.workspace_bytes, plan.workspace_bytes());
  e.ignored_isa = ignored_isa(options);
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

/// The bytes of PassResults in a workspace, with those that its alignment may take.
template <class T, class Mods>
Index bytes_between_passes([[maybe_unused]] const CallTensors<T>& tensors, [[maybe_unused]] const Mods& mods) {
  if constexpr (has_near_part<Mods>())
    if (passes_resume(mods, tensors.problem)) return PassResults<T>(tensors).bytes() + kAlignment - 1;
  return 0;
}

/// The bytes of workspace that flash() needs.
template <class T, class Mods>
Index flash_workspace_bytes(const CallTensors<T>& tensors, const Mods& mods, const Options& options) {
  Index most = 0;
  for_each_pass(tensors, mods, options.accumulate, [&](const Pass<T>& pass) {
    most = std::max(most, bytes_of_passes<T>({&pass, 1}, options));
  });
  return most + bytes_between_passes(tensors, mods);
}

/// What flash() would do.
template <class T, class Mods>
Explanation flash_explanation(const CallTensors<T>& tensors, const Mods& mods, const Options& options) {
  Explanation e;
  e.ignored_isa = ignored_isa(options);
  for_each_pass(tensors, mods, options.accumulate, [&](const Pass<T>& pass) {
    explain_passes<T>({&pass, 1}, options, e);
  });
  e.workspace_bytes += bytes_between_passes(tensors, mods);
  return e;
}

/// The flash path: each pass of the call becomes a Plan of tasks, and in these queries meet tiles of keys.
template <class T, class Mods>
void flash(const CallTensors<T>& tensors, const Mods& mods, const Options& options) {
  const auto run = [&](const CallTensors<T>& of_passes, std::span<std::byte> workspace) {
    for_each_pass(of_passes, mods, options.accumulate, [&](const Pass<T>& pass) {
      run_passes<T>({&pass, 1}, options, workspace);
    });
  };
  if constexpr (has_near_part<Mods>()) {
    if (passes_resume(mods, tensors.problem)) {
      std::span<std::byte> workspace = options.workspace;
      PassResults<T> results(tensors);
      const CallTensors<T> of_passes =
          results.begin(workspace, workspace.data() ? flash_workspace_bytes(tensors, mods, options) : 0);
      const KernelFamily<T>& family = tensors.choose_kernels(tensors, options).full_precision;
      if (options.accumulate) results.load(family);
      run(of_passes, workspace);
      return results.end(family);
    }
  }
  run(tensors, options.workspace);
}

}  // namespace ATTN_BUILT_FOR
}  // namespace attn::detail
