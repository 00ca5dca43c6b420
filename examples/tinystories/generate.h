// Writes a text, token by token.
#pragma once

#include <functional>
#include <string_view>

#include "sampler.h"
#include "tokenizer.h"
#include "transformer.h"

namespace tinystories {

struct GenerateOptions {
  Index steps = 0;              // tokens to feed, those of the prompt included
  bool token_by_token = false;  // whether the prompt is fed so, not at once
  attn::Options attention = {};
};

/// How a generation went.
struct Figures {
  Index prompt_tokens = 0;            // BOS included
  Index new_tokens = 0;               // chosen, without the BOS that ends the text
  double seconds_to_first_token = 0;  // prompt and choice of the first new token
  double seconds_after_it = 0;
};

/// Receives the text as it comes, the prompt first, in one call for each token.
using Write = std::function<void(std::string_view)>;

/// Continues the prompt, an encoded text, until BOS is chosen or all steps are done. The last token that is chosen is
/// written, not fed.
/// @param context  empty, with room for all steps.
/// @throws std::invalid_argument if there are more tokens in the prompt than steps.
Figures generate(const Transformer& network, const Tokenizer& tokenizer, Sampler& sampler, const Tokens& prompt,
                 Context& context, const GenerateOptions& options, const Write& write);

}  // namespace tinystories
