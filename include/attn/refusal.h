// The handler that refused calls invoke in programs without exceptions.
#pragma once

#include <atomic>
#include <cstdio>
#include <cstdlib>

namespace attn {

/// Called with the message that an exception would have. It must not return: it ends the program. Several threads may
/// call it at the same time.
using RefusalHandler = void (*)(const char* message);

namespace detail {

inline std::atomic<RefusalHandler> refusal_handler{nullptr};

}  // namespace detail

/// Sets the handler that a refused call invokes in programs without exceptions (-fno-exceptions, or ATTN_NO_EXCEPTIONS
/// is defined), and returns the previous handler. If the handler is null, as it is initially, the call prints the
/// message on standard error and calls std::abort(). Programs with exceptions never call the handler.
inline RefusalHandler set_refusal_handler(RefusalHandler handler) noexcept {
  return detail::refusal_handler.exchange(handler);
}

namespace detail {

[[noreturn, gnu::cold]] inline void call_refusal_handler(const char* message) {
  if (const RefusalHandler handler = refusal_handler.load()) handler(message);
  std::fprintf(stderr, "%s\n", message);
  std::abort();
}

}  // namespace detail

}  // namespace attn
