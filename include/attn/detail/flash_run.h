// Layer 3: the tasks of some passes carried out by the workers of an executor.
#pragma once

#include <algorithm>
#include <span>

#include "attn/detail/flash_call.h"

namespace attn::detail {
inline namespace ATTN_BUILT_FOR {

/// A pass over some tensors, cut for the workers there are, and which numbers its tasks have among those of all.
template <class T>
struct ScheduledCall {
  ScheduledCall(const FlashCall<T>& c, Index workers) : call(&c), cut(c.cut(workers)) {}

  const FlashCall<T>* call;
  typename FlashCall<T>::Cut cut;
  Index first_task = 0, first_join = 0, left = 0;
};

/// Some passes that do not wait for each other.
template <class T>
class FlashRun {
 public:
  explicit FlashRun(std::span<ScheduledCall<T>> calls) : calls_(calls) {
    for (ScheduledCall<T>& call : calls_) {
      call.first_task = tasks_;
      call.first_join = joins_;
      call.left = left_;
      tasks_ += call.cut.tasks;
      joins_ += call.cut.joins();
      left_ += call.cut.left;
      bytes_ = std::max(bytes_, call.cut.bytes);
    }
  }

  Index tasks() const { return tasks_; }
  Index workspace_bytes(int workers) const { return tasks_ == 0 ? 0 : Workspace::needed(bytes_, workers, left_); }

  void run(const Executor& executor, std::span<std::byte> given) const {
    if (tasks_ == 0) return;
    const int workers = executor.concurrency();
    const Workspace workspace(bytes_, workers, given, left_);
    const auto left = [&](const ScheduledCall<T>& call) { return workspace.shared() + call.left; };
    executor.run(tasks_, [&](Index task, int worker) {
      const ScheduledCall<T>& call = of(task, &ScheduledCall<T>::first_task);
      call.call->run(call.cut, task - call.first_task, workers, workspace.of(worker), left(call));
    });
    if (joins_ == 0) return;
    executor.run(joins_, [&](Index join, int) {
      const ScheduledCall<T>& call = of(join, &ScheduledCall<T>::first_join);
      call.call->join(call.cut, join - call.first_join, left(call));
    });
  }

 private:
  /// The call that a task or a join is of: the last of those that begin there, as those before have none.
  const ScheduledCall<T>& of(Index number, Index ScheduledCall<T>::*first) const {
    const auto begins_behind = [&](Index n, const ScheduledCall<T>& call) { return n < call.*first; };
    return *std::prev(std::upper_bound(calls_.begin(), calls_.end(), number, begins_behind));
  }

  std::span<ScheduledCall<T>> calls_;
  Index tasks_ = 0, joins_ = 0, left_ = 0, bytes_ = 0;
};

}  // namespace ATTN_BUILT_FOR
}  // namespace attn::detail
