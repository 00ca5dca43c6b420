// with: -fno-exceptions
// expect: attn reports wrong arguments as exceptions: compile without -fno-exceptions
#include <attn/attn.h>
