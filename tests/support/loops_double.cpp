// The loops and kernels of double, once for all tests.
#include "attn/instantiate_double.h"
