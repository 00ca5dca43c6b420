// The network: attention from attn, the other layers from layers.h.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <utility>
#include <variant>
#include <vector>

#include <attn/kv_caches.h>
#include <attn/mods/tree.h>

#include "checkpoint.h"

namespace tinystories {

/// How the numbers of keys and values are stored.
enum class CacheType { f32, bf16, f8, i8, i4 };

struct CacheOptions {
  bool paged = false;    // in pages, rather than contiguous
  Index capacity = 0;    // tokens of each sequence; with a window, the most that are stored at once
  Index page_size = 64;  // tokens per page
  Index batch = 1;       // sequences, which have the same length
  Index window = 0;      // if positive, how many of the last tokens stay
  Index sinks = 0;       // with a window, how many of the first tokens stay too
  CacheType type = CacheType::f32;
};

/// The state of one or several sequences of the same length: keys and values of all layers. Keys are rotated by their
/// positions when they are appended, and queries when they attend.
class Context {
 public:
  Context(const Config& config, const CacheOptions& options);

  Index length() const {
    return std::visit([&](const auto& caches) { return caches.length(sequences_.front()); }, caches_);
  }
  Index bytes() const {
    return std::visit([](const auto& caches) { return caches.bytes(); }, caches_);
  }
  Index capacity() const { return capacity_; }
  /// Whether n more tokens fit. A window always has space for one more.
  bool has_space(Index n) const { return has_window_ || n <= capacity_ - length(); }
  Index batch() const { return static_cast<Index>(sequences_.size()); }
  /// Keeps the first `length` tokens of each sequence.
  void truncate(Index length);
  /// Keeps only one path of the tree of tokens that the last call of the network appended to each sequence.
  void accept(std::span<const Index> path);
  /// Appends n tokens to each sequence: the nodes of a tree, or, without parents, tokens that follow each other.
  /// append(step) gets the KvStep, to which all layers append; if it throws, no token is appended.
  template <class Append>
  void step(Index n, std::span<const Index> parents, const Append& append) {
    std::visit(
        [&](auto& caches) {
          attn::AppendOptions options;
          if (!parents.empty())
            options.positions = attn::tree_positions(parents, caches.position(sequences_.front(), length()));
          auto step = caches.step(sequences_, n, options);
          append(step);
          step.commit();
        },
        caches_);
  }

 private:
  using Caches = std::variant<attn::KvCaches<float>, attn::KvCaches<Eigen::bfloat16>, attn::KvCaches<attn::Float8E4M3>,
                              attn::KvCaches<std::int8_t>, attn::KvCaches<attn::Int4>>;
  static Caches make(const Config& config, const CacheOptions& options);

  Index capacity_;
  bool has_window_;
  Caches caches_;
  std::vector<Index> sequences_;
};

/// The attention of one layer to the n tokens at `first`, first + 1, ..., for observers.
struct Attended {
  using View = attn::TensorView<const float, 4>;
  Index layer;
  Index first;
  View q, k, v;  // (batch, heads, n, head_dim), before rotation
  View out;      // same shape as q
};

class Transformer {
 public:
  using Observer = std::function<void(const Attended&)>;

  explicit Transformer(Checkpoint checkpoint) : checkpoint_(std::move(checkpoint)) {}

  const Config& config() const { return checkpoint_.config(); }

  /// Feeds the next n tokens of each sequence, a prompt at once or one at a time, and returns their final states,
  /// (batch * n, dim). All tokens of a sequence come before those of the next.
  /// With `parents`, the tokens of each sequence are the nodes of a tree of drafts, and see only the tokens before the
  /// tree, their ancestors and themselves: parents[i] is the parent of token i, or -1; see Context::accept().
  /// @throws std::out_of_range for a token that is not in the vocabulary, std::invalid_argument if there are no tokens,
  /// they do not fit in the context, or sequences would get different numbers of tokens. Nothing is fed if it throws.
  Matrix forward(std::span<const Index> tokens, Context& context, const attn::Options& options = {},
                 const Observer& observer = {}, std::span<const Index> parents = {}) const;

  /// Returns the logits of the token after each state, (n, vocab_size).
  Matrix logits(const Matrix& states, const attn::Options& options = {}) const;

 private:
  /// Adds to each row of `x` its attention to the tokens that the mask keeps.
  template <class Step, class Mask>
  void attend(Matrix& x, Index layer, const Context& context, const Step& step, const Mask& mask,
              const attn::Options& options, const Observer& observer) const;

  Matrix embedded(std::span<const Index> tokens) const;

  Checkpoint checkpoint_;
};

}  // namespace tinystories
