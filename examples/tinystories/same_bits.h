// Computes the logits of a text by several methods, which all give the same bits with attn::Options::row_invariant.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tokenizer.h"
#include "transformer.h"

namespace tinystories {

/// The logits of all tokens of a text, computed by one method.
struct LogitsOfMethod {
  std::string name;
  std::uint64_t hash;  // of their bits (FNV-1a)
  Index differing;     // rows whose bits differ from those of the first method
};

/// Computes the logits of all tokens of a text: in one prompt, in chunks, token by token, from pages, in a batch with
/// other texts, and as drafts that are verified.
/// @throws std::invalid_argument if there are no tokens.
std::vector<LogitsOfMethod> logits_of_all_methods(const Transformer& network, const Tokens& tokens,
                                                  const attn::Options& options);

}  // namespace tinystories
