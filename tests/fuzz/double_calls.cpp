#include "families.h"
#include "tensor_call.h"

namespace fuzz {

void tensors_double(Case& c) {
  TensorCall<double> call(c, 5e5);  // the long double oracle takes ten times as long
  with_random_mods(c, call.sizes(), [&](const auto& mods, const Meanings& meanings) { call.make(mods, meanings); });
}

void tensors_long_double(Case& c) {
  TensorCall<long double> call(c, 3e5);
  if (c.random.percent(20)) return call.into(attn::Mods<>(), {});
  with_all_mods(c, call.sizes(), [&](const auto& mods, const Meanings& meanings) { call.make(mods, meanings); });
}

}  // namespace fuzz
