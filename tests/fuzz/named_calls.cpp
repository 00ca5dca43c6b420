// Every mod with its user-visible type.
#include "families.h"
#include "support/any_rows.h"
#include "tensor_call.h"

namespace fuzz {

void named_mods(Case& c) {
  TensorCall<float> call(c);
  const auto row = attn::test::any_row<float>(setting_of(c, call.sizes()));
  call.into(row.mod, {{row.name, row.meaning}});
}

}  // namespace fuzz
