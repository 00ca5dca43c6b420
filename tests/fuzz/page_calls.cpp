// Calls over pages.
#include "families.h"
#include "page_call.h"

namespace fuzz {

void paged_caches(Case& c) {
  const Index kind = c.random.from(0, 9);
  if (kind < 5) return PagedHistory<float, float>(c).run();
  if (kind < 7) return PagedHistory<Eigen::bfloat16, float>(c).run();
  PagedHistory<std::int8_t, float>(c).run();
}

void pages(Case& c) {
  if (c.random.percent(70)) return own_pages<float>(c);
  own_pages<Eigen::half>(c);
}

}  // namespace fuzz
