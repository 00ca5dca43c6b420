// The keys and values that one layer has of a text.
#pragma once

#include <variant>

#include <attn/kv_cache.h>
#include <attn/paged_kv_cache.h>

#include "checkpoint.h"

namespace tinystories {

struct CacheOptions {
  bool paged = false;    // whether in pages, not in one piece
  Index capacity = 0;    // tokens
  Index page_size = 64;  // tokens in a page
};

/// A cache of the library, of either kind. It turns keys by their positions as they come, and queries as they are read.
class LayerCache {
 public:
  using View = attn::TensorView<const float, 4>;

  LayerCache(const Config& config, const CacheOptions& options);

  Index length() const;

  /// Keys and values of the next n tokens, (1, n_kv_heads, n, head_dim), which must have room.
  void append(const View& keys, const View& values);

  /// Causal attention of the last n tokens: queries and `out` are (1, n_heads, n, head_dim).
  void attend(const attn::TensorView<float, 4>& out, const View& queries, const attn::Options& options) const;

 private:
  struct Pages {
    Pages(const Config& config, const CacheOptions& options);
    attn::PagedKvCache<float> cache;
    Index text;  // the one sequence in it
  };
  using Store = std::variant<attn::KvCache<float>, Pages>;

  static Store store_of(const Config& config, const CacheOptions& options);

  Store store_;
};

}  // namespace tinystories
