// Predicate and hint of masks given as boolean tensors.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>

#include "attn/core/mods/broadcast.h"
#include "attn/core/mods/hints.h"

namespace attn::detail {

/// Keeps the pairs whose element is `keep_where`.
struct TensorPredicate {
  PairTensor<bool> tensor;
  bool keep_where;

  [[gnu::always_inline]] bool operator()(const Position& p) const { return tensor(p) == keep_where; }

  /// Sets bit j of words[i] to whether the pair of query first.q + i and key first.kv + j is kept. There are at most 16
  /// keys; bits beyond `keys` are unspecified. A call with a mask evaluated pair by pair took 1.35 times as long as one
  /// without a mask (head_dim 64, AVX-512), and one with words 1.08 times as long.
  template <int kQueries, class Word>
  [[gnu::always_inline]] void words(const Position& first, Index keys, Word* words) const {
    const bool* const at = &tensor(first);
    const Word flip = keep_where ? Word(0) : Word(0xffff);
    if (tensor.q == 0) {
      const Word all = static_cast<Word>(of_keys(at, keys)) ^ flip;
      for (int i = 0; i < kQueries; ++i) words[i] = all;
    } else if (tensor.q == 1 && kReadsEight) {
      // Each byte is one of eight queries; its bit j is key j in `lower` and key 8 + j in `upper`.
      constexpr int kBytes = kQueries < 8 ? kQueries : 8;
      for (int i = 0; i < kQueries; i += kBytes) {
        std::uint64_t lower = 0, upper = 0;
        for (Index j = 0; j < keys; ++j) {
          const std::uint64_t bytes = some<kBytes>(at + i + j * tensor.kv);
          if (j < kAtATime)
            lower |= bytes << j;
          else
            upper |= bytes << (j - kAtATime);
        }
        for (int of = 0; of < kBytes; ++of)
          words[i + of] = static_cast<Word>((lower >> 8 * of & 0xff) | (upper >> 8 * of & 0xff) << 8) ^ flip;
      }
    } else {
      for (int i = 0; i < kQueries; ++i) words[i] = static_cast<Word>(of_keys(at + i * tensor.q, keys)) ^ flip;
    }
  }

  /// Returns the exact coverage of a tile by scanning its pairs. Cost: O(pairs / 8) if keys or queries are contiguous,
  /// and less if both a kept and a dropped pair are found early.
  Coverage coverage(const Tile& t) const {
    if (t.q.empty() || t.kv.empty()) return Coverage::all;
    const bool* const first = &tensor(Position{t.batch, t.head, t.q.begin, t.kv.begin});
    const Range queries{0, tensor.q == 0 ? 1 : t.q.size()}, keys{0, t.kv.size()};
    const bool along_queries = tensor.q == 1;
    const Range &lines = along_queries ? keys : queries, &length = along_queries ? queries : keys;
    const Index line = along_queries ? tensor.kv : tensor.q, step = along_queries ? 1 : tensor.kv;
    for (Index i = 0; i < lines.size(); ++i)
      if (!are_all(*first, first + i * line, length.size(), step)) return Coverage::some;
    return *first == keep_where ? Coverage::all : Coverage::none;
  }

 private:
  static constexpr Index kAtATime = 8;
  static constexpr bool kReadsEight = std::endian::native == std::endian::little && sizeof(bool) == 1;

  template <int kBytes>
  static std::uint64_t some(const bool* at) {
    std::uint64_t bytes = 0;
    std::memcpy(&bytes, at, kBytes);
    return bytes;
  }

  /// Returns the elements of up to 16 keys of one query, one bit each, before `keep_where` is applied.
  [[gnu::always_inline]] std::uint32_t of_keys(const bool* at, Index keys) const {
    if (kReadsEight && tensor.kv == 1 && keys == 2 * kAtATime) {
#if defined(__SSE2__)
      typedef char Bytes __attribute__((vector_size(16)));
      Bytes bytes;
      std::memcpy(&bytes, at, sizeof(bytes));
      return static_cast<std::uint32_t>(__builtin_ia32_pmovmskb128(bytes != 0));
#else
      // The product moves bit 8i, the only one of byte i, to bit 56 + i. No two partial products share a bit.
      constexpr std::uint64_t kGather = 0x0102040810204080;
      return static_cast<std::uint32_t>((some<8>(at) * kGather >> 56) | (some<8>(at + kAtATime) * kGather >> 56 << 8));
#endif
    }
    std::uint32_t word = 0;
    for (Index j = 0; j < keys; ++j) word |= static_cast<std::uint32_t>(at[j * tensor.kv]) << j;
    return word;
  }

  static bool are_all(bool one, const bool* at, Index count, Index step) {
    Index j = 0;
    if (kReadsEight && step == 1) {
      const std::uint64_t eight_of_them = one ? 0x0101010101010101 : 0;
      for (; j + kAtATime <= count; j += kAtATime)
        if (some<8>(at + j) != eight_of_them) return false;
    }
    for (; j < count; ++j)
      if (at[j * step] != one) return false;
    return true;
  }
};

/// The mask of a boolean tensor. With its hint, padding() costs as much as key_lengths().
inline auto tensor_mask(const PairTensor<bool>& tensor, bool keep_where) {
  const TensorPredicate mask{tensor, keep_where};
  return mask_mod(mask,
                  [mask](const Tile& t) { return is_wide(t.q) || is_wide(t.kv) ? Coverage::some : mask.coverage(t); });
}

}  // namespace attn::detail
