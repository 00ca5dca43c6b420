# Cross-compiles for 32-bit x86 with Debian's g++-i686-linux-gnu; programs run under qemu-user-static, because a 64-bit
# Linux kernel need not support 32-bit programs.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR i686)

set(CMAKE_CXX_COMPILER i686-linux-gnu-g++ CACHE STRING
    "Compiler; clang++ works too, because it can target this processor")
# For clang, which uses the headers and libraries of g++.
set(CMAKE_CXX_COMPILER_TARGET i686-linux-gnu)

# Without these flags, floats are computed with the excess precision of the x87.
set(CMAKE_CXX_FLAGS_INIT "-msse2 -mfpmath=sse")

set(CMAKE_CROSSCOMPILING_EMULATOR qemu-i386-static -L /usr/i686-linux-gnu)
