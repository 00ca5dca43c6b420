// Tensors broadcast over the (batch, head, query, key) pairs of a call, for mods that read one.
#pragma once

#include <algorithm>
#include <memory>
#include <span>
#include <vector>

#include "attn/core/base/check.h"
#include "attn/core/mods/lengths.h"
#include "attn/core/tensor/viewable.h"

namespace attn::detail {

/// Names of the dimensions of a tensor over pairs, for error messages.
constexpr char kPairs[] = "(batch, heads, q_len, kv_len)";

/// Maps the pairs of one call, at absolute positions, to elements of a tensor that is broadcast over them. Broadcast
/// dimensions have a stride of 0.
struct PairOffsets {
  Index batch, head, q, kv;  // strides
  Index q_offset;

  Index operator()(const Position& p) const {
    return p.batch * batch + p.head * head + (p.q - q_offset) * q + p.kv * kv;
  }
};

/// A tensor over the pairs of one call, indexed by absolute positions.
template <class T>
struct PairTensor : PairOffsets {
  const T* data;

  const T& operator()(const Position& p) const { return data[PairOffsets::operator()(p)]; }
};

/// The sizes and strides of a tensor of rank 1 to 4, aligned from the right with (batch, heads, q_len, kv_len). Missing
/// dimensions have size 1.
struct AlignedLayout {
  Index shape[4] = {1, 1, 1, 1};
  Index stride[4] = {0, 0, 0, 0};
  std::size_t rank;

  template <class View>
  explicit AlignedLayout(const View& view) : rank(View::kRank) {
    for (int i = 0; i < View::kRank; ++i) {
      shape[4 - View::kRank + i] = view.dim(i);
      stride[4 - View::kRank + i] = view.stride(i);
    }
  }

  /// Returns the shape without the missing dimensions.
  std::span<const Index> given_shape() const { return std::span<const Index>(shape).last(rank); }

  /// Calls visit(offset) for all elements in row-major order.
  template <class Visit>
  void for_each_offset(const Visit& visit) const {
    Index i[4];
    for (i[0] = 0; i[0] < shape[0]; ++i[0])
      for (i[1] = 0; i[1] < shape[1]; ++i[1])
        for (i[2] = 0; i[2] < shape[2]; ++i[2])
          for (i[3] = 0; i[3] < shape[3]; ++i[3])
            visit(i[0] * stride[0] + i[1] * stride[1] + i[2] * stride[2] + i[3] * stride[3]);
  }
};

/// The user's tensor of rank 1 to 4, held until a call gives it sizes. A temporary is kept alive here; any other tensor
/// is viewed and must outlive the mod.
template <class T>
class BroadcastTensor : public AlignedLayout {
 public:
  /// Returns the tensor over the pairs of a call. Dimensions are aligned from the right with (batch, heads, q_len,
  /// kv_len); each must have that size or 1.
  /// @param of_keys  text that the message adds if the tensor would fit as (batch, kv_len).
  PairTensor<T> over(const Problem& problem, const char* mod, const char* dims = kPairs,
                     const char* of_keys = "") const {
    const Index want[4] = {problem.batch, problem.heads, problem.q_len, problem.keys().end};
    const bool has_keys = fits_keys(shape[3], problem);
    const bool is_of_keys = rank == 2 && shape[2] == problem.batch && has_keys;
    for (int i = 0; i < 4; ++i)
      require(shape[i] == 1 || (i == 3 ? has_keys : shape[i] == want[i]), mod, ": the tensor has shape ", given_shape(),
              ", which does not broadcast to ", std::span<const Index>(want), " as ", dims, note_of_part(problem),
              is_of_keys ? of_keys : "");
    const auto step = [&](int i) { return shape[i] == 1 ? 0 : stride[i]; };
    return {{step(0), step(1), step(2), step(3), problem.q_offset}, data_};
  }

