// A trained model at work.
#pragma once

#include "options.h"
#include "translate.h"

namespace translation {

/// @throws std::invalid_argument if a sentence of --translate is not UTF-8 or far too long.
void check_sentences(const Options& options);

/// Prints the translations that were asked for to standard output, a line each, and draws the map. Characters that the
/// model does not know are named on standard error.
void print_translations(const Translator& translator, const Options& options);

}  // namespace translation
