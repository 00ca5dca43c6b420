# For 64-bit ARM with Debian's cross compiler, g++-aarch64-linux-gnu; programs run under qemu-user-static here.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)

set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++ CACHE STRING "clang++ has the other processor built in")
# For clang, which finds headers and libraries beside g++'s.
set(CMAKE_CXX_COMPILER_TARGET aarch64-linux-gnu)

# No notes of g++ that it passes some arguments as it did before version 10.
set(CMAKE_CXX_FLAGS_INIT -Wno-psabi)

set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64-static -L /usr/aarch64-linux-gnu)
