// The named parameters of a layer.
#pragma once

#include <algorithm>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "attn/core/base/random.h"
#include "attn/core/tensor/arguments.h"

namespace attn::detail {

/// The parameters of a layer by name, in the order in which they were added: weights (outputs, inputs) and vectors,
/// such as biases and the weights of norms. A part is a named range of rows of a parameter.
template <class T>
class Parameters {
 public:
  /// Adds a weight that is uniform in [-bound, bound). All random elements, in row-major order, continue one sequence
  /// of random numbers.
  void add_weight(std::string name, Index outputs, Index inputs, double bound, std::uint64_t seed) {
    add_random(std::move(name), false, {outputs, inputs}, bound, seed);
  }
  /// Adds a vector that is uniform in [-bound, bound).
  void add_random_vector(std::string name, Index size, double bound, std::uint64_t seed) {
    add_random(std::move(name), true, {size, 1}, bound, seed);
  }
  /// Adds a vector whose elements are all `value`.
  void add_vector(std::string name, Index size, double value) {
    add_zeros(std::move(name), true, {size, 1});
    std::fill_n(entries_.back().values.data(), size, static_cast<T>(value));
  }
  /// Names some rows of the parameter `of`.
  void add_part(std::string name, std::string_view of, Range rows) {
    parts_.push_back({std::move(name), find(of).entry, rows});
  }
  /// Adds another name for the parameter or part `of`.
  void add_alias(std::string name, std::string_view of) {
    const Found found = find(of);
    parts_.push_back({std::move(name), found.entry, found.rows});
  }

  /// Returns the same parameters in a different type, all zero.
  template <class Other>
  Parameters<Other> zeros() const {
    Parameters<Other> result;
    for (const Entry& e : entries_) result.add_zeros(e.name, e.is_vector, e.values.shape());
    for (const Part& p : parts_) result.add_part(p.name, entries_[p.entry].name, p.rows);
    return result;
  }
  bool empty() const { return entries_.empty(); }
  void set_zero() {
    for (Entry& e : entries_) std::fill_n(e.values.data(), e.values.size(), T(0));
  }

  /// Returns the names of the parameters, without those of parts.
  std::vector<std::string> names() const {
    std::vector<std::string> result;
    for (const Entry& e : entries_) result.push_back(e.name);
    return result;
  }

  TensorView<T, 2> weight(std::string_view name) { return rows_of(*this, find(name, false)); }
  TensorView<const T, 2> weight(std::string_view name) const { return rows_of(*this, find(name, false)); }
  TensorView<T, 1> bias(std::string_view name) { return first_column(rows_of(*this, find(name, true))); }
  TensorView<const T, 1> bias(std::string_view name) const { return first_column(rows_of(*this, find(name, true))); }

  /// Returns all elements of a parameter, row-major.
  std::span<T> numbers(std::string_view name) {
    const TensorView<T, 2> all = rows_of(*this, find(name));
    return {all.data(), static_cast<std::size_t>(all.size())};
  }

  /// Copies the elements of `values` into a parameter, or a part of one, of the same shape.
  template <class X>
  void load(std::string_view name, const X& values) {
    const Found to = find(name);
    with_view(values, to, [&](const auto& from) { copy(name, to, from); });
  }

  /// Copies `values` into the rows of a parameter from row `first` on.
  template <class X>
  void load_rows(std::string_view name, Index first, const X& values) {
    Found to = find(name);
    with_view(values, to, [&](const auto& from) {
      const Index rows = to.rows.size(), given = from.dim(0);
      require(first >= 0 && first <= rows && given <= rows - first, "parameter '", name, "' has ", rows,
              " rows: ", given, " rows from row ", first, " on do not fit");
      to.rows = {to.rows.begin + first, to.rows.begin + first + given};
      copy(name, to, from);
    });
  }

 private:
  template <class Other>
  friend class Parameters;

  struct Entry {
    std::string name;
    bool is_vector;
    Tensor<T, 2> values;  // a vector has one column
  };
  struct Part {
    std::string name;
    std::size_t entry;
    Range rows;
  };
  /// The rows that a name refers to.
  struct Found {
    std::size_t entry;
    Range rows;
    bool is_vector;
  };

