// with: -ffast-math
// expect: attn: -ffast-math takes infinity out of masks and the rounding out of exponentials; compile without it
#include <attn/attn.h>
