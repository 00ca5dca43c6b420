// Token-by-token generation with the models: earlier tokens are in caches.
#include "gpt.h"
#include "hybrid.h"
#include "transformer.h"

namespace nn {

template <class T>
Caches<T> Gpt<T>::make_caches(Index batch) const {
  return {layer_config(config_), config_.layers, batch, config_.context};
}

template <class T>
States<T> Gpt<T>::next(const Tokens& tokens, Caches<T>& caches) const {
  return tokens_.project(decoder_.next(with_positions(tokens_(tokens), caches.length()), caches));
}

template <class T>
typename Hybrid<T>::State Hybrid<T>::make_state(Index batch, Index capacity) const {
  const HybridConfig& c = config_;
  State state{.memories = {},
              .caches = attn::KvCaches<T>({.layers = c.blocks,
                                           .kv_heads = c.kv_heads,
                                           .head_dim = c.head_dim,
                                           .pages = batch,
                                           .page_size = capacity,
                                           .rope = c.attention().rope}),
              .sequences = {}};
  for (Index i = 0; i < c.blocks; ++i)
    state.memories.emplace_back(HybridBlock<T>::kDeltaNets, DeltaNetState<T>(c.delta_net(), batch));
  for (Index i = 0; i < batch; ++i) state.sequences.push_back(state.caches.add());
  return state;
}

template <class T>
States<T> Hybrid<T>::next(const Tokens& tokens, State& state) const {
  auto step = state.caches.step(state.sequences, tokens.dim(1));
  States<T> x = tokens_(tokens);
  for (std::size_t i = 0; i < blocks_.size(); ++i) {
    auto cache = step.layer(static_cast<Index>(i));
    x = blocks_[i](std::move(x), &state.memories[i], &cache);
  }
  step.commit();
  return tokens_.project(norm_(x));
}

template <class T>
typename Transformer<T>::State Transformer<T>::encode(const Tokens& sources, const std::vector<Index>& lengths,
                                                      Index capacity, Index targets_each) const {
  const Index batch = sources.dim(0), layers = config_.decoder_layers;
  State state{{config_.layer, layers, batch, sources.dim(1)}, {config_.layer, layers, batch * targets_each, capacity}};
  decoder_.remember(encoder_(at_positions(source_tokens_(sources)), {.key_lengths = lengths}), lengths, state.sources);
  return state;
}

template <class T>
States<T> Transformer<T>::next(const Tokens& targets, State& state) const {
  States<T> x = at_positions(target_tokens_(targets), state.targets.length());
  return target_tokens_.project(decoder_.next(std::move(x), state.targets, state.sources));
}

using T = NN_SCALAR;
template Caches<T> Gpt<T>::make_caches(Index) const;
template States<T> Gpt<T>::next(const Tokens&, Caches<T>&) const;
template Hybrid<T>::State Hybrid<T>::make_state(Index, Index) const;
template States<T> Hybrid<T>::next(const Tokens&, State&) const;
template Transformer<T>::State Transformer<T>::encode(const Tokens&, const std::vector<Index>&, Index, Index) const;
template States<T> Transformer<T>::next(const Tokens&, State&) const;

}  // namespace nn
