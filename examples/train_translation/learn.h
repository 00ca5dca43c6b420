// A training run from data to figures.
#pragma once

#include "options.h"

namespace translation {

/// Learns, saves, translates what was held back, and writes all that was asked for. Progress goes to standard error;
/// the last line of standard output has the figures. Returns the program's exit code, which is not 0 after Ctrl-C.
int learn(const Options& options);

}  // namespace translation
