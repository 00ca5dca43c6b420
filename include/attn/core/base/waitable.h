// Atomic numbers that threads wait on.
#pragma once

#include <atomic>

#include "attn/types.h"

#if defined(ATTN_NO_THREADS)
namespace attn::detail {

/// Without other threads, a wait would never end, and no thread needs a notification.
template <class T>
class Waitable : public std::atomic<T> {
 public:
  using std::atomic<T>::atomic;
  using std::atomic<T>::operator=;

  void wait(T) {}
  void notify_one() {}
  void notify_all() {}
};

}  // namespace attn::detail
#elif defined(__GLIBCXX__) && !defined(_GLIBCXX_HAVE_PLATFORM_WAIT)
#include <condition_variable>
#include <mutex>

namespace attn::detail {

/// An atomic number whose wait() misses no notification. Where the system has no futex (Windows), libstdc++ (seen with
/// 12) compares the number before it takes its lock, so a notification in between is lost, and the thread sleeps
/// forever.
template <class T>
class Waitable : public std::atomic<T> {
 public:
  using std::atomic<T>::atomic;
  using std::atomic<T>::operator=;

  void wait(T old) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return this->load() != old; });
  }
  void notify_one() { notify_all(); }
  void notify_all() {
    // The thread that holds the lock may have compared the number but not begun to wait.
    mutex_.lock();
    mutex_.unlock();
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
};

}  // namespace attn::detail
#else
namespace attn::detail {

template <class T>
using Waitable = std::atomic<T>;

}  // namespace attn::detail
#endif
