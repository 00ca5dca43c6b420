// Gated attention, as in Qwen3-Next.
#pragma once

#include "attention.h"

namespace nn {

/// Causal SelfAttention with the interface of a DeltaNet. The configuration selects the parts of Qwen3-Next's layer:
/// heads that share keys (kv_heads), norms of queries and keys (qk_norm), a rope, and a gate (output_gate).
template <class T>
class GatedAttention {
 public:
  using State = attn::KvLayer<T>;
  static constexpr const char* kName = "self_attn.";  ///< prefix of the parameters in a model

  explicit GatedAttention(const attn::MultiHeadConfig& config) : attention_(config) {}

  /// Applies the layer to whole sequences, or to the next tokens of sequences whose earlier tokens are in the cache,
  /// and adds them to the cache.
  States<T> operator()(const States<T>& x, State* cache = nullptr) const {
    return cache ? attention_.next(x, *cache) : attention_(x, {.causal = true});
  }

  States<T> forward(States<T> x) { return attention_.forward(std::move(x), {.causal = true}); }
  States<T> backward(const States<T>& grad) { return attention_.backward(grad); }

  void visit(const std::string& prefix, const Visitor<T>& visitor) { attention_.visit(prefix, visitor); }

 private:
  SelfAttention<T> attention_;
};

}  // namespace nn
