# Cross-compiles for 64-bit ARM with Debian's g++-aarch64-linux-gnu; programs run under qemu-user-static.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)

set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++ CACHE STRING
    "Compiler; clang++ works too, because it can target this processor")
# For clang, which uses the headers and libraries of g++.
set(CMAKE_CXX_COMPILER_TARGET aarch64-linux-gnu)

# Suppresses g++'s notes about arguments that are passed differently than before version 10.
set(CMAKE_CXX_FLAGS_INIT -Wno-psabi)

set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64-static -L /usr/aarch64-linux-gnu)
