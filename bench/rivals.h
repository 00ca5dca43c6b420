// Contestants from other libraries, each there only where its library was found when the project was configured.
#pragma once

#include <stdexcept>

#include "contestants.h"

namespace bench {

#if defined(ATTN_BENCH_ONEDNN)

/// oneDNN's own products and softmax over blocks of queries, for float, full and causal.
Contestant<float> onednn();

inline void enter_rivals() {
  const Contestant<float> rival = onednn();
  enter(rival);
  // Results of both types share their columns, so a contestant of one type needs a namesake in the other.
  enter(Contestant<double>{rival.name, nullptr,
                           [](const Workload&, const attn::Options&) -> std::string_view { return "float only"; }});
}

#else

inline void enter_rivals() {
  throw std::runtime_error(
      "--rivals takes oneDNN 2, not found when this was configured: install libdnnl-dev, configure, build again");
}

#endif

}  // namespace bench
