// Translation with a trained model, as the command line requests.
#pragma once

#include "options.h"
#include "translate.h"

namespace translation {

/// Checks the sentences of --translate.
/// @throws std::invalid_argument if one is not UTF-8 or far too long, or if --map is given and the first has no
/// characters.
void check_sentences(const Options& options);

/// Prints the translations of --translate to standard output, one per line, and draws the map. Characters that are not
/// in the vocabulary are listed on standard error.
void print_translations(const Translator& translator, const Options& options);

/// Translates with the model of --model: prints the translations of --translate, or those of --translate-file. An
/// invalid line of the file gives an empty line, and an error on standard error. Returns the program's exit code, which
/// is then 1.
int use(const Translator& translator, const Options& options);

}  // namespace translation
