// The loops and kernels for long double, compiled once for all tests.
#include "attn/instantiate_long_double.h"
