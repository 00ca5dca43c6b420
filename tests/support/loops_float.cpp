// The loops and kernels for float, compiled once for all tests.
#include "attn/instantiate_float.h"
