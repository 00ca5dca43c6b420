// Every mod in a type of its own, as users write them.
#include "families.h"
#include "tensor_call.h"

namespace fuzz {

void named_mods(Case& c) {
  TensorCall<float> call(c);
  const Index kind = c.random.from(0, kMasks + kScores);
  const auto make = [&](const auto& mod, const Meaning& meaning) { call.into(mod, {meaning}); };
  if (kind < kMasks) return with_mask(c, kind, call.sizes(), make);
  if (kind < kMasks + kScores) return with_score(c, kind - kMasks, call.sizes(), make);
  const auto sinks = random_sinks(c.random, call.sizes().heads);
  call.into(attn::sinks(sinks.first), {sinks.second});
}

}  // namespace fuzz
