// What a compiler must be told before it reads anything else.
#pragma once

#if __cplusplus < 202002L
#error "attn needs C++20: compile with -std=c++20"
#elif !defined(__cpp_exceptions)
#error "attn reports wrong arguments as exceptions: compile without -fno-exceptions"
#endif
