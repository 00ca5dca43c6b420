// Compiles the loops and kernels of all scalars, for the units of a program that define ATTN_EXTERN_TEMPLATES.
#pragma once

// A unit that calls attention() compiles loops and kernels for each scalar that it uses, which is most of its compile
// time. A program of many units compiles them once if it defines ATTN_EXTERN_TEMPLATES for all its units and includes
// this header in one of them. Instead of this header, it may include those of the scalars that it uses, each in one
// unit, the same or another.
//
// If such a header is missing, the program does not link. Without attn/instantiate_double.h, for example:
//
//     undefined reference to `void attn::detail::built_for_generic::run_passes<double,
//         attn::detail::include_attn_instantiate_h_in_one_unit>(…)'
//
// The name behind built_for_ stands for the architecture flags of the unit that calls; the unit that includes this
// header must have the same flags.
#include "attn/instantiate_double.h"
#include "attn/instantiate_float.h"
#include "attn/instantiate_long_double.h"
