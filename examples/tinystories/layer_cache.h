// The cached keys and values of one layer.
#pragma once

#include <variant>
#include <vector>

#include <attn/kv_cache.h>
#include <attn/paged_kv_cache.h>

#include "checkpoint.h"

namespace tinystories {

struct CacheOptions {
  bool paged = false;    // paged instead of contiguous
  Index capacity = 0;    // tokens of each sequence
  Index page_size = 64;  // tokens per page
  Index batch = 1;       // sequences, which have the same length
};

/// A cache of attn, contiguous or paged. It rotates keys by their positions when they are appended, and queries when
/// they attend.
class LayerCache {
 public:
  using View = attn::TensorView<const float, 4>;

  LayerCache(const Config& config, const CacheOptions& options);

  Index length() const;

  /// Appends keys and values of the next n tokens, (batch, n_kv_heads, n, head_dim), which must fit in the capacity.
  void append(const View& keys, const View& values);

  /// Keeps the first `length` tokens of each sequence.
  void truncate(Index length);

  /// Computes causal attention of the last n tokens: queries and `out` are (batch, n_heads, n, head_dim).
  void attend(const attn::TensorView<float, 4>& out, const View& queries, const attn::Options& options) const;

 private:
  struct Pages {
    Pages(const Config& config, const CacheOptions& options);
    attn::PagedKvCache<float> cache;
    std::vector<Index> sequences;
  };
  using Store = std::variant<attn::KvCache<float>, Pages>;

  static Store store_of(const Config& config, const CacheOptions& options);

  Store store_;
};

}  // namespace tinystories
