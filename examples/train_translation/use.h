// A trained model at work.
#pragma once

#include "options.h"
#include "translate.h"

namespace translation {

/// @throws std::invalid_argument if a sentence of --translate is not UTF-8 or far too long, or nothing is in the first
/// one, whose --map is to be drawn.
void check_sentences(const Options& options);

/// Prints the translations of --translate to standard output, a line each, and draws the map. Characters that the model
/// does not know are named on standard error.
void print_translations(const Translator& translator, const Options& options);

/// What --model asks for: the same, or the translations of --translate-file. A line there that is no sentence becomes
/// an empty one, and is named on standard error. Returns the program's exit code, which is 1 then.
int use(const Translator& translator, const Options& options);

}  // namespace translation
