# Cross-compiles for 32-bit x86 with Debian's g++-i686-linux-gnu.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR i686)

set(CMAKE_CXX_COMPILER i686-linux-gnu-g++ CACHE STRING
    "Compiler; clang++ works too, because it can target this processor")
# For clang, which uses the headers and libraries of g++.
set(CMAKE_CXX_COMPILER_TARGET i686-linux-gnu)

# Without these flags, floats are computed with the excess precision of the x87.
set(CMAKE_CXX_FLAGS_INIT "-msse2 -mfpmath=sse")

# The processor runs the programs, through the compiler's own loader, if the kernel supports 32-bit programs. Otherwise
# qemu-user-static does, which takes 50 to 500 times as long, because it emulates AVX2 too.
set(root /usr/i686-linux-gnu)
execute_process(COMMAND ${root}/lib/ld-linux.so.2 --version RESULT_VARIABLE result OUTPUT_QUIET ERROR_QUIET)
if(result EQUAL 0)
  set(CMAKE_CROSSCOMPILING_EMULATOR ${root}/lib/ld-linux.so.2 --library-path ${root}/lib)
else()
  set(CMAKE_CROSSCOMPILING_EMULATOR qemu-i386-static -L ${root})
endif()
unset(root)
