// A minimal std::mdspan for standard libraries without it: enough of [mdspan] to be recognised as one.
#pragma once

#include <array>
#include <cstddef>

namespace attn::test {

template <std::size_t Rank>
struct Extents {
  std::array<int, Rank> sizes{};
  int extent(std::size_t d) const { return sizes[d]; }
};

/// A layout with any strides, and an offset of `first` elements, since a user's mapping may have one.
template <std::size_t Rank>
struct Mapping {
  std::array<int, Rank> strides{};
  int first = 0;
  int stride(std::size_t d) const { return strides[d]; }
  template <class... I>
  int operator()(I... indices) const {
    const std::array<int, Rank> at{indices...};
    int sum = first;
    for (std::size_t d = 0; d < Rank; ++d) sum += at[d] * strides[d];
    return sum;
  }
};

/// `kStrided` and `Handle` are properties that a layout and an accessor may define.
template <class T, std::size_t Rank, bool kStrided = true, class Handle = T*>
class Mdspan {
 public:
  using element_type = T;
  using value_type = std::remove_cv_t<T>;
  using index_type = int;
  using data_handle_type = Handle;

  Mdspan(Handle data, const Extents<Rank>& extents, const Mapping<Rank>& mapping)
      : data_(data), extents_(extents), mapping_(mapping) {}

  static constexpr std::size_t rank() { return Rank; }
  static constexpr bool is_always_strided() { return kStrided; }
  const Handle& data_handle() const { return data_; }
  const Extents<Rank>& extents() const { return extents_; }
  const Mapping<Rank>& mapping() const { return mapping_; }

 private:
  Handle data_;
  Extents<Rank> extents_;
  Mapping<Rank> mapping_;
};

/// A view of contiguous rows.
template <class T, std::size_t Rank>
Mdspan<T, Rank> rows(T* data, const std::array<int, Rank>& sizes) {
  Mapping<Rank> mapping;
  int step = 1;
  for (std::size_t d = Rank; d-- > 0; step *= sizes[d]) mapping.strides[d] = step;
  return {data, {sizes}, mapping};
}

}  // namespace attn::test
