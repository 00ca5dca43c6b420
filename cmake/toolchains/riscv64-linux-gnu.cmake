# For 64-bit RISC-V with Debian's cross compiler, g++-riscv64-linux-gnu; programs run under qemu-user-static here.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR riscv64)

set(CMAKE_CXX_COMPILER riscv64-linux-gnu-g++ CACHE STRING "clang++ has the other processor built in")
# For clang, which finds headers and libraries beside g++'s.
set(CMAKE_CXX_COMPILER_TARGET riscv64-linux-gnu)

set(CMAKE_CROSSCOMPILING_EMULATOR qemu-riscv64-static -L /usr/riscv64-linux-gnu)
