// Digits of a tensor's elements beyond the precision of the tensor's type.
#pragma once

#include <algorithm>
#include <atomic>
#include <cmath>
#include <memory>
#include <type_traits>
#include <utility>

#include "attn/types.h"

namespace attn::detail {

/// Numbers of type N beside the elements of a tensor, in the tensor's memory order: one per element, or two per
/// log-sum-exp. Allocated when first needed. The forward pass stores here what the backward pass, merge() and other
/// functions that continue from a result need:
///
/// - for a log-sum-exp, the part of it lost to rounding, 0 where |lse| is below 8. If all scores of a row are near
///   -1e9, so is its lse, and a float of that size cannot also hold the logarithm of the number of keys; weights
///   computed from it alone would not sum to 1.
/// - for a 16-bit output, the output before rounding. The backward pass subtracts sum(grad_out * out) from all
///   gradients of a row. Where keys are similar, an error in that sum does not average out: it is multiplied by what
///   the keys have in common (arXiv 2510.04212). Without these digits, the backward pass has to compute the sum itself
///   (BackwardLoop::sum_rows()), which takes longer, and which it cannot do for a part of the keys.
template <class N>
class MoreDigits {
 public:
  MoreDigits() = default;
  MoreDigits(const MoreDigits& other) {
    if (const N* const from = other.data()) std::copy_n(from, other.size_, make(other.size_));
  }
  MoreDigits(MoreDigits&& other) noexcept { swap(other); }
  MoreDigits& operator=(MoreDigits other) noexcept {
    swap(other);
    return *this;
  }
  ~MoreDigits() { delete[] data_.load(std::memory_order_relaxed); }

  /// Null if not allocated yet.
  N* data() { return data_.load(std::memory_order_acquire); }
  const N* data() const { return data_.load(std::memory_order_acquire); }
  Index size() const { return size_; }

  /// Returns the digits, allocated as zeros if there are none yet. Threads may call this at the same time, for the same
  /// size.
  N* make(Index size) {
    if (N* const there = data()) return there;
    return take(std::make_unique<N[]>(static_cast<std::size_t>(size)), size);
  }
  /// Like make(), but new digits are uninitialised.
  N* make_for_overwrite(Index size) {
    if (N* const there = data()) return there;
    // libc++ 14 lacks std::make_unique_for_overwrite.
    return take(std::unique_ptr<N[]>(new N[static_cast<std::size_t>(size)]), size);
  }

  /// Discards the digits if they belong to a tensor of a different size.
  void keep_if_sized(Index size) {
    if (size_ != size && data()) *this = MoreDigits();
  }

 private:
  /// No other thread may use an object that is being assigned to or moved, so this needs no data_.exchange(), which
  /// would lock the bus.
  void swap(MoreDigits& other) noexcept {
    std::swap(size_, other.size_);
    N* const own = data_.load(std::memory_order_relaxed);
    data_.store(other.data_.load(std::memory_order_relaxed), std::memory_order_relaxed);
    other.data_.store(own, std::memory_order_relaxed);
  }
  N* take(std::unique_ptr<N[]> fresh, Index size) {
    N* there = nullptr;
    if (!data_.compare_exchange_strong(there, fresh.get(), std::memory_order_acq_rel)) return there;
    size_ = size;  // written only by the thread whose allocation was installed; read after all threads have finished
    return fresh.release();
  }

  Index size_ = 0;
  std::atomic<N*> data_ = nullptr;
};

struct NoDigits {};

/// The type of the digits that are stored beside the elements of a tensor of T: see MoreDigits.
template <class T>
using DigitsBeside = std::conditional_t<sizeof(T) == 2 && !std::is_integral_v<T>, MoreDigits<float>,
                                        std::conditional_t<std::is_floating_point_v<T>, MoreDigits<T>, NoDigits>>;

/// Gets the MoreDigits of a container that has some, or null. Views have none, as they do not own their elements.
struct DigitsOf {
  template <class X>
  static auto get(X& x) {
    if constexpr (requires { x.digits_.data(); })
      return &x.digits_;
    else
      return nullptr;
  }
};

/// Read access to the parts of log-sum-exps lost to rounding.
template <class T>
class LseRests {
 public:
  LseRests() = default;
  /// `rests` belong to the log-sum-exps from `first` on; null if there are none. `written` holds these log-sum-exps as
  /// they were when `rests` was stored; null if nothing else writes to them.
  LseRests(const T* first, const T* rests, const T* written = nullptr)
      : first_(first), rests_(rests), written_(written) {}

  /// Returns the part of `*lse` lost to rounding; 0 if unknown, or if the lse has been overwritten since.
  T of(const T* lse) const {
    if (rests_ == nullptr || !std::isfinite(*lse)) return 0;
    const Index i = lse - first_;
    return written_ == nullptr || written_[i] == *lse ? rests_[i] : T(0);
  }

 private:
  const T* first_ = nullptr;
  const T* rests_ = nullptr;
  const T* written_ = nullptr;
};

/// Where a call stores the parts of its log-sum-exps lost to rounding: nowhere, in the MoreDigits of a container, or in
/// an array.
template <class T>
class KeptLseRests {
 public:
  KeptLseRests() = default;
  /// For the `size` elements of a container from `first` on. Stores nothing if `digits` is null.
  KeptLseRests(const T* first, Index size, MoreDigits<T>* digits) : first_(first), size_(size), digits_(digits) {
    if (digits) digits->keep_if_sized(2 * size);
  }
  /// For elements from `first` on that nothing else writes to.
  KeptLseRests(const T* first, T* rests) : first_(first), rests_(rests) {}

  operator LseRests<T>() const {
    if (rests_ || !digits_ || !digits_->data()) return {first_, rests_};
    return {first_, digits_->data(), digits_->data() + size_};
  }
  T of(const T* lse) const { return LseRests<T>(*this).of(lse); }

  /// Rounding removes at most two epsilons from an |lse| below 8, which is no more than the error of an exponential and
  /// a sum. So ordinary scores of up to about 2000 keys need no memory, and short calls no extra time.
  static bool is_small(T lse) { return !(std::abs(lse) >= T(8) && std::isfinite(lse)); }
  /// Whether set() would store anything.
  bool wants(T lse) const { return rests_ != nullptr || (digits_ != nullptr && !is_small(lse)); }

  /// Stores the part of `*lse` lost to rounding. The value stored for a row does not depend on other rows. For a
  /// container, memory is allocated for the first row that needs it.
  void set(const T* lse, T rest) const {
    if (!wants(*lse)) return;
    T* const rests = rests_ ? rests_ : digits_->make(2 * size_);
    rests[lse - first_] = is_small(*lse) ? T(0) : rest;
    if (digits_) rests[size_ + (lse - first_)] = *lse;
  }

 private:
  const T* first_ = nullptr;
  T* rests_ = nullptr;
  Index size_ = 0;
  MoreDigits<T>* digits_ = nullptr;
};

}  // namespace attn::detail
