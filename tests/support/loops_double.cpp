// The loops and kernels for double, compiled once for all tests.
#include "attn/instantiate_double.h"
