// with: -U__GNUC__
// expect: attn: the kernels use the vector extensions of g++ and clang; compile with one of them
#include <attn/attn.h>
