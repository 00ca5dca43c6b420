// Checks that the machine has enough memory for a model.
#pragma once

#include <unistd.h>

#include <stdexcept>

#include "decimals.h"

namespace training {

/// Rejects sizes that exceed the machine's memory before they are allocated: Linux grants such allocations, and kills
/// the program when it uses them. If the system does not report its memory (WASI), nothing is rejected.
/// @throws std::invalid_argument if the machine has less memory than `bytes`
inline void require_memory(double bytes) {
  const double all = static_cast<double>(::sysconf(_SC_PHYS_PAGES)) * static_cast<double>(::sysconf(_SC_PAGE_SIZE));
  if (all < 0 || bytes <= all) return;
  throw std::invalid_argument("a model of these sizes takes " + fixed(bytes / 1e9, 1) + " GB, but this machine has " +
                              fixed(all / 1e9, 1));
}

}  // namespace training