  /// over() for masks. A matrix that fits both as (q_len, kv_len) and as (batch, kv_len) is rejected: if it were
  /// misread, each query would get the row of a batch element.
  PairTensor<T> over_unambiguous(const Problem& problem, const char* mod, const char* of_keys,
                                 const char* name_of_keys) const {
    const bool is_either = rank == 2 && shape[2] > 1 && shape[2] == problem.batch && shape[2] == problem.q_len &&
                           fits_keys(shape[3], problem);
    require(!is_either, mod, ": the tensor has shape ", given_shape(),
            ", which could be (q_len, kv_len) or (batch, kv_len); use ", mod,
            "(attn::view(tensor).unsqueeze(0)) if its rows are queries, attn::", name_of_keys,
            "(tensor) if they are batch elements");
    return over(problem, mod, kPairs, of_keys);
  }

  /// Returns the tensor over the keys of a call: (batch, kv_len), or (kv_len) for all batch elements; the batch size
  /// may be 1.
  PairTensor<T> over_keys(const Problem& problem, const char* mod) const {
    require(rank <= 2 && (shape[2] == problem.batch || shape[2] == 1) && fits_keys(shape[3], problem), mod,
            ": the tensor has shape ", given_shape(), ", which does not broadcast to (", problem.batch, ", ",
            problem.keys().end, ") as (batch, kv_len)", note_of_part(problem));
    return {{shape[2] == 1 ? 0 : stride[2], 0, 0, stride[3], problem.q_offset}, data_};
  }

  template <int Rank>
  BroadcastTensor(const TensorView<const T, Rank>& view, std::shared_ptr<const void> owner)
      : AlignedLayout(view), data_(view.data()), owner_(std::move(owner)) {
    static_assert(Rank <= 4, "attn: a tensor over (batch, heads, q_len, kv_len) must have at most 4 dimensions");
  }

  /// @throws std::invalid_argument unless the tensor for the gradients has the shape of this one.
  template <class Gradient>
  void check_gradient(const Gradient& gradient, const char* mod) const {
    const std::span<const Index> own = given_shape(), of = gradient.given_shape();
    require(std::equal(own.begin(), own.end(), of.begin(), of.end()), mod, ": the gradient tensor has shape ", of,
            ", expected ", own);
  }

  /// Returns all elements in row-major order.
  std::vector<T> row_major() const {
    std::vector<T> all;
    for_each_offset([&](Index offset) { all.push_back(data_[offset]); });
    return all;
  }

 private:
  const T* data_;
  std::shared_ptr<const void> owner_;
};

/// Returns a view of `x` in which an Eigen vector has one dimension, not two.
template <class X>
auto pair_view(X&& x) {
  if constexpr (EigenDense<X>) {
    if constexpr (std::remove_cvref_t<X>::IsVectorAtCompileTime)
      return TensorView<element_t<X>, 1>(x.data(), {x.size()}, {x.innerStride()});
    else
      return view(x);
  } else {
    return view(x);
  }
}

/// Makes a BroadcastTensor from anything attn::view accepts, or from an Eigen expression, which is evaluated.
template <class X>
auto broadcast_tensor(X&& x) {
  using Given = std::remove_cvref_t<X>;
  static_assert(check_tensor<Given>());
  if constexpr (EigenDense<X> && !has_memory<X>) {
    return broadcast_tensor(typename Given::PlainObject(x));
  } else {
    const auto hold = [](const auto& view, std::shared_ptr<const void> owner) {
      using View = std::remove_cvref_t<decltype(view)>;
      using T = typename View::Scalar;
      return BroadcastTensor<T>(TensorView<const T, View::kRank>(view), std::move(owner));
    };
    if constexpr (std::is_lvalue_reference_v<X>) {
      return hold(pair_view(x), nullptr);
    } else {
      const auto kept = std::make_shared<const Given>(std::forward<X>(x));
      return hold(pair_view(*kept), kept);
    }
  }
}

}  // namespace attn::detail
