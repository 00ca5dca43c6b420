# Cross-compiles for 64-bit Windows with Debian's g++-mingw-w64-x86-64-posix.
set(CMAKE_SYSTEM_NAME Windows)
set(CMAKE_SYSTEM_PROCESSOR x86_64)

# Its other variant, win32, has no std::thread.
set(CMAKE_CXX_COMPILER x86_64-w64-mingw32-g++-posix CACHE STRING "Compiler")

# The run-time libraries are linked into each program, because Wine would not find them.
set(CMAKE_EXE_LINKER_FLAGS_INIT -static)

# The variable stops Wine from printing its own diagnostics.
set(CMAKE_CROSSCOMPILING_EMULATOR ${CMAKE_COMMAND} -E env WINEDEBUG=-all wine)
