// A hint for those whose linker cannot find what attn/instantiate.h compiles.
#pragma once

namespace attn::detail {

/// Stands in the names of those functions, and so in "undefined reference to …".
struct include_attn_instantiate_h_in_one_unit;

}  // namespace attn::detail
