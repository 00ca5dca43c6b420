# Cross-compiles for 32-bit ARM (armv7) with Debian's g++-arm-linux-gnueabihf; programs run under qemu-user-static.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR armv7)

set(CMAKE_CXX_COMPILER arm-linux-gnueabihf-g++ CACHE STRING
    "Compiler; clang++ works too, because it can target this processor")
# For clang, which uses the headers and libraries of g++.
set(CMAKE_CXX_COMPILER_TARGET arm-linux-gnueabihf)

# Suppresses g++'s notes about arguments that are passed differently than before version 10.
set(CMAKE_CXX_FLAGS_INIT -Wno-psabi)

set(CMAKE_CROSSCOMPILING_EMULATOR qemu-arm-static -L /usr/arm-linux-gnueabihf)
