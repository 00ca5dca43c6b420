// with: -fno-exceptions
// expect: attn throws exceptions for invalid arguments: compile without -fno-exceptions
#include <attn/attn.h>
