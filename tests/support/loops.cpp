// The loops and kernels, once for all tests.
#include "attn/instantiate.h"
