// How well a network predicts a text.
#pragma once

#include "tokenizer.h"
#include "transformer.h"

namespace tinystories {

/// Returns the perplexity of a text: e to the mean of -log p of each token after BOS, given the tokens before it, which
/// attend to each other over a cache as tokens that are generated do. A text of more than `context.capacity()` tokens
/// is split into parts of that length, each after its own BOS.
/// @param tokens  BOS and the tokens of the text.
/// @throws std::invalid_argument if there is no token after BOS.
double perplexity(const Transformer& network, const Tokens& tokens, Context& context, const attn::Options& options);

}  // namespace tinystories
