// Contestants from other libraries, available if the library was found at configure time.
#pragma once

#include <stdexcept>

#include "contestants.h"

namespace bench {

#if defined(ATTN_BENCH_ONEDNN)

/// oneDNN's matmul and softmax over blocks of queries, for float, full and causal.
Contestant<float> onednn();

inline void enter_rivals() {
  const Contestant<float> rival = onednn();
  enter(rival);
  // Results of both types share their columns, so a contestant of one type needs one of the same name in the other.
  enter(Contestant<double>{rival.name, nullptr,
                           [](const Workload&, const attn::Options&) -> std::string_view { return "float only"; }});
}

#else

inline void enter_rivals() {
  throw std::runtime_error(
      "--rivals needs oneDNN 2, which was not found when this was configured: install libdnnl-dev, then configure and "
      "build again");
}

#endif

}  // namespace bench
