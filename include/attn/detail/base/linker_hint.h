// A hint for whom the linker does not find what attn/instantiate.h compiles.
#pragma once

namespace attn::detail {

/// Stands in the names of those functions, and so in "undefined reference to …".
struct include_attn_instantiate_h_in_one_unit;

}  // namespace attn::detail
