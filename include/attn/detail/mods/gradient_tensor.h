// The caller's tensor to which the gradients of a mod's parameters are added.
#pragma once

#include <type_traits>

#include "attn/detail/mods/broadcast.h"
#include "attn/detail/tensor/dtype.h"

namespace attn::detail {

/// The type in which gradients are accumulated during a call: more precise than T where that costs nothing.
template <class T>
using GradientSum = std::conditional_t<std::is_same_v<T, float>, double, T>;

/// Maps the pairs of a call to slots of a tensor that is broadcast over them.
struct PairSlots {
  Index batch, head, q, kv;  // strides
  Index q_offset;

  Index operator()(const Position& p) const {
    return p.batch * batch + p.head * head + (p.q - q_offset) * q + p.kv * kv;
  }
};

/// The caller's tensor of rank 1 to 4, which is viewed and must outlive the mod. The slot of an element is its index in
/// row-major order.
template <class T>
class GradientTensor {
 public:
  template <class X>
  explicit GradientTensor(X&& tensor, const char* mod) {
    using Given = std::remove_cvref_t<X>;
    static_assert(check_tensor<Given>());
    static_assert(!is_temporary<X>,
                  "attn: the tensor that gradients are added to must outlive the mod, but this one is a temporary; "
                  "store it in a variable");
    const auto v = pair_view(tensor);
    using View = std::remove_cvref_t<decltype(v)>;
    static_assert(!std::is_const_v<std::remove_pointer_t<decltype(v.data())>>,
                  "attn: the tensor that gradients are added to must be writable, but this one is const");
    constexpr int kRank = View::kRank;
    static_assert(kRank <= 4, "attn: a tensor that gradients are added to must have at most 4 dimensions");
    data_ = v.data();
    for (int i = 0; i < kRank; ++i) {
      shape_[4 - kRank + i] = v.dim(i);
      stride_[4 - kRank + i] = v.stride(i);
      require(
          v.dim(i) <= 1 || v.stride(i) != 0 || v.size() == 0, mod,
          ": the gradient tensor has a stride of 0, so its elements share memory and cannot hold different gradients");
    }
    rank_ = kRank;
  }

  std::span<const Index> shape() const { return std::span<const Index>(shape_).last(rank_); }
  Index slots() const { return shape_[0] * shape_[1] * shape_[2] * shape_[3]; }

  /// Returns the slots of the pairs of a call, over which the tensor is broadcast.
  PairSlots slots_of_pairs(const Problem& problem) const {
    Index step = 1, strides[4];
    for (int i = 4; i-- > 0; step *= shape_[i]) strides[i] = shape_[i] == 1 ? 0 : step;
    return {strides[0], strides[1], strides[2], strides[3], problem.q_offset};
  }
  /// Whether no two pairs of a head share a slot.
  bool is_pairwise(const Problem& problem) const { return shape_[2] == problem.q_len && fits_keys(shape_[3], problem); }

  /// Adds the sum of each slot to its element.
  template <class Sum>
  void add(const Sum* sums) const {
    Index i[4];
    for (i[0] = 0; i[0] < shape_[0]; ++i[0])
      for (i[1] = 0; i[1] < shape_[1]; ++i[1])
        for (i[2] = 0; i[2] < shape_[2]; ++i[2])
          for (i[3] = 0; i[3] < shape_[3]; ++i[3], ++sums) {
            T& x = data_[i[0] * stride_[0] + i[1] * stride_[1] + i[2] * stride_[2] + i[3] * stride_[3]];
            x = static_cast<T>(static_cast<computed_t<T>>(static_cast<Sum>(static_cast<computed_t<T>>(x)) + *sums));
          }
  }

 private:
  T* data_;
  std::size_t rank_;
  Index shape_[4] = {1, 1, 1, 1};
  Index stride_[4] = {0, 0, 0, 0};
};

/// Makes a GradientTensor from a tensor of any type.
template <class X>
auto gradient_tensor(X&& tensor, const char* mod) {
  using T = std::remove_pointer_t<decltype(pair_view(tensor).data())>;
  return GradientTensor<T>(std::forward<X>(tensor), mod);
}

}  // namespace attn::detail
