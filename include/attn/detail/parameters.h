// Layer 3: the named parameters of a layer.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "attn/detail/arguments.h"
#include "attn/detail/random.h"

namespace attn::detail {

/// The parameters of a layer by name, in the order in which they were added: weights (outputs, inputs) and biases
/// (outputs).
template <class T>
class Parameters {
 public:
  /// Uniform in [-bound, bound). The elements of all weights, in row-major order, continue one sequence.
  void add_weight(std::string name, Index outputs, Index inputs, double bound, std::uint64_t seed) {
    auto values = Tensor<T, 2>::uninitialized({outputs, inputs});
    for (Index i = 0; i < values.size(); ++i)
      values.data()[i] = static_cast<T>(bound * random_symmetric(seed, drawn_++));
    entries_.push_back({std::move(name), false, std::move(values)});
  }
  /// Zeros.
  void add_bias(std::string name, Index outputs) {
    entries_.push_back({std::move(name), true, Tensor<T, 2>({outputs, 1})});
  }

  std::vector<std::string> names() const {
    std::vector<std::string> result;
    for (const Entry& e : entries_) result.push_back(e.name);
    return result;
  }

  TensorView<T, 2> weight(std::string_view name) { return entries_[find(name, false)].values; }
  TensorView<const T, 2> weight(std::string_view name) const { return entries_[find(name, false)].values; }
  TensorView<T, 1> bias(std::string_view name) { return first_column(entries_[find(name, true)].values); }
  TensorView<const T, 1> bias(std::string_view name) const { return first_column(entries_[find(name, true)].values); }

  /// Copies the elements of `values` into a parameter of the same shape.
  template <class X>
  void load(std::string_view name, const X& values) {
    using From = typename Traits<X>::Scalar;
    constexpr int rank = Traits<X>::kRank;
    static_assert(is_scalar<From>,
                  "attn: a parameter is loaded from floating-point numbers; convert with .cast<float>()");
    static_assert(rank == 1 || rank == 2,
                  "attn: a parameter is loaded from a matrix or rank-2 tensor (weight), or from a vector or rank-1 "
                  "tensor (bias)");
    Entry& entry = entries_[find(name)];
    const auto& held = evaluated(values);
    const TensorView<const From, rank> from = view(held);
    if constexpr (rank == 1) {
      copy(entry, from);
    } else {
      bool vector = false;  // to Eigen a vector is a matrix with one column or row
      if constexpr (EigenDense<X>) vector = X::IsVectorAtCompileTime;
      if (vector && entry.is_bias)
        copy(entry, TensorView<const From, 1>(from.data(), {from.size()}, {from.stride(from.dim(0) == 1 ? 1 : 0)}));
      else
        copy(entry, from);
    }
  }

 private:
  struct Entry {
    std::string name;
    bool is_bias;
    Tensor<T, 2> values;  // a bias has one column
  };

  std::size_t find(std::string_view name) const {
    const auto found = std::find_if(entries_.begin(), entries_.end(), [&](const Entry& e) { return e.name == name; });
    if (found == entries_.end()) {
      std::string known;
      for (const Entry& e : entries_) known += (known.empty() ? "" : ", ") + e.name;
      refuse({"there is no parameter '", name, "'; this layer has ", known});
    }
    return static_cast<std::size_t>(found - entries_.begin());
  }
  std::size_t find(std::string_view name, bool bias) const {
    const std::size_t i = find(name);
    require(entries_[i].is_bias == bias, "parameter '", name,
            bias ? "' is a weight, of rank 2: use weight()" : "' is a bias, of rank 1: use bias()");
    return i;
  }

  template <class Values>
  static auto first_column(Values& values) {
    return TensorView<std::remove_pointer_t<decltype(values.data())>, 1>(values.data(), {values.dim(0)});
  }

  template <class From, int Rank>
  static void copy(Entry& to, const TensorView<From, Rank>& from) {
    const Shape<2>& shape = to.values.shape();
    bool fits = to.is_bias == (Rank == 1) && from.dim(0) == shape[0];
    if constexpr (Rank == 2) fits = fits && from.dim(1) == shape[1];
    require(fits, "parameter '", to.name, "' has shape ", to.is_bias ? Piece(Shape<1>{shape[0]}) : Piece(shape),
            ", the values given have shape ", from.shape());
    for (Index i = 0; i < shape[0]; ++i)
      for (Index j = 0; j < shape[1]; ++j) {
        if constexpr (Rank == 1)
          to.values(i, j) = static_cast<T>(static_cast<computed_t<std::remove_const_t<From>>>(from(i)));
        else
          to.values(i, j) = static_cast<T>(static_cast<computed_t<std::remove_const_t<From>>>(from(i, j)));
      }
  }

  std::vector<Entry> entries_;
  std::uint64_t drawn_ = 0;
};

}  // namespace attn::detail
