// Digits of the numbers of a tensor for which the tensor's own type has no room.
#pragma once

#include <algorithm>
#include <atomic>
#include <cmath>
#include <memory>
#include <type_traits>
#include <utility>

#include "attn/types.h"

namespace attn::detail {

/// One N for each number of a tensor, in the tensor's order in memory; made when first needed. The forward pass leaves
/// there what the backward pass, merge() and whoever else goes on from a result needs:
///
/// - beside a log-sum-exp, what rounding took from it, 0 where |lse| is below 8. A row whose scores are all near -1e9
///   has an lse whose float cannot hold the logarithm of the number of keys, and weights made from it alone would not
///   sum to 1.
/// - beside an output of 16 bits, the output before it was rounded. The backward pass subtracts sum(grad_out * out)
///   from all gradients of a row, so an error there is multiplied by whatever the keys have in common (arXiv
///   2510.04212).
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

  /// Null: none have been made.
  N* data() { return data_.load(std::memory_order_acquire); }
  const N* data() const { return data_.load(std::memory_order_acquire); }
  Index size() const { return size_; }

  /// All of them, zeros if they are new. Threads may ask at the same time, for the same size.
  N* make(Index size) {
    if (N* const there = data()) return there;
    return take(std::make_unique<N[]>(static_cast<std::size_t>(size)), size);
  }
  /// As make(), but new ones are indeterminate.
  N* make_for_overwrite(Index size) {
    if (N* const there = data()) return there;
    return take(std::make_unique_for_overwrite<N[]>(static_cast<std::size_t>(size)), size);
  }

  /// Forgets those of a tensor that had another size.
  void keep_if_sized(Index size) {
    if (size_ != size && data()) *this = MoreDigits();
  }

 private:
  /// Not by data_.exchange(), which locks the bus: no other thread may use what is assigned to or moved.
  void swap(MoreDigits& other) noexcept {
    std::swap(size_, other.size_);
    N* const own = data_.load(std::memory_order_relaxed);
    data_.store(other.data_.load(std::memory_order_relaxed), std::memory_order_relaxed);
    other.data_.store(own, std::memory_order_relaxed);
  }
  N* take(std::unique_ptr<N[]> fresh, Index size) {
    N* there = nullptr;
    if (!data_.compare_exchange_strong(there, fresh.get(), std::memory_order_acq_rel)) return there;
    size_ = size;  // written by the one thread whose memory was taken, and read when all have ended
    return fresh.release();
  }

  Index size_ = 0;
  std::atomic<N*> data_ = nullptr;
};

struct NoDigits {};

/// What a number of a tensor may have beside it: see MoreDigits.
template <class T>
using DigitsBeside = std::conditional_t<sizeof(T) == 2 && !std::is_integral_v<T>, MoreDigits<float>,
                                        std::conditional_t<std::is_floating_point_v<T>, MoreDigits<T>, NoDigits>>;

/// The MoreDigits of a container that has some, or null. Views have none, as they do not own their numbers.
struct DigitsOf {
  template <class X>
  static auto get(X& x) {
    if constexpr (requires { x.digits_.data(); })
      return &x.digits_;
    else
      return nullptr;
  }
};

/// What rounding took from log-sum-exps, to be read.
template <class T>
class LseRests {
 public:
  LseRests() = default;
  /// Beside numbers from `first` on. Null rests: there are none. `written`: these numbers as they were written; null:
  /// nobody else writes to them.
  LseRests(const T* first, const T* rests, const T* written = nullptr)
      : first_(first), rests_(rests), written_(written) {}

  /// What rounding took from `*lse`; 0 if that is not known, or if somebody has written another lse since.
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

/// Where a call keeps what rounding takes from its log-sum-exps: nowhere, in the MoreDigits of a container, or in an
/// array.
template <class T>
class KeptLseRests {
 public:
  KeptLseRests() = default;
  /// Beside the `size` numbers of a container from `first` on. Null digits: nothing is kept.
  KeptLseRests(const T* first, Index size, MoreDigits<T>* digits) : first_(first), size_(size), digits_(digits) {
    if (digits) digits->keep_if_sized(2 * size);
  }
  /// Beside numbers from `first` on that nobody else writes to.
  KeptLseRests(const T* first, T* rests) : first_(first), rests_(rests) {}

  operator LseRests<T>() const {
    if (rests_ || !digits_ || !digits_->data()) return {first_, rests_};
    return {first_, digits_->data(), digits_->data() + size_};
  }
  T of(const T* lse) const { return LseRests<T>(*this).of(lse); }

  /// Whether set() has anything to do. Rounding takes at most two epsilons from an |lse| below 8, no more than an
  /// exponential and a sum err by anyway. So ordinary scores of up to some 2000 keys need no memory, and short calls no
  /// time.
  bool wants(T lse) const { return rests_ != nullptr || (digits_ != nullptr && !is_small(lse)); }

  /// Keeps what rounding took from `*lse`. What is kept of a row does not depend on other rows. Beside a container,
  /// memory is made for the first row that needs it.
  void set(const T* lse, T rest) const {
    if (!wants(*lse)) return;
    T* const rests = rests_ ? rests_ : digits_->make(2 * size_);
    rests[lse - first_] = is_small(*lse) ? T(0) : rest;
    if (digits_) rests[size_ + (lse - first_)] = *lse;
  }

 private:
  static bool is_small(T lse) { return !(std::abs(lse) >= T(8) && std::isfinite(lse)); }

  const T* first_ = nullptr;
  T* rests_ = nullptr;
  Index size_ = 0;
  MoreDigits<T>* digits_ = nullptr;
};

}  // namespace attn::detail
