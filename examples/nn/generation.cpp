// Token-by-token generation with the models: earlier tokens are in caches.
#include "gpt.h"
#include "transformer.h"

namespace nn {

template <class T>
typename Gpt<T>::Caches Gpt<T>::make_caches(Index batch) const {
  return decoder_.make_caches(batch, config_.context);
}

template <class T>
States<T> Gpt<T>::next(const Tokens& tokens, Caches& caches) const {
  return tokens_.project(decoder_.next(with_positions(tokens_(tokens), caches.front().length(0)), caches));
}

template <class T>
typename Transformer<T>::Caches Transformer<T>::encode(const Tokens& sources, const std::vector<Index>& lengths,
                                                       Index targets_each) const {
  const States<T> memory = encoder_(at_positions(source_tokens_(sources)), {.key_lengths = lengths});
  return {decoder_.remember(memory), decoder_.make_caches(sources.dim(0) * targets_each, sources.dim(1)), lengths};
}

template <class T>
States<T> Transformer<T>::next(const Tokens& targets, Caches& caches) const {
  States<T> x = at_positions(target_tokens_(targets), caches.targets.front().length(0));
  return target_tokens_.project(
      decoder_.next(std::move(x), caches.targets, caches.sources, {.key_lengths = caches.lengths}));
}

using T = NN_SCALAR;
template Gpt<T>::Caches Gpt<T>::make_caches(Index) const;
template States<T> Gpt<T>::next(const Tokens&, Caches&) const;
template Transformer<T>::Caches Transformer<T>::encode(const Tokens&, const std::vector<Index>&, Index) const;
template States<T> Transformer<T>::next(const Tokens&, Caches&) const;

}  // namespace nn
