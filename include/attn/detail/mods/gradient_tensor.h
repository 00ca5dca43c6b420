// The caller's tensor to which the gradients of a mod's parameters are added.
#pragma once

#include <type_traits>

#include "attn/detail/mods/broadcast.h"
#include "attn/detail/tensor/dtype.h"

namespace attn::detail {

/// The type in which gradients are accumulated during a call: more precise than T where that costs nothing.
template <class T>
using GradientSum = std::conditional_t<std::is_same_v<T, float>, double, T>;

/// The caller's tensor of rank 1 to 4, which is viewed and must outlive the mod. The slot of an element is its index in
/// row-major order.
template <class T>
class GradientTensor : public AlignedLayout {
 public:
  template <int Rank>
  GradientTensor(const TensorView<T, Rank>& view, const char* mod) : AlignedLayout(view), data_(view.data()) {
    static_assert(!std::is_const_v<T>,
                  "attn: the tensor that gradients are added to must be writable, but this one is const");
    static_assert(Rank <= 4, "attn: a tensor that gradients are added to must have at most 4 dimensions");
    for (int i = 0; i < Rank; ++i)
      require(
          view.dim(i) <= 1 || view.stride(i) != 0 || view.size() == 0, mod,
          ": the gradient tensor has a stride of 0, so its elements share memory and cannot hold different gradients");
  }

  Index slots() const { return shape[0] * shape[1] * shape[2] * shape[3]; }

  /// Returns the slots of the pairs of a call, over which the tensor is broadcast.
  PairOffsets slots_of_pairs(const Problem& problem) const {
    Index step = 1, strides[4];
    for (int i = 4; i-- > 0; step *= shape[i]) strides[i] = shape[i] == 1 ? 0 : step;
    return {strides[0], strides[1], strides[2], strides[3], problem.q_offset};
  }
  /// Whether no two pairs of a head share a slot.
  bool is_pairwise(const Problem& problem) const { return shape[2] == problem.q_len && fits_keys(shape[3], problem); }

  /// Adds the sum of each slot to its element.
  template <class Sum>
  void add(const Sum* sums) const {
    for_each_offset([&](Index offset) {
      T& x = data_[offset];
      x = static_cast<T>(static_cast<computed_t<T>>(static_cast<Sum>(static_cast<computed_t<T>>(x)) + *sums++));
    });
  }

 private:
  T* data_;
};

/// Makes a GradientTensor from a tensor of any type.
template <class X>
auto gradient_tensor(X&& tensor, const char* mod) {
  static_assert(check_tensor<std::remove_cvref_t<X>>());
  static_assert(!is_temporary<X>,
                "attn: the tensor that gradients are added to must outlive the mod, but this one is a temporary; store "
                "it in a variable");
  const auto view = pair_view(tensor);
  return GradientTensor<std::remove_pointer_t<decltype(view.data())>>(view, mod);
}

}  // namespace attn::detail
