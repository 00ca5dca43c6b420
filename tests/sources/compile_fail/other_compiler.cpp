// with: -U__GNUC__
// with: -U__clang__
// expect: attn uses the vector extensions of g++ and clang: compile with one of them (on Windows: clang-cl or g++)
#include <attn/attn.h>
