// Generates text with drafts: the network verifies a tree of guessed tokens in one call.
#pragma once

#include "drafter.h"
#include "generate.h"

namespace speculative {

using tinystories::Context;
using tinystories::Sampler;
using tinystories::Tokenizer;
using tinystories::Tokens;
using tinystories::Transformer;

struct Options {
  Index steps = 0;   // tokens to process, including the prompt
  Index nodes = 8;   // of a tree of drafts, including the last token of the text
  double least = 0;  // the lowest estimated probability of a node
  attn::Options attention = {};
};

/// Statistics of a generation.
struct Statistics {
  Tokens tokens = {};    // all that were processed, as without drafts
  Index new_tokens = 0;  // without the BOS that ends the text
  Index calls = 0;       // of the network, after the prompt
  double seconds = 0;    // after the first new token, which the prompt gives
};

/// Continues the prompt as tinystories::generate() does, and writes the same text: the sampler draws the same tokens in
/// the same order from the network's logits, and a draft only saves a call if it guessed the token that is drawn
/// (Leviathan et al. 2023; trees: Miao et al. 2024). Logits agree up to rounding, and in all bits with
/// `.attention.row_invariant`. The drafter learns the text as it is written.
/// @param context  empty, with one sequence and capacity for all steps and a tree.
/// @throws std::invalid_argument if the prompt has more tokens than there are steps.
Statistics speculate(const Transformer& network, const Tokenizer& tokenizer, Sampler& sampler, const Tokens& prompt,
                     Context& context, Drafter& drafter, const Options& options, const tinystories::Write& write);

}  // namespace speculative
