// Compiles the loops and kernels for all scalar types, for programs that define ATTN_EXTERN_TEMPLATES.
#pragma once

// A translation unit that calls attention() compiles loops and kernels for each scalar type that it uses, which is most
// of its compile time. A program of many units compiles them once if it defines ATTN_EXTERN_TEMPLATES in all its units
// and includes this header in one of them. Instead of this header, it may include only the headers of the scalar types
// that it uses, each in exactly one unit; different headers may be in different units.
//
// If no unit includes the header of a scalar type that the program uses, the program does not link. Without
// attn/instantiate_double.h, for example:
//
//     undefined reference to `void attn::detail::built_for_generic::run_passes<double,
//         attn::detail::include_attn_instantiate_h_in_one_unit>(…)'
//
// The part of the name after built_for_ stands for the architecture flags of the calling unit; the unit that includes
// this header must be compiled with the same flags.
#include "attn/instantiate_double.h"
#include "attn/instantiate_float.h"
#include "attn/instantiate_long_double.h"
