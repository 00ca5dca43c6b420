// The network: attention from attn, the other layers from layers.h.
#pragma once

#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "checkpoint.h"
#include "layer_cache.h"

namespace tinystories {

/// The state of one or several sequences of the same length: a cache per layer.
class Context {
 public:
  Context(const Config& config, const CacheOptions& options);

  Index length() const { return layers_.front().length(); }
  Index capacity() const { return capacity_; }
  Index batch() const { return batch_; }
  /// Keeps the first `length` tokens of each sequence.
  void truncate(Index length);
  LayerCache& layer(Index layer) { return layers_[static_cast<std::size_t>(layer)]; }

 private:
  Index capacity_, batch_;
  std::vector<LayerCache> layers_;
};

/// The attention of one layer to the n tokens at `first`, first + 1, ..., for observers.
struct Attended {
  Index layer;
  Index first;
  LayerCache::View q, k, v;  // (batch, heads, n, head_dim), before rotation
  LayerCache::View out;      // same shape as q
};

class Transformer {
 public:
  using Observer = std::function<void(const Attended&)>;

  explicit Transformer(Checkpoint checkpoint) : checkpoint_(std::move(checkpoint)) {}

  const Config& config() const { return checkpoint_.config(); }

  /// Feeds the next n tokens of each sequence, a prompt at once or one at a time, and returns their final states,
  /// (batch * n, dim). All tokens of a sequence come before those of the next.
  /// @throws std::out_of_range for a token that is not in the vocabulary, std::invalid_argument if there are no tokens,
  /// they do not fit in the context, or sequences would get different numbers of tokens; nothing is fed then.
  Matrix forward(std::span<const Index> tokens, Context& context, const attn::Options& options = {},
                 const Observer& observer = {}) const;

  /// Returns the logits of the token after each state, (n, vocab_size).
  Matrix logits(const Matrix& states, const attn::Options& options = {}) const;

 private:
  /// Adds to each row of `x` its attention to the tokens up to it.
  void attend(Matrix& x, Index layer, Context& context, const attn::Options& options, const Observer& observer) const;

  Matrix embedded(std::span<const Index> tokens) const;

  Checkpoint checkpoint_;
};

}  // namespace tinystories
