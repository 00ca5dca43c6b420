// Whether the machine has the memory that a model takes.
#pragma once

#include <unistd.h>

#include <stdexcept>

#include "decimals.h"

namespace training {

/// Refuses sizes that the machine could not hold before memory is asked for, because Linux gives what it does not have,
/// and ends the program when that is used.
/// @throws std::invalid_argument if the machine has less memory than that
inline void require_memory(double bytes) {
  const double all = static_cast<double>(::sysconf(_SC_PHYS_PAGES)) * static_cast<double>(::sysconf(_SC_PAGE_SIZE));
  if (bytes <= all) return;
  throw std::invalid_argument("a model of these sizes takes " + fixed(bytes / 1e9, 1) + " GB, this machine has " +
                              fixed(all / 1e9, 1));
}

}  // namespace training
