// Multi-head attention over a cache: whether the cache fits the layer, and which tokens belong to which sequence.
#pragma once

#include <algorithm>
#include <span>
#include <tuple>
#include <vector>

#include "attn/cached_attention.h"
#include "attn/kv_options.h"
#include "attn/layers/multi_head_inputs.h"

namespace attn::detail::inline ATTN_BUILT_FOR {

/// An input that is not a cache.
template <class X>
concept LayerInput = !KvSource<X>;

/// A cache that a layer can append to: a KvCache, sequences of a PagedKvCache, or a layer of a step of KvCaches.
template <class Cache>
concept KvStore = KvSource<Cache> && requires(Cache& cache, const TensorView<const float, 4>& heads) {
  cache.append(heads, heads, Indices(std::vector<Index>()));
};

/// Rejects wrong types of a call over a cache with a one-sentence error.
template <class T, class X, class Cache>
constexpr bool check_layer_types_over() {
  static_assert(check_layer_types<T, typename QueryRows<X>::Tensor>());
  static_assert(std::is_same_v<scalar_of<Cache>, computed_t<T>>,
                "attn: the cache of a MultiHeadAttention<T> must hold T (float and smaller types may be mixed)");
  return true;
}

/// Rejects types with which a layer of T cannot append tokens x to a cache, with a one-sentence error.
template <class T, class X, class Cache>
constexpr bool check_appendable() {
  static_assert(check_layer_types_over<T, X, std::remove_cvref_t<Cache>>());
  static_assert(KvStore<Cache>,
                "attn: a layer appends to its cache, which must be a non-const KvCache, cache.select({a, b}) of a "
                "PagedKvCache, or step.layer(l) of KvCaches; to only read a cache, call attend(x, cache)");
  return KvStore<Cache> && std::is_same_v<scalar_of<Cache>, computed_t<T>>;
}

/// Calls use() with the tokens x as all three inputs.
template <class T, class X, class Use>
auto with_inputs(const X& x, const Use& use) {
  const auto& held = evaluated(QueryRows<X>::tensor(x));
  const TensorView<const T, 3> tokens = as_rank3(view(held));
  return use(Inputs<T>{tokens, tokens, tokens});
}

inline void check_rope(const std::optional<Rope>& of_layer, const Rope* of_cache) {
  const bool has = of_layer.has_value(), cache_has = of_cache != nullptr;
  require(has || !cache_has, "the cache has a rope, but the layer has none; set MultiHeadConfig::rope as well");
  require(cache_has || !has,
          "the layer has a rope, but the cache has none; make_cache() returns one with the same rope");
  if (!has || *of_layer == *of_cache) return;
  const RopeConfig &a = of_layer->config(), &b = of_cache->config();
  refuse({"the ropes of the layer and the cache differ: base ", a.base, " and ", b.base, ", factor ", a.factor, " and ",
          b.factor, ", rotary_dim ", a.rotary_dim, " and ", b.rotary_dim, ", axes ", of_layer->axes(), " and ",
          of_cache->axes(), ", or pairs, scaling or sections"});
}

/// Checks a call of a layer over the sequences of a cache. `tokens` (batch, len, features) is x as rank 3.
template <class T, class X, class Number>
void check_cache(const MultiHeadParameters<T>& layer, const X& x, const TensorView<const T, 3>& tokens,
                 const KvView<Number>& batch) {
  const MultiHeadConfig& c = layer.config();
  require(batch.kv_heads() == c.kv_heads && batch.head_dim() == c.head_dim && batch.v_dim() == c.v_head_dim,
          "the cache has kv_heads ", batch.kv_heads(), ", head_dim ", batch.head_dim(), " and v_dim ", batch.v_dim(),
          ", but the layer has kv_heads ", c.kv_heads, ", head_dim ", c.head_dim, " and v_head_dim ", c.v_head_dim,
          "; make_cache() returns one that fits");
  check_rope(c.rope, batch.rope());
  QueryRows<X>::check(x, {tokens.dim(0), c.heads, tokens.dim(1), c.head_dim}, batch.size());
}

/// Returns the heads of tokens in the form that attention() and caches take: the same number of tokens for each
/// sequence, or all sequences packed back to back.
template <class X, class T>
const TensorView<T, 4>& as_given(const X&, const TensorView<T, 4>& heads) {
  return heads;
}
template <class X, class T>
Ragged<TensorView<T, 4>> as_given(const Ragged<X>& x, const TensorView<T, 4>& heads) {
  return {heads, x.lens};
}

/// Appends the projected keys and values of the tokens x to a cache.
template <class Cache, class X, class T>
void append_heads(Cache& cache, const X&, const ProjectedHeads<T>& heads, const AppendOptions& options = {}) {
  cache.append(heads.key(), heads.value(), options);
}
template <class Cache, class X, class T>
void append_heads(Cache& cache, const Ragged<X>& x, const ProjectedHeads<T>& heads, const AppendOptions& options = {}) {
  cache.append(heads.key(), heads.value(), x.lens, options);
}

/// Returns the depths of the nodes of the tree() among the mods of a call; empty if there is none.
template <class M>
std::span<const Index> tree_depths(const M& mods) {
  if constexpr (is_mods<M>)
    return std::apply(
        [](const auto&... parts) {
          std::span<const Index> depths;
          ((depths = depths.empty() ? tree_depths(parts) : depths), ...);
          return depths;
        },
        mods.parts);
  else if constexpr (requires { mods.make.depths(); })
    return mods.make.depths();
  else
    return {};
}

/// Returns the positions of the tokens x, which are the nodes of a tree: the position after the last row of the node's
/// sequence in the cache, plus the depth of the node. If the cache has no rope, the result is empty.
template <class X, class T, class Number>
std::vector<Index> positions_of_nodes(const X& x, const TensorView<T, 4>& heads, std::span<const Index> depths,
                                      const KvView<Number>& batch) {
  std::vector<Index> positions;
  if (batch.rope() == nullptr) return positions;
  QueryRows<X>::for_each(x, heads.shape(), batch.size(), [&](Index sequence, Index, const Range& rows) {
    const Index first = batch.positions(sequence)(batch.length(sequence)), nodes = static_cast<Index>(depths.size());
    // The index is clamped because tree() rejects a wrong number of tokens only later.
    for (Index i = 0; i < rows.size(); ++i)
      positions.push_back(first + depths[static_cast<std::size_t>(std::min(i, nodes - 1))]);
  });
  const std::vector<Index> of_axis = positions;
  for (Index axis = 1; axis < batch.rope()->axes(); ++axis)
    positions.insert(positions.end(), of_axis.begin(), of_axis.end());
  return positions;
}

/// Returns a copy of the heads (batch, heads, len, head_dim) of tokens x, rotated as the cache's rope rotated their
/// keys. The tokens are the last of their sequence, or begin where `options` say, counted from the first key of the
/// cache.
template <class X, class T, class Number>
Tensor<T, 4> rotated_copy(const X& x, const TensorView<T, 4>& heads, const KvView<Number>& batch,
                          const Options& options) {
  Tensor<T, 4> copy(heads);
  if (batch.rope() == nullptr) return copy;
  std::vector<Index> positions;
  for (Index axis = 0; axis < batch.rope()->axes(); ++axis)
    QueryRows<X>::for_each(x, heads.shape(), batch.size(), [&](Index sequence, Index, const Range& rows) {
      const Index first_key = kv_offset_of(options, batch, sequence).value_or(0),
                  last = first_key + batch.length(sequence);
      const Index begin = q_offset_of(options, sequence).value_or(last - rows.size()) - first_key;
      for (Index i = 0; i < rows.size(); ++i) positions.push_back(batch.positions(sequence)(begin + i, axis));
    });
  batch.rope()->rotate(copy, positions);
  return copy;
}

}  // namespace attn::detail::inline ATTN_BUILT_FOR
