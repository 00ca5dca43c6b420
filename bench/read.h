// The yardstick of decoding: all workers read memory once, in order.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include <attn/parallel.h>

namespace bench {

struct Bytes {
  const std::byte* data;
  attn::Index size;
};

template <class T>
Bytes bytes_of(const T* first, attn::Index count) {
  return {reinterpret_cast<const std::byte*>(first), count * static_cast<attn::Index>(sizeof(T))};
}

/// Pieces of memory to read.
class Memory {
 public:
  Memory() = default;
  Memory(std::vector<Bytes> pieces) : pieces_(std::move(pieces)) {
    constexpr attn::Index kBytesPerTask = 1 << 20;
    attn::Index bytes = 0;
    for (std::size_t i = 0; i < pieces_.size(); ++i) {
      size_ += pieces_[i].size;
      bytes += pieces_[i].size;
      if (bytes < kBytesPerTask && i + 1 < pieces_.size()) continue;
      first_.push_back(i + 1);
      bytes = 0;
    }
  }

  attn::Index size() const { return size_; }

  /// Reads all pieces; a task reads consecutive ones. Up to 511 bytes at the end of a piece are skipped.
  void read(const attn::Executor& executor) const {
    using Vector [[gnu::vector_size(64), gnu::aligned(1), gnu::may_alias]] = float;
    constexpr attn::Index kVectors = 8, kStep = kVectors * static_cast<attn::Index>(sizeof(Vector));
    executor.run(static_cast<attn::Index>(first_.size()) - 1, [&](attn::Index task, int) {
      Vector sum[kVectors] = {};
      const auto number = static_cast<std::size_t>(task);
      for (std::size_t i = first_[number]; i < first_[number + 1]; ++i) {
        const Bytes piece = pieces_[i];
        for (attn::Index at = 0; at + kStep <= piece.size; at += kStep)
          for (attn::Index v = 0; v < kVectors; ++v)
            sum[v] += *reinterpret_cast<const Vector*>(piece.data + at + v * static_cast<attn::Index>(sizeof(Vector)));
      }
      Vector all = {};
      for (const Vector& s : sum) all += s;
      [[maybe_unused]] volatile float sink = all[0];  // keeps the compiler from dropping the loop
    });
  }

 private:
  std::vector<Bytes> pieces_;
  std::vector<std::size_t> first_{0};  // first piece of each task, and the end
  attn::Index size_ = 0;
};

}  // namespace bench
