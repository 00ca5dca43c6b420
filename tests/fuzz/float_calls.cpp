// Tensors of a single scalar type, with type-erased mods.
#include "families.h"
#include "tensor_call.h"

namespace fuzz {

void tensors_float(Case& c) {
  TensorCall<float> call(c);
  with_random_mods(c, call.sizes(), [&](const auto& mods, const Meanings& meanings) { call.make(mods, meanings); });
}

}  // namespace fuzz
