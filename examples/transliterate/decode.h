// Decodes source tokens into target tokens.
#pragma once

#include <vector>

#include <attn/attn.h>

#include "transformer.h"
#include "vocabulary.h"

namespace transliterate {

/// A target with the natural logarithm of the probability of each of its tokens given those before it. `tokens` has no
/// <s> and no </s>; `log_probs` has one more element, the last, if the end was scored too.
struct Scored {
  Tokens tokens;
  std::vector<float> log_probs;

  float total() const;
};

/// Limit on the length of targets. No name is that long, but a model that never predicts </s> would not end.
constexpr std::size_t kMaxTargetLength = 256;

/// Chooses the likeliest next token repeatedly until </s>, for a padded batch of sources.
///
/// @param prefix  tokens with which every target begins; they are scored too.
std::vector<Scored> greedy(const Transformer& network, const std::vector<Tokens>& sources, const Tokens& prefix,
                           attn::Path path);

/// Scores the given targets, including </s>; one target per source.
std::vector<Scored> score(const Transformer& network, const std::vector<Tokens>& sources,
                          const std::vector<Tokens>& targets, attn::Path path);

/// Returns the weights of the last decoder layer's attention to the source, for `target` and its </s>: (heads, target
/// length + 1, source length). Row t belongs to the choice of token t; each row sums to 1.
attn::Tensor<float, 3> attention_map(const Transformer& network, const Tokens& source, const Tokens& target,
                                     attn::Path path);

}  // namespace transliterate
