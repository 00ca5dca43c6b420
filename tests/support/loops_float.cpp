// The loops and kernels of float, once for all tests.
#include "attn/instantiate_float.h"
