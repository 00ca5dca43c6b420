// with: -U__GNUC__
// expect: attn: the kernels are written in the vector extension of g++ and clang; compile with one of them
#include <attn/attn.h>
