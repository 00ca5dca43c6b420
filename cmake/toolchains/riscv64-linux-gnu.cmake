# Cross-compiles for 64-bit RISC-V with Debian's g++-riscv64-linux-gnu; programs run under qemu-user-static.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR riscv64)

set(CMAKE_CXX_COMPILER riscv64-linux-gnu-g++ CACHE STRING
    "Compiler; clang++ works too, because it can target this processor")
# For clang, which uses the headers and libraries of g++.
set(CMAKE_CXX_COMPILER_TARGET riscv64-linux-gnu)

set(CMAKE_CROSSCOMPILING_EMULATOR qemu-riscv64-static -L /usr/riscv64-linux-gnu)
