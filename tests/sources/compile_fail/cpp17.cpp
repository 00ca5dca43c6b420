// with: -std=c++17
// expect: attn needs C++20: compile with -std=c++20
#include <attn/attn.h>
