// Throwing and catching, in programs with and without exceptions.
#pragma once

#include "attn/refusal.h"
#include "attn/types.h"

namespace attn::detail {

/// Throws the exception; without exceptions, passes its message to the handler of set_refusal_handler().
template <class Exception>
[[noreturn]] void raise(const Exception& exception) {
#ifdef ATTN_NO_EXCEPTIONS
  call_refusal_handler(exception.what());
#else
  throw exception;
#endif
}

/// Calls run(). If it throws, calls caught(), in which std::current_exception() is the exception.
template <class Run, class Caught>
void run_and_catch(const Run& run, [[maybe_unused]] const Caught& caught) {
#ifdef __cpp_exceptions
  try {
    run();
  } catch (...) {
    caught();
  }
#else
  run();
#endif
}

}  // namespace attn::detail
