// Locks, and atomic numbers that threads wait on. In programs without threads, locking, waiting and notifying do
// nothing.
#pragma once

#include <atomic>
#ifndef ATTN_NO_THREADS
#include <mutex>
#if defined(__GLIBCXX__) && !defined(_GLIBCXX_HAVE_PLATFORM_WAIT)
#include <condition_variable>
#endif
#endif

#include "attn/types.h"

namespace attn::detail {

#ifdef ATTN_NO_THREADS
struct Mutex {};
struct Lock {
  explicit Lock(Mutex&) {}
};

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
#else
using Mutex = std::mutex;
using Lock = std::lock_guard<std::mutex>;

#if defined(__GLIBCXX__) && !defined(_GLIBCXX_HAVE_PLATFORM_WAIT)
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
#else
template <class T>
using Waitable = std::atomic<T>;
#endif
#endif

}  // namespace attn::detail
