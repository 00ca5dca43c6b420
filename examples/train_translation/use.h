// A trained model at work.
#pragma once

#include "options.h"
#include "translate.h"

namespace translation {

/// Checks the sentences of --translate.
/// @throws std::invalid_argument if one is not UTF-8 or far too long, or if --map is to be drawn of a first one without
/// characters.
void check_sentences(const Options& options);

/// Prints the translations of --translate to standard output, a line each, and draws the map. Characters that the model
/// does not know are named on standard error.
void print_translations(const Translator& translator, const Options& options);

/// Does what --model asks for: prints the translations of --translate, or those of --translate-file. A line there that
/// is no sentence gives an empty one, and is named on standard error. Returns the program's exit code, which is then 1.
int use(const Translator& translator, const Options& options);

}  // namespace translation
