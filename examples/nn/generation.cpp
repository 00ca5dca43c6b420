// Token-by-token generation with the models: earlier tokens are in caches.
#include "gpt.h"
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
template Transformer<T>::State Transformer<T>::encode(const Tokens&, const std::vector<Index>&, Index, Index) const;
template States<T> Transformer<T>::next(const Tokens&, State&) const;

}  // namespace nn
