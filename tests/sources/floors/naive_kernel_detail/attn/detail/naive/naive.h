// The definition, which reads a kernel.
#pragma once

#include "attn/detail/kernels/tile_kernels.h"
