// Calls with select(), which gather listed keys of tensors and of pages.
#include "families.h"
#include "page_call.h"

namespace fuzz {

void listed_keys(Case& c) {
  const auto run = [&](auto&& call) {
    with_listed_mods(c, call.sizes(), [&](const auto& mods, const Meanings& meanings) { call.into(mods, meanings); });
  };
  if (c.random.percent(60)) return run(TensorCall<float>(c));
  run(TensorCall<Eigen::bfloat16>(c));
}

void listed_pages(Case& c) {
  const Index kind = c.random.from(0, 9);
  if (kind < 4) return own_pages<float, true>(c);
  if (kind < 7) return PagedHistory<Eigen::bfloat16, Eigen::bfloat16, true>(c).run();
  PagedHistory<std::int8_t, float, true>(c).run();
}

}  // namespace fuzz
