// Detects tensors that share memory. A call that overwrites tensors it still reads would silently give wrong results.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <utility>

#include "attn/core/tensor/dtype_view.h"

namespace attn::detail {

/// The address range that a tensor spans, including gaps. Empty if it has no elements.
struct ByteRange {
  std::uintptr_t begin = 0, end = 0;
};

template <std::size_t rank>
ByteRange bytes_of(const void* data, Index number, const std::array<Index, rank>& shape,
                   const std::array<Index, rank>& strides) {
  Index low = 0, high = 1;
  bool is_empty = !data;
  for (std::size_t i = 0; i < rank; ++i) {
    const Index reach = (shape[i] - 1) * strides[i];
    is_empty |= shape[i] == 0;
    (reach < 0 ? low : high) += reach;
  }
  const auto first = reinterpret_cast<std::uintptr_t>(data);
  return is_empty ? ByteRange()
                  : ByteRange{first + static_cast<std::uintptr_t>(low * number),
                              first + static_cast<std::uintptr_t>(high * number)};
}
template <class T>
ByteRange bytes_of(const DTypeView<T>& t) {
  return bytes_of(t.data(), t.size_of_element(), t.shape(), t.strides());
}
template <class T, int kRank>
ByteRange bytes_of(const TensorView<T, kRank>& t) {
  return bytes_of(t.data(), static_cast<Index>(sizeof(T)), t.shape(), t.strides());
}

/// A tensor of any type and rank.
struct Footprint {
  const void* data;
  Index number;      // bytes of an element
  std::size_t rank;  // of the tensor: added leading dimensions have size 1
  Shape<4> shape{1, 1, 1, 1}, strides{};

  template <class T>
  Footprint(const DTypeView<T>& t)
      : data(t.data()), number(t.size_of_element()), rank(4), shape(t.shape()), strides(t.strides()) {}
  template <class T, int kRank>
  Footprint(const TensorView<T, kRank>& t) : data(t.data()), number(sizeof(T)), rank(kRank) {
    static_assert(kRank <= 4);
    std::copy_n(t.shape().begin(), kRank, shape.end() - kRank);
    std::copy_n(t.strides().begin(), kRank, strides.end() - kRank);
  }

  ByteRange bytes() const { return bytes_of(data, number, shape, strides); }
  /// The shape without the added leading dimensions.
  std::span<const Index> own_shape() const { return std::span(shape).last(rank); }

  /// Whether the byte at `address` belongs to an element. A result of true is always right; false may be wrong if rows
  /// overlap, as those of sliding windows over a signal do.
  bool holds(std::uintptr_t address) const {
    const ByteRange reach = bytes();
    if (address < reach.begin || address >= reach.end) return false;
    std::array<std::pair<std::uintptr_t, std::uintptr_t>, 4> steps;  // bytes of a step, number of steps
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

inline ByteRange bytes_of(const Footprint& t) { return t.bytes(); }

/// Refuses to write to `out` if the first or the last byte of one of the tensors is in an element of the other. That is
/// the case if both use the same memory, wholly or in part. Interleaved tensors, such as query, key and value of one
/// projection, share nothing.
[[gnu::cold, gnu::noinline]] inline void check_ends(const Footprint& out, const char* out_name, const Footprint& in,
                                                    const char* in_name) {
  const ByteRange a = out.bytes(), b = in.bytes();
  const bool shared = out.holds(b.begin) || out.holds(b.end - 1) || in.holds(a.begin) || in.holds(a.end - 1);
  require(!shared, out_name, " of shape ", out.own_shape(), " overlaps ", in_name, " of shape ", in.own_shape(),
          " in memory; ", out_name, " needs its own memory");
}

/// Like check_ends(), at almost no cost if the tensors are apart: a hundred instructions are measurable in small calls.
template <class Out, class In>
void check_apart(const Out& out, const ByteRange& of_out, const char* out_name, const In& in, const char* in_name) {
  const ByteRange of_in = bytes_of(in);
  if (of_out.begin < of_in.end && of_in.begin < of_out.end) [[unlikely]]
    check_ends(out, out_name, in, in_name);
}
template <class Out, class In>
void check_apart(const Out& out, const char* out_name, const In& in, const char* in_name) {
  check_apart(out, bytes_of(out), out_name, in, in_name);
}

/// A tensor and its name in messages.
struct NamedFootprint {
  const char* name;
  Footprint of;
};

/// Refuses to write to tensors that share memory with one that is read, or with each other.
inline void check_all_apart(std::initializer_list<NamedFootprint> written, std::initializer_list<NamedFootprint> read) {
  for (const NamedFootprint* out = written.begin(); out != written.end(); ++out) {
    const ByteRange bytes = out->of.bytes();
    for (const NamedFootprint& in : read) check_apart(out->of, bytes, out->name, in.of, in.name);
    for (const NamedFootprint* other = out + 1; other != written.end(); ++other)
      check_apart(out->of, bytes, out->name, other->of, other->name);
  }
}

}  // namespace attn::detail
