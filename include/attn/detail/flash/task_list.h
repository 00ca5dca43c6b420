// The tasks of some passes, and how the workers of an executor carry them out.
#pragma once

#include <algorithm>
#include <span>

#include "attn/detail/flash/flash_pass.h"

namespace attn::detail {
inline namespace ATTN_BUILT_FOR {

/// A pass cut into tasks for a number of workers, with the numbers of its first task and its first merge in the list of
/// all passes.
template <class T>
struct ScheduledPass {
  ScheduledPass(const FlashPass<T>& p, Index workers) : pass(&p), partition(p.partition(workers)) {}

  const FlashPass<T>* pass;
  typename FlashPass<T>::Partition partition;
  Index first_task = 0, first_merge = 0, partials = 0;
};

/// Memory on the stack for calls that need little: 16 queries and 16 keys of 64 column-major floats take 22 KiB. The
/// heap takes as long as the checks of such a call.
struct SmallMemory {
  static constexpr Index kBytes = 32 * 1024;
  SmallMemory() {}  // NOLINT: nothing is written yet
  alignas(kAlignment) std::byte bytes[kBytes];
};

/// Passes that do not wait for each other.
template <class T>
class TaskList {
 public:
  explicit TaskList(std::span<ScheduledPass<T>> passes) : passes_(passes) {
    for (ScheduledPass<T>& scheduled : passes_) {
      scheduled.first_task = tasks_;
      scheduled.first_merge = merges_;
      scheduled.partials = partials_;
      tasks_ += scheduled.partition.tasks;
      merges_ += scheduled.partition.merges();
      partials_ += scheduled.partition.partials;
      bytes_ = std::max(bytes_, scheduled.partition.bytes);
    }
  }

  Index tasks() const { return tasks_; }
  Index workspace_bytes(int workers) const { return tasks_ == 0 ? 0 : Workspace::needed(bytes_, workers, partials_); }

  void run(const Executor& executor, std::span<std::byte> given) const {
    if (tasks_ == 0) return;
    const int workers = executor.concurrency();
    SmallMemory own;
    if (given.data() == nullptr && Workspace::needed(bytes_, workers, partials_) <= own.kBytes) given = own.bytes;
    const Workspace workspace(bytes_, workers, given, partials_);
    const auto partials = [&](const ScheduledPass<T>& scheduled) { return workspace.shared() + scheduled.partials; };
    executor.run(tasks_, [&](Index task, int worker) {
      const ScheduledPass<T>& scheduled = of(task, &ScheduledPass<T>::first_task);
      scheduled.pass->run(scheduled.partition, task - scheduled.first_task, workers, workspace.of(worker),
                          partials(scheduled));
    });
    if (merges_ == 0) return;
    executor.run(merges_, [&](Index merge, int) {
      const ScheduledPass<T>& scheduled = of(merge, &ScheduledPass<T>::first_merge);
      scheduled.pass->merge(scheduled.partition, merge - scheduled.first_merge, partials(scheduled));
    });
  }

 private:
  /// The pass that a task or a merge belongs to: the last one that begins at or before `number`. A pass without any has
  /// the same first number as the next one.
  const ScheduledPass<T>& of(Index number, Index ScheduledPass<T>::*first) const {
    const auto begins_behind = [&](Index n, const ScheduledPass<T>& scheduled) { return n < scheduled.*first; };
    return *std::prev(std::upper_bound(passes_.begin(), passes_.end(), number, begins_behind));
  }

  std::span<ScheduledPass<T>> passes_;
  Index tasks_ = 0, merges_ = 0, partials_ = 0, bytes_ = 0;
};

}  // namespace ATTN_BUILT_FOR
}  // namespace attn::detail
