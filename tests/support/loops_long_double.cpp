// The loops and kernels of long double, once for all tests.
#include "attn/instantiate_long_double.h"
