// Threads that wait for somebody to help.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

namespace attn::detail {

/// Work that threads can be asked to help with.
class Helped {
 public:
  /// Must not throw.
  virtual void help(int worker) = 0;

 protected:
  ~Helped() = default;

 private:
  friend class Helpers;

  // While it waits for helpers:
  Helped* next_ = nullptr;
  int begun_ = 0;
  int asked_ = 0;
};

/// Threads that help whoever asks, in the order of the requests. Eigen's pool does not serve here: when the operating
/// system gives it fewer threads than it wants, it writes to memory that was never allocated and waits for ever.
class Helpers {
 public:
  /// @throws std::bad_alloc, or std::system_error if the operating system has no more threads. None is left then.
  explicit Helpers(int threads) {
    threads_.reserve(static_cast<std::size_t>(threads));
    try {
      for (int i = 0; i < threads; ++i) threads_.emplace_back(&Helpers::run, static_cast<void*>(this));
    } catch (...) {
      stop();
      throw;
    }
  }
  Helpers(const Helpers&) = delete;
  ~Helpers() { stop(); }

  /// Has helped.help(1), …, help(count) called by threads as they become free; it must live until all have returned,
  /// and must not ask again before. Takes no memory.
  void ask(Helped& helped, int count) {
    int to_wake;
    bool all;
    {
      const std::lock_guard lock(mutex_);
      helped.next_ = nullptr;
      helped.begun_ = 0;
      helped.asked_ = count;
      (first_ == nullptr ? first_ : last_->next_) = &helped;
      last_ = &helped;
      wanted_ = true;
      to_wake = count - (looking_out_ ? 1 : 0);
      all = to_wake >= sleeping_;
    }
    if (all && to_wake > 1)
      wake_.notify_all();
    else
      for (int i = 0; i < to_wake; ++i) wake_.notify_one();
  }

 private:
  /// std::thread's symbols are visible even where attn's are hidden. No type of attn is in their names, or a shared
  /// library would export them.
  static void run(void* helpers) { static_cast<Helpers*>(helpers)->work(); }

  void work() {
    std::unique_lock lock(mutex_);
    for (;;) {
      while (!wanted_) wait(lock);
      if (first_ == nullptr) return;  // to be stopped, and nobody asks any more
      Helped& helped = *first_;
      const int worker = ++helped.begun_;
      if (worker == helped.asked_) first_ = helped.next_;
      wanted_ = first_ != nullptr || stopping_;
      lock.unlock();
      helped.help(worker);
      lock.lock();
    }
  }

  /// Waking a thread takes as long as a short call, and one call often follows another. So one idle thread spins for a
  /// while, and the others sleep.
  void wait(std::unique_lock<std::mutex>& lock) {
    if (!looking_out_) {
      looking_out_ = true;
      lock.unlock();
      constexpr std::chrono::microseconds kWhile(30);
      const auto end = std::chrono::steady_clock::now() + kWhile;
      while (!wanted_ && std::chrono::steady_clock::now() < end) {
      }
      lock.lock();
      looking_out_ = false;
      if (wanted_) return;
    }
    ++sleeping_;
    wake_.wait(lock);
    --sleeping_;
  }

  void stop() {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = wanted_ = true;
    }
    wake_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  std::mutex mutex_;
  std::condition_variable wake_;
  Helped* first_ = nullptr;  // of those that wait for helpers
  Helped* last_ = nullptr;
  std::atomic<bool> wanted_{false};  // whether somebody waits, or the threads are to stop
  bool stopping_ = false;
  bool looking_out_ = false;
  int sleeping_ = 0;
  std::vector<std::thread> threads_;
};

}  // namespace attn::detail
