// What a model takes.
#pragma once

#include <unistd.h>

#include <stdexcept>

#include "decimals.h"

namespace training {

/// Sizes that no machine could hold are found out before memory is asked for: Linux gives what it does not have, and
/// ends the program when it is used.
/// @throws std::invalid_argument if there is not so much memory in the machine
inline void require_memory(double bytes) {
  const double all = static_cast<double>(::sysconf(_SC_PHYS_PAGES)) * static_cast<double>(::sysconf(_SC_PAGE_SIZE));
  if (bytes <= all) return;
  throw std::invalid_argument("a model of these sizes takes " + fixed(bytes / 1e9, 1) + " GB, this machine has " +
                              fixed(all / 1e9, 1));
}

}  // namespace training
