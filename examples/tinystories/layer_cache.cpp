#include "layer_cache.h"

#include <attn/mods/causal.h>

namespace tinystories {

namespace {

/// The rotary embedding that all networks of llama2.c use.
attn::Rope rope_of(const Config& config) {
  return attn::Rope({.head_dim = config.head_dim(), .pairs = attn::RopePairs::interleaved, .base = 10000});
}

}  // namespace

LayerCache::Pages::Pages(const Config& config, const CacheOptions& options)
    : cache({.pages = options.batch * ((options.capacity + options.page_size - 1) / options.page_size),
             .page_size = options.page_size,
             .kv_heads = config.n_kv_heads,
             .head_dim = config.head_dim(),
             .rope = rope_of(config)}) {
  for (Index i = 0; i < options.batch; ++i) sequences.push_back(cache.add());
}

LayerCache::Store LayerCache::store_of(const Config& config, const CacheOptions& options) {
  if (options.paged) return Pages(config, options);
  return attn::KvCache<float>({.batch = options.batch,
                               .kv_heads = config.n_kv_heads,
                               .capacity = options.capacity,
                               .head_dim = config.head_dim(),
                               .rope = rope_of(config)});
}

LayerCache::LayerCache(const Config& config, const CacheOptions& options) : store_(store_of(config, options)) {}

Index LayerCache::length() const {
  const auto* pages = std::get_if<Pages>(&store_);
  return pages ? pages->cache.length(pages->sequences.front()) : std::get<attn::KvCache<float>>(store_).length(0);
}

void LayerCache::append(const View& keys, const View& values) {
  if (auto* pages = std::get_if<Pages>(&store_))
    pages->cache.append(pages->sequences, keys, values);
  else
    std::get<attn::KvCache<float>>(store_).append(keys, values);
}

void LayerCache::truncate(Index length) {
  if (auto* pages = std::get_if<Pages>(&store_)) {
    for (const Index sequence : pages->sequences) pages->cache.truncate(sequence, length);
  } else {
    auto& cache = std::get<attn::KvCache<float>>(store_);
    for (Index sequence = 0; sequence < cache.config().batch; ++sequence) cache.truncate(sequence, length);
  }
}

void LayerCache::attend(const attn::TensorView<float, 4>& out, const View& queries,
                        const attn::Options& options) const {
  const auto* pages = std::get_if<Pages>(&store_);
  const attn::KvView<float> sequences =
      pages ? pages->cache.view(pages->sequences) : std::get<attn::KvCache<float>>(store_).view();
  attn::attention_into(out, queries, sequences, attn::causal(), options);
}

}  // namespace tinystories
