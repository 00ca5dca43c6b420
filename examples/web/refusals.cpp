// Replaces the exception runtime in WebAssembly, where exceptions cannot be caught: prints the message and ends the
// program.
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <exception>

extern "C" void* __cxa_allocate_exception(std::size_t bytes) { return std::malloc(bytes); }
extern "C" void __cxa_free_exception(void* memory) { std::free(memory); }
/// All exceptions of the examples derive from std::exception first, so the object begins with it.
extern "C" [[noreturn]] void __cxa_throw(void* thrown, void*, void (*)(void*)) {
  std::fprintf(stderr, "%s\n", static_cast<std::exception*>(thrown)->what());
  std::abort();
}
