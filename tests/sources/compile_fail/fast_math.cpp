// with: -ffast-math
// expect: attn: -ffast-math and -ffinite-math-only break masks (infinity) and exponentials (rounding): remove them
#include <attn/attn.h>
