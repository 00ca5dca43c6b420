# Compiles for WebAssembly with SIMD128 and WASI, with Debian's clang-19, lld-19, wasi-libc, libc++-19-dev-wasm32 and
# libclang-rt-19-dev-wasm32. Programs run in Node.js.
set(CMAKE_SYSTEM_NAME Generic)
set(CMAKE_SYSTEM_PROCESSOR wasm32)

set(CMAKE_CXX_COMPILER clang++-19 CACHE STRING "Compiler")
set(CMAKE_CXX_COMPILER_TARGET wasm32-wasi)
# The stack has 64 KiB, of which Eigen's products would use more.
set(CMAKE_CXX_FLAGS_INIT "-msimd128 -fno-exceptions -fno-rtti -DEIGEN_STACK_ALLOCATION_LIMIT=8192")
# With the stack first in memory, a stack overflow is an error instead of overwriting data.
set(CMAKE_EXE_LINKER_FLAGS_INIT -Wl,--stack-first)
# GoogleTest prints numbers of type long double.
set(CMAKE_CXX_STANDARD_LIBRARIES_INIT -lc-printscan-long-double)

set(CMAKE_CROSSCOMPILING_EMULATOR node --no-warnings ${CMAKE_CURRENT_LIST_DIR}/wasi.mjs)
