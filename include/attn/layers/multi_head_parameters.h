// The named parameters of multi-head attention, and the projections that use them.
#pragma once

#include <algorithm>
#include <cmath>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "attn/core/base/random.h"
#include "attn/core/tensor/arguments.h"
#include "attn/layers/linear.h"
#include "attn/multi_head_options.h"

namespace attn::detail::inline ATTN_BUILT_FOR {

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
  requires Shapeless<X>
  static void with_view(const X& values, const Found&, const Use& use) {
    const auto list = vector_of(values, "the list");
    static_assert(is_scalar<typename decltype(list)::Scalar>,
                  "attn: parameters must be loaded from floating-point numbers; convert with .cast<float>()");
    use(list);
  }
  template <class X, class Use>
  requires(!Shapeless<X>) static void with_view(const X& values, const Found& to, const Use& use) {
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

/// The three inputs of a layer.
enum class Input { query, key, value };

/// The configuration of a MultiHeadAttention with its defaults filled in, and all its parameters.
template <class T>
class MultiHeadParameters {
 public:
  /// @throws std::invalid_argument for invalid sizes.
  explicit MultiHeadParameters(const MultiHeadConfig& config) : config_(resolved(config)) {
    const Index embed = config_.embed_dim, joined = config_.heads * config_.v_head_dim;
    const Index q = outputs(Input::query), k = outputs(Input::key), v = outputs(Input::value);
    if (packed()) {
      add_xavier("in_proj_weight", q + k + v, embed);
    } else {
      add_xavier("q_proj_weight", q, embed);
      add_xavier("k_proj_weight", k, config_.key_dim);
      add_xavier("v_proj_weight", v, config_.value_dim);
    }
    if (*config_.in_bias) named_.add_vector("in_proj_bias", q + k + v, 0);
    if (config_.add_bias_kv) {
      // PyTorch draws from a normal distribution of the same variance.
      named_.add_random_vector("bias_k", k, std::sqrt(3.0 / static_cast<double>(k)), config_.seed);
      named_.add_random_vector("bias_v", v, std::sqrt(3.0 / static_cast<double>(v)), config_.seed);
    }
    if (config_.qk_norm) {
      named_.add_vector("q_norm.weight", norm_size(Input::query), 1);
      named_.add_vector("k_norm.weight", norm_size(Input::key), 1);
    }
    // PyTorch's Linear: Kaiming-uniform (He et al. 2015) for a leaky ReLU of slope sqrt(5): sqrt(6 / (6 inputs)).
    named_.add_weight("out_proj.weight", embed, joined, 1 / std::sqrt(static_cast<double>(joined)), config_.seed);
    if (*config_.out_bias) named_.add_vector("out_proj.bias", embed, 0);
    add_parts();
  }

  const MultiHeadConfig& config() const { return config_; }
  void change_rope(const Rope& rope) {
    require(config_.rope.has_value(), "change_rope: the layer has no rope; set MultiHeadConfig::rope");
    require(rope.config().head_dim == config_.head_dim, "change_rope: head_dim is ", config_.head_dim,
            ", but the head_dim of the rope is ", rope.config().head_dim);
    config_.rope = Rope(rope);
  }
  Parameters<T>& named() { return named_; }
  const Parameters<T>& named() const { return named_; }

  /// Whether all three inputs share one weight, as in PyTorch.
  bool packed() const { return config_.key_dim == config_.embed_dim && config_.value_dim == config_.embed_dim; }

  /// Number of features of an input.
  Index inputs(Input input) const {
    return input == Input::query ? config_.embed_dim : input == Input::key ? config_.key_dim : config_.value_dim;
  }
  /// Number of heads of an input.
  Index heads(Input input) const { return input == Input::query ? config_.heads : config_.kv_heads; }
  /// Number of features of a head of an input.
  Index head_dim(Input input) const { return input == Input::value ? config_.v_head_dim : config_.head_dim; }
  /// Number of consecutive outputs of the projection of an input that belong to one head. In the projection of the
  /// query, the gate follows the query.
  Index outputs_per_head(Input input) const {
    return head_dim(input) + (input == Input::query && config_.output_gate ? config_.v_head_dim : 0);
  }
  /// Number of outputs of the projection of an input.
  Index outputs(Input input) const { return heads(input) * outputs_per_head(input); }
  /// Number of weights of the norm of queries or keys.
  Index norm_size(Input input) const {
    return (config_.qk_norm_scope == NormScope::head ? 1 : heads(input)) * config_.head_dim;
  }
  static const char* norm_name(Input input) { return input == Input::query ? "q_norm.weight" : "k_norm.weight"; }

  /// Returns the projections of `first` … `last` as one product. More than one input needs packed weights.
  Linear<T> input_projection(Input first, Input last) const {
    const Range rows{rows_of(first).begin, rows_of(last).end};
    const auto weight = named_.weight(kWeights[static_cast<std::size_t>(first)]);
    return {weight.data(), *config_.in_bias ? named_.bias("in_proj_bias").data() + rows.begin : nullptr, weight.dim(1),
            rows.size()};
  }
  Linear<T> input_projection(Input input) const { return input_projection(input, input); }
  Linear<T> output_projection() const {
    const auto weight = named_.weight("out_proj.weight");
    return {weight.data(), *config_.out_bias ? named_.bias("out_proj.bias").data() : nullptr, weight.dim(1),
            weight.dim(0)};
  }

  /// Returns the gradients of a projection, as views of `all`, the gradients of all parameters.
  LinearGradients<T> input_gradients(Parameters<computed_t<T>>& all, Input input) const {
    const auto weight = all.weight(kWeights[static_cast<std::size_t>(input)]);
    return {weight.data(), *config_.in_bias ? all.bias("in_proj_bias").data() + rows_of(input).begin : nullptr,
            weight.dim(1), weight.dim(0)};
  }
  LinearGradients<T> output_gradients(Parameters<computed_t<T>>& all) const {
    const auto weight = all.weight("out_proj.weight");
    return {weight.data(), *config_.out_bias ? all.bias("out_proj.bias").data() : nullptr, weight.dim(1),
            weight.dim(0)};
  }

 private:
  static constexpr const char* kWeights[] = {"q_proj_weight", "k_proj_weight", "v_proj_weight"};

  static MultiHeadConfig resolved(MultiHeadConfig c) {
    require(c.embed_dim > 0, "embed_dim must be positive, but is ", c.embed_dim);
    require(c.heads > 0, "heads must be positive, but is ", c.heads);
    require(c.head_dim != 0 || c.embed_dim % c.heads == 0, "embed_dim (", c.embed_dim,
            ") must be a multiple of heads (", c.heads, "), unless head_dim is given");
    const auto default_to = [](Index& size, const char* name, Index otherwise) {
      require(size >= 0, name, " must not be negative, but is ", size);
      if (size == 0) size = otherwise;
    };
    default_to(c.kv_heads, "kv_heads", c.heads);
    default_to(c.head_dim, "head_dim", c.embed_dim / c.heads);
    default_to(c.v_head_dim, "v_head_dim", c.head_dim);
    default_to(c.key_dim, "key_dim", c.embed_dim);
    default_to(c.value_dim, "value_dim", c.embed_dim);
    require(c.embed_dim <= kLargestIndex && c.key_dim <= kLargestIndex && c.value_dim <= kLargestIndex, "embed_dim ",
            c.embed_dim, ", key_dim ", c.key_dim, " and value_dim ", c.value_dim, " must be at most ", kLargestIndex);
    require(c.heads % c.kv_heads == 0, "heads (", c.heads, ") must be a multiple of kv_heads (", c.kv_heads, ")");
    const Index most = kLargestIndex / c.heads;
    require(c.head_dim <= most && c.v_head_dim <= most, "head_dim ", c.head_dim, " and v_head_dim ", c.v_head_dim,
            " must be at most ", most, " with ", c.heads, " heads");
    c.in_bias = c.in_bias.value_or(c.bias);
    c.out_bias = c.out_bias.value_or(c.bias);
    require(!c.rope || c.rope->config().head_dim == c.head_dim, "the head_dim of the rope is ",
            c.rope ? c.rope->config().head_dim : 0, ", but that of the layer is ", c.head_dim);
    require(!c.rope || !c.add_bias_kv,
            "add_bias_kv cannot be combined with a rope: bias_k has no position, from which its angle would follow");
    require(c.qk_norm_eps >= 0 && std::isfinite(c.qk_norm_eps), "qk_norm_eps must be finite and not negative, but is ",
            c.qk_norm_eps);
    return c;
  }

  void add_xavier(const char* name, Index outputs, Index inputs) {
    const double bound = std::sqrt(6.0 / static_cast<double>(inputs + outputs));
    named_.add_weight(name, outputs, inputs, bound, config_.seed);
  }

  /// Returns the rows of an input in the packed weight.
  Range rows_of(Input input) const {
    const Index q = outputs(Input::query), k = outputs(Input::key);
    const Index begin = input == Input::query ? 0 : input == Input::key ? q : q + k;
    return {begin, begin + outputs(input)};
  }

  /// Names the rows of the packed weight and bias, and adds the dotted names of PyTorch's Linear.
  void add_parts() {
    for (const Input input : {Input::query, Input::key, Input::value}) {
      const std::string weight = kWeights[static_cast<std::size_t>(input)], layer = weight.substr(0, 6);
      if (packed()) named_.add_part(weight, "in_proj_weight", rows_of(input));
      if (*config_.in_bias) named_.add_part(layer + "_bias", "in_proj_bias", rows_of(input));
      named_.add_alias(layer + ".weight", weight);
      if (*config_.in_bias) named_.add_alias(layer + ".bias", layer + "_bias");
    }
    named_.add_alias("o_proj.weight", "out_proj.weight");
    if (*config_.out_bias) named_.add_alias("o_proj.bias", "out_proj.bias");
  }

  MultiHeadConfig config_;
  Parameters<T> named_;
};

}  // namespace attn::detail::inline ATTN_BUILT_FOR
