// The loops and kernels of all scalars compiled here, for units that were promised them.
#pragma once

// Whoever calls attention() compiles its loops and kernels, for each scalar that is used: most of what such a unit
// takes to compile. A program of many units has them compiled once, if it defines ATTN_EXTERN_TEMPLATES for all its
// units and includes this header in one of them; or only the headers of the scalars that it uses, each in one unit, the
// same or another.
//
// A program that includes none, or not that of a scalar it uses, is not linked:
//
//     undefined reference to `void attn::detail::built_for_generic::flash<double,
//         attn::detail::include_attn_instantiate_h_in_one_unit>(…)'
//
// for double, say: attn/instantiate_double.h is missing. Behind built_for_ are the flags of the unit that asks; that of
// the loops must be compiled with the same.
#include "attn/instantiate_double.h"
#include "attn/instantiate_float.h"
#include "attn/instantiate_long_double.h"
