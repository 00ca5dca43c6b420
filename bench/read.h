// The yardstick of decoding: memory that all workers read once, from one end to the other.
#pragma once

#include <cstddef>
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

inline attn::Index size_of(const std::vector<Bytes>& pieces) {
  attn::Index size = 0;
  for (const Bytes& piece : pieces) size += piece.size;
  return size;
}

/// Reads all pieces; a task has some neighbouring ones. Only whole vectors are read: the rest of a piece is less than
/// 512 bytes.
inline void read_all(const attn::Executor& executor, const std::vector<Bytes>& pieces) {
  constexpr attn::Index kBytesPerTask = 1 << 20;
  using Vector [[gnu::vector_size(64), gnu::aligned(1), gnu::may_alias]] = float;
  constexpr attn::Index kVectors = 8, kStep = kVectors * static_cast<attn::Index>(sizeof(Vector));
  std::vector<std::size_t> first{0};  // piece of each task, and the end
  attn::Index bytes = 0;
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    bytes += pieces[i].size;
    if (bytes < kBytesPerTask && i + 1 < pieces.size()) continue;
    first.push_back(i + 1);
    bytes = 0;
  }
  executor.run(static_cast<attn::Index>(first.size()) - 1, [&](attn::Index task, int) {
    Vector sum[kVectors] = {};
    for (std::size_t i = first[static_cast<std::size_t>(task)]; i < first[static_cast<std::size_t>(task) + 1]; ++i) {
      const Bytes piece = pieces[i];
      for (attn::Index at = 0; at + kStep <= piece.size; at += kStep)
        for (attn::Index v = 0; v < kVectors; ++v)
          sum[v] += *reinterpret_cast<const Vector*>(piece.data + at + v * static_cast<attn::Index>(sizeof(Vector)));
    }
    Vector all = {};
    for (const Vector& s : sum) all += s;
    [[maybe_unused]] volatile float sink = all[0];  // keeps the compiler from dropping the loop
  });
}

}  // namespace bench
