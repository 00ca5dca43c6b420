// A training run, from data to results.
#pragma once

#include "options.h"

namespace translation {

/// Trains, saves, translates the held-back pairs, and writes all requested files. Progress goes to standard error; the
/// last line of standard output has the results. Returns the program's exit code, which is not 0 after Ctrl-C.
int learn(const Options& options);

}  // namespace translation
