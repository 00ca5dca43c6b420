// Do two tensors share memory? A call that writes over what it still reads would give wrong numbers without a word.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <utility>

#include "attn/detail/tensor/dtype_view.h"

namespace attn::detail {

/// The bytes that a tensor reaches over, with gaps. Empty if it has no elements.
struct Bytes {
  std::uintptr_t begin = 0, end = 0;
};

/// A tensor as bytes.
struct Footprint {
  const void* data;
  Index number;  // bytes of an element
  Shape<4> shape, strides;

  template <class T>
  Footprint(const DTypeView<T>& t)
      : data(t.data()), number(t.size_of_number()), shape(t.shape()), strides(t.strides()) {}
  template <class T>
  Footprint(const TensorView<T, 3>& t)
      : data(t.data()),
        number(sizeof(T)),
        shape{1, t.dim(0), t.dim(1), t.dim(2)},
        strides{0, t.stride(0), t.stride(1), t.stride(2)} {}

  Bytes bytes() const {
    Index low = 0, high = number;
    for (std::size_t i = 0; i < 4; ++i) {
      if (shape[i] == 0 || !data) return {};
      const Index reach = (shape[i] - 1) * strides[i] * number;
      (reach < 0 ? low : high) += reach;
    }
    const auto first = reinterpret_cast<std::uintptr_t>(data);
    return {first + static_cast<std::uintptr_t>(low), first + static_cast<std::uintptr_t>(high)};
  }

  /// Is the byte at `address` one of an element? True only if it is; false may be wrong where rows lie across each
  /// other, as windows over a signal do.
  bool holds(std::uintptr_t address) const {
    const Bytes reach = bytes();
    if (address < reach.begin || address >= reach.end) return false;
    std::array<std::pair<std::uintptr_t, std::uintptr_t>, 4> steps;  // bytes, and how many
    for (std::size_t i = 0; i < 4; ++i)
      steps[i] = {static_cast<std::uintptr_t>(std::max(strides[i], -strides[i]) * number),
                  static_cast<std::uintptr_t>(shape[i] - 1)};
    std::sort(steps.rbegin(), steps.rend());
    std::uintptr_t rest = address - reach.begin;
    for (const auto& [step, count] : steps)
      if (step > 0) rest -= std::min(rest / step, count) * step;
    return rest < static_cast<std::uintptr_t>(number);
  }
};

/// Has an end of one tensor memory of the other? So it is where one piece of memory is used twice, wholly or in part.
/// Tensors that lie between each other, such as query, key and value of one projection, share nothing.
[[gnu::cold, gnu::noinline]] inline bool share_an_end(const Footprint& a, const Footprint& b) {
  const Bytes in_a = a.bytes(), in_b = b.bytes();
  return a.holds(in_b.begin) || a.holds(in_b.end - 1) || b.holds(in_a.begin) || b.holds(in_a.end - 1);
}

inline bool overlap(const Footprint& a, const Footprint& b) {
  const Bytes in_a = a.bytes(), in_b = b.bytes();
  return in_a.begin < in_b.end && in_b.begin < in_a.end && share_an_end(a, b);
}

/// Refuses to write to `out` where `in` has memory.
inline void check_apart(const Footprint& out, const char* out_name, const Footprint& in, const char* in_name) {
  require(!overlap(out, in), out_name, " of shape ", out.shape, " overlaps ", in_name, " of shape ", in.shape,
          " in memory; give ", out_name, " memory of its own");
}

}  // namespace attn::detail
