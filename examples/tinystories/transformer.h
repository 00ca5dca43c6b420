// The network: attention from attn, everything between from layers.h.
#pragma once

#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "checkpoint.h"
#include "layer_cache.h"

namespace tinystories {

/// What the network remembers of one text: a cache for each layer.
class Context {
 public:
  Context(const Config& config, const CacheOptions& options);

  Index length() const { return layers_.front().length(); }
  Index capacity() const { return capacity_; }
  LayerCache& layer(Index layer) { return layers_[static_cast<std::size_t>(layer)]; }

 private:
  Index capacity_;
  std::vector<LayerCache> layers_;
};

/// The attention of one layer to the n tokens at `first`, first + 1, ..., for those who want to look inside.
struct Attended {
  Index layer;
  Index first;
  LayerCache::View q, k, v;  // (1, heads, n, head_dim), not yet turned by position
  LayerCache::View out;      // as q
};

class Transformer {
 public:
  using Observer = std::function<void(const Attended&)>;

  explicit Transformer(Checkpoint checkpoint) : checkpoint_(std::move(checkpoint)) {}

  const Config& config() const { return checkpoint_.config(); }

  /// Feeds the next tokens of a text, a prompt at once or one at a time, and returns their final states, (n, dim).
  /// @throws std::out_of_range for a token that is not in the vocabulary, std::invalid_argument if there are none, or
  /// more than the context has room for; nothing is fed then.
  Matrix forward(std::span<const Index> tokens, Context& context, const attn::Options& options = {},
                 const Observer& observer = {}) const;

  /// The logits of what comes after each state, (n, vocab_size).
  Matrix logits(const Eigen::Ref<const Matrix>& states) const;

 private:
  /// Adds to each row of `x` what it gets from those before it.
  void attend(Matrix& x, Index layer, Context& context, const attn::Options& options, const Observer& observer) const;

  Matrix embedded(std::span<const Index> tokens) const;

  Checkpoint checkpoint_;
};

}  // namespace tinystories
