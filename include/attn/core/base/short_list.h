// Vector of small objects that stores a few of them inline.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <utility>
#include <vector>

namespace attn::detail {

/// A vector of small objects, most often numbers. Up to kInline of them are stored in the list itself, so that making a
/// mod for each call of a control loop allocates nothing. Elements move with the object, unlike those of a std::vector.
template <class Number>
class ShortList {
 public:
  static constexpr std::size_t kInline = 8;

  ShortList() = default;
  explicit ShortList(std::span<const Number> given) {
    if (given.size() > kInline)
      many_.assign(given.begin(), given.end());
    else
      for (const Number x : given) few_[count_++] = x;
  }
  ShortList(std::size_t count, Number value) {
    if (count > kInline)
      many_.assign(count, value);
    else
      for (; count_ < count; ++count_) few_[count_] = value;
  }
  /// Takes over the vector's memory, unless the numbers fit inline.
  explicit ShortList(std::vector<Number>&& given) : ShortList(std::span(given).first(std::min(given.size(), kInline))) {
    if (given.size() > kInline) many_ = std::move(given), count_ = 0;
  }

  bool empty() const { return size() == 0; }
  std::size_t size() const { return many_.empty() ? count_ : many_.size(); }
  const Number* data() const { return many_.empty() ? few_ : many_.data(); }
  Number* data() { return many_.empty() ? few_ : many_.data(); }
  const Number* begin() const { return data(); }
  const Number* end() const { return data() + size(); }
  Number* begin() { return data(); }
  Number* end() { return data() + size(); }
  const Number& operator[](std::size_t i) const { return data()[i]; }
  Number& operator[](std::size_t i) { return data()[i]; }

  void push_back(Number x) {
    if (many_.empty() && count_ < kInline) {
      few_[count_++] = x;
      return;
    }
    if (many_.empty()) {
      many_.assign(begin(), end());
      count_ = 0;
    }
    many_.push_back(x);
  }
  /// Keeps the first `count` numbers; `count` is at most size().
  void shrink(std::size_t count) {
    if (many_.empty())
      count_ = count;
    else
      *this = ShortList(std::span<const Number>(many_).first(count));
  }
  /// Returns the numbers as a std::vector, which takes over memory that is not inline.
  std::vector<Number> to_vector() && { return many_.empty() ? std::vector<Number>(begin(), end()) : std::move(many_); }

 private:
  Number few_[kInline] = {};
  std::size_t count_ = 0;     ///< number of elements of few_ in use; 0 if many_ holds all
  std::vector<Number> many_;  ///< all numbers, if they do not fit inline
};

}  // namespace attn::detail
