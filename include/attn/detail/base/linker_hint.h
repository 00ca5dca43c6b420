// Type whose name, in a linker error, says how to fix the error.
#pragma once

namespace attn::detail {

/// Part of the names of the functions that attn/instantiate.h compiles, and so of "undefined reference to …".
struct include_attn_instantiate_h_in_one_unit;

}  // namespace attn::detail
