// Layer 3: the definition, which reads a kernel of the details.
#pragma once

#include "attn/detail/kernels.h"
