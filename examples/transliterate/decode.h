// From source tokens to target tokens.
#pragma once

#include <vector>

#include <attn/attn.h>

#include "transformer.h"
#include "vocabulary.h"

namespace transliterate {

/// A target with the natural logarithm of the probability of each of its tokens given those before it. `tokens` has no
/// <s> and no </s>; `log_probs` has one number more than `tokens` when the end itself was scored, and it is the last.
struct Scored {
  Tokens tokens;
  std::vector<float> log_probs;

  float total() const;
};

/// The longest target; longer ones are cut off. No name is so long, but a model that never says </s> could go on for
/// ever.
constexpr std::size_t kMaxTargetLength = 256;

/// Takes the likeliest next token, again and again until </s>, for a padded batch of sources.
///
/// @param prefix  with what every target begins; it is scored as well.
std::vector<Scored> greedy(const Transformer& network, const std::vector<Tokens>& sources, const Tokens& prefix,
                           attn::Path path);

/// Scores the given targets, </s> included; one target per source.
std::vector<Scored> score(const Transformer& network, const std::vector<Tokens>& sources,
                          const std::vector<Tokens>& targets, attn::Path path);

/// What the last decoder layer looks at while it writes `target` and its </s>: (heads, target length + 1, source
/// length). Row t is what it saw when it chose token t; each row sums to 1.
attn::Tensor<float, 3> attention_map(const Transformer& network, const Tokens& source, const Tokens& target,
                                     attn::Path path);

}  // namespace transliterate
