// The full-precision values of 16-bit outputs, before they were rounded.
#pragma once

#include <cstring>

#include "attn/core/flash/call_tensors.h"
#include "attn/core/tensor/arguments.h"

namespace attn::detail::inline ATTN_BUILT_FOR {

/// Rounds `count` values to 16 bits, in memory order.
template <class T, class Number>
void round_numbers(const T* from, Index count, Number* to, const Options& options) {
  constexpr Index kPiece = 1 << 14;
  const KernelFamily<T>& family = kernel_family<T>(vectors_of(isa_of(options)));
  const Workers workers({static_cast<double>(count)}, options.executor);
  workers.run(ceil_div(count, kPiece), [&](Index piece, int) {
    const Index first = piece * kPiece, size = std::min(kPiece, count - first);
    family.unpack_rows(from + first, 1, size, {reinterpret_cast<std::byte*>(to + first), dtype_of<Number>, size, 1});
  });
}

/// Calls run(numbers) with memory for the unrounded output, in the output's memory order, or with the output itself if
/// it is not rounded.
template <class T, class Out, class Run>
void with_unrounded_output(Out& out, const Options& options, const Run& run) {
  if constexpr (is_rounded<Out>) {
    T* const numbers = DigitsOf::get(out)->make_for_overwrite(out.size());
    run(numbers);
    round_numbers(numbers, out.size(), out.data(), options);
  } else {
    run(out.data());
  }
}

/// The unrounded values of an output; null if they are not known, or if the output has been written to since and no
/// longer matches them.
template <class T, class Out>
const T* unrounded_values(const Out& out) {
  if constexpr (is_rounded<const Out>) {
    using Number = typename Traits<Out>::Scalar;
    const auto& digits = *DigitsOf::get(out);
    if (digits.data() == nullptr || digits.size() != out.size()) return nullptr;
    constexpr Index kPiece = 4096;
    Array<Number, kPiece> piece;
    const KernelFamily<T>& family = kernel_family<T>(vectors_of(default_isa()));
    for (Index first = 0; first < out.size(); first += kPiece) {
      const Index size = std::min(kPiece, out.size() - first);
      family.unpack_rows(digits.data() + first, 1, size,
                         {reinterpret_cast<std::byte*>(&piece[0]), dtype_of<Number>, size, 1});
      if (std::memcmp(&piece[0], out.data() + first, static_cast<std::size_t>(size) * sizeof(Number)) != 0)
        return nullptr;
    }
    return digits.data();
  } else {
    return nullptr;
  }
}

/// An output (batch, heads, q_len, v_dim) before rounding, or as it is if its unrounded values are not known.
template <class T, class Out>
DTypeView<const T> before_rounding(const Out& out) {
  const auto rounded = as_rank4(view(out));
  if (const T* const numbers = unrounded_values<T>(out))
    return TensorView<const T, 4>(numbers, rounded.shape(), rounded.strides());
  return rounded;
}

}  // namespace attn::detail::inline ATTN_BUILT_FOR
