// Generates text, token by token.
#pragma once

#include <functional>
#include <string_view>

#include "sampler.h"
#include "tokenizer.h"
#include "transformer.h"

namespace tinystories {

struct GenerateOptions {
  Index steps = 0;              // tokens to feed, including the prompt
  bool token_by_token = false;  // feed the prompt token by token, not at once
  attn::Options attention = {};
};

/// Statistics of a generation.
struct Statistics {
  Tokens tokens = {};                 // all that were fed
  Index prompt_tokens = 0;            // including BOS
  Index new_tokens = 0;               // without the BOS that ends the text
  double seconds_to_first_token = 0;  // processing the prompt and choosing the first new token
  double seconds_after_it = 0;
};

/// Receives the text as it is generated, the prompt first, in one call per token.
using Write = std::function<void(std::string_view)>;

/// Continues the prompt, an encoded text, until BOS is chosen or the steps are used up. The last token that is chosen
/// is written, but not fed.
/// @param context  empty, with capacity for all steps.
/// @throws std::invalid_argument if the prompt has more tokens than there are steps.
Statistics generate(const Transformer& network, const Tokenizer& tokenizer, Sampler& sampler, const Tokens& prompt,
                    Context& context, const GenerateOptions& options, const Write& write);

}  // namespace tinystories
