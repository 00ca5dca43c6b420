// The definition, which includes a kernel.
#pragma once

#include "attn/detail/kernels/tile_kernels.h"