  void add_zeros(std::string name, bool is_vector, const Shape<2>& shape) {
    entries_.push_back({std::move(name), is_vector, Tensor<T, 2>(shape)});
  }
  void add_random(std::string name, bool is_vector, const Shape<2>& shape, double bound, std::uint64_t seed) {
    auto values = Tensor<T, 2>::uninitialized(shape);
    for (Index i = 0; i < values.size(); ++i)
      values.data()[i] = static_cast<T>(bound * random_symmetric(seed, drawn_++));
    entries_.push_back({std::move(name), is_vector, std::move(values)});
  }

  /// Calls use(view of values). If `to` is a vector, a vector of Eigen has rank 1.
  template <class X, class Use>
  static void with_view(const X& values, const Found& to, const Use& use) {
    using From = typename Traits<X>::Scalar;
    constexpr int rank = Traits<X>::kRank;
    static_assert(is_scalar<From>,
                  "attn: parameters must be loaded from floating-point numbers; convert with .cast<float>()");
    static_assert(rank == 1 || rank == 2,
                  "attn: parameters must be loaded from a matrix or rank-2 tensor (weight), or from a vector or rank-1 "
                  "tensor (bias)");
    const auto& held = evaluated(values);
    const TensorView<const From, rank> from = view(held);
    if constexpr (rank == 1) {
      use(from);
    } else {
      bool vector = false;  // Eigen's vectors are matrices with one column or row
      if constexpr (EigenDense<X>) vector = X::IsVectorAtCompileTime;
      if (vector && to.is_vector)
        use(TensorView<const From, 1>(from.data(), {from.size()}, {from.stride(from.dim(0) == 1 ? 1 : 0)}));
      else
        use(from);
    }
  }

  Found find(std::string_view name) const {
    const auto has_name = [&](const auto& x) { return x.name == name; };
    if (const auto e = std::find_if(entries_.begin(), entries_.end(), has_name); e != entries_.end())
      return {static_cast<std::size_t>(e - entries_.begin()), {0, e->values.dim(0)}, e->is_vector};
    if (const auto p = std::find_if(parts_.begin(), parts_.end(), has_name); p != parts_.end())
      return {p->entry, p->rows, entries_[p->entry].is_vector};
    const auto list = [](const auto& all) {
      std::string names;
      for (const auto& x : all) names += (names.empty() ? "" : ", ") + x.name;
      return names;
    };
    const std::string known = list(entries_), parts = list(parts_);
    refuse({"there is no parameter '", name, "'; this layer has ", known,
            parts.empty() ? "" : "; and their parts: ", parts});
  }
  Found find(std::string_view name, bool vector) const {
    const Found found = find(name);
    require(found.is_vector == vector, "parameter '", name,
            vector ? "' has rank 2: use weight()" : "' has rank 1: use bias()");
    return found;
  }

  template <class Self>
  static auto rows_of(Self& self, const Found& found) {
    const auto all = self.entries_[found.entry].values.view();
    return all.part(found.rows.begin * all.dim(1), {found.rows.size(), all.dim(1)}, all.strides());
  }
  template <class X>
  static TensorView<X, 1> first_column(const TensorView<X, 2>& values) {
    return {values.data(), {values.dim(0)}};
  }

  template <class From, int Rank>
  void copy(std::string_view name, const Found& found, const TensorView<From, Rank>& from) {
    const TensorView<T, 2> to = rows_of(*this, found);
    const Shape<2>& shape = to.shape();
    bool fits = found.is_vector == (Rank == 1) && from.dim(0) == shape[0];
    if constexpr (Rank == 2) fits = fits && from.dim(1) == shape[1];
    require(fits, "parameter '", name, "' has shape ", found.is_vector ? Piece(Shape<1>{shape[0]}) : Piece(shape),
            ", but the given values have shape ", from.shape());
    for (Index i = 0; i < shape[0]; ++i)
      for (Index j = 0; j < shape[1]; ++j) {
        if constexpr (Rank == 1)
          to(i, j) = static_cast<T>(static_cast<computed_t<std::remove_const_t<From>>>(from(i)));
        else
          to(i, j) = static_cast<T>(static_cast<computed_t<std::remove_const_t<From>>>(from(i, j)));
      }
  }

  std::vector<Entry> entries_;
  std::vector<Part> parts_;
  std::uint64_t drawn_ = 0;
};

}  // namespace attn::detail
