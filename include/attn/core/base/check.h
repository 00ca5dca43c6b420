// Argument checks whose messages contain the offending values.
#pragma once

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdio>
#include <initializer_list>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>

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

/// A piece of a message: text, a number or a shape. All kinds share one type, so that a check compiles to little more
/// than a comparison. A piece borrows the data it is made from.
class Piece {
 public:
  Piece(std::string_view text) : kind_(kText), data_(text.data()), integer_(static_cast<Index>(text.size())) {}
  Piece(const char* text) : Piece(std::string_view(text)) {}
  Piece(const std::string& text) : Piece(std::string_view(text)) {}
  template <std::integral Number>
  Piece(Number number) : kind_(kInteger), integer_(static_cast<Index>(number)) {}
  template <std::floating_point Number>
  Piece(Number number) : kind_(kReal), real_(number) {}
  Piece(std::span<const Index> shape)
      : kind_(kShape), data_(shape.data()), integer_(static_cast<Index>(shape.size())) {}
  template <std::size_t rank>
  Piece(const std::array<Index, rank>& shape) : Piece(std::span<const Index>(shape)) {}

  void append_to(std::string& message) const {
    switch (kind_) {
      case kText:
        message.append(static_cast<const char*>(data_), static_cast<std::size_t>(integer_));
        break;
      case kInteger:
        message += std::to_string(integer_);
        break;
      case kReal: {
        char digits[32];
        std::snprintf(digits, sizeof(digits), "%Lg", real_);
        message += digits;
        break;
      }
      case kShape:
        for (Index i = 0; i < integer_; ++i)
          message.append(i == 0 ? "(" : ", ").append(std::to_string(static_cast<const Index*>(data_)[i]));
        message += ')';
    }
  }

 private:
  enum Kind { kText, kInteger, kReal, kShape };

  Kind kind_;
  const void* data_ = nullptr;
  Index integer_ = 0;  // the number, or the length of the text or shape
  long double real_ = 0;
};

/// Concatenates the pieces.
inline std::string joined(std::initializer_list<Piece> pieces) {
  std::string message;
  for (const Piece& piece : pieces) piece.append_to(message);
  return message;
}

/// Raises std::invalid_argument("attn: " followed by the pieces); see raise().
[[noreturn]] inline void refuse(std::initializer_list<Piece> pieces) {
  raise(std::invalid_argument("attn: " + joined(pieces)));
}

template <class... Pieces>
[[noreturn, gnu::cold, gnu::noinline]] void refuse_with(const Pieces&... pieces) {
  refuse({Piece(pieces)...});
}

/// Calls refuse() unless `condition` holds. The pieces are evaluated even if it holds, so a string that must first be
/// built belongs inside an `if`, with refuse(). Always inlined, so that a check that holds costs one comparison: as
/// function calls, the checks took a tenth of the time of a small attention() call.
template <class... Pieces>
[[gnu::always_inline]] inline void require(bool condition, const Pieces&... pieces) {
  if (!condition) [[unlikely]]
    refuse_with(pieces...);
}

}  // namespace attn::detail
