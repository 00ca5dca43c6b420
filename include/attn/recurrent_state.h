// RecurrentState: everything that a recurrent form of attention keeps of the tokens so far.
#pragma once

#include <span>

#include "attn/lists.h"
#include "attn/recurrent/recurrence_call.h"

namespace attn {

/// The sizes of a RecurrentState.
struct RecurrentStateConfig {
  Index batch = 1;     ///< sequences
  Index kv_heads = 1;  ///< heads of keys and values; each has a state
  Index features = 0;  ///< features of a key: head_dim, or those that the feature map returns
  Index v_dim = 0;     ///< features of a value; 0: the same as `features`
};

/// The state that linear_attention(), gated_attention() and gated_delta_rule() keep of the tokens so far, in place of a
/// cache of keys and values. For each sequence and head, the state holds the sum (features, v_dim) of key * valueᵀ,
/// decayed as the form requires, and the sum (features) of keys (the normaliser, which only linear_attention() uses). A
/// token therefore takes the same time and no extra memory, however many tokens precede it:
///
///     attn::RecurrentState<float> state({.batch = 2, .kv_heads = 8, .features = 64});
///     attn::linear_attention(state, q, k, v, attn::elu1(), attn::causal());   // a prompt, a part of one, or one token
///
/// Prompts may be passed in parts of any lengths: the results are those of one call, except for rounding. A state must
/// be used with one form only, which is not checked. Copies are deep. Concurrent calls need separate states.
template <class T>
class RecurrentState {
  static_assert(
      std::is_floating_point_v<T>,
      "attn: a RecurrentState must hold float, double or long double; use RecurrentState<float> with 16-bit floats");

 public:
  using Scalar = T;  ///< the type of the sums

  /// Creates zero states, which have seen no tokens.
  /// @throws std::invalid_argument unless all sizes are positive (v_dim may be 0).
  explicit RecurrentState(const RecurrentStateConfig& config)
      : config_(checked(config)),
        sums_({config_.batch, config_.kv_heads, config_.features, detail::padded(config_.v_dim, kUnit)}),
        normaliser_({config_.batch, config_.kv_heads, detail::padded(config_.features, kUnit)}) {}

  /// The sizes, with the defaults filled in.
  const RecurrentStateConfig& config() const { return config_; }

  /// A view of the sums of key * valueᵀ, to read or write in place: (batch, kv_heads, features, v_dim).
  TensorView<T, 4> sums() { return sums_.slice(3, 0, config_.v_dim); }
  /// As above, read-only.
  TensorView<const T, 4> sums() const { return sums_.slice(3, 0, config_.v_dim); }
  /// A view of the sums of keys, to read or write in place: (batch, kv_heads, features).
  TensorView<T, 3> normaliser() { return normaliser_.slice(2, 0, config_.features); }
  /// As above, read-only.
  TensorView<const T, 3> normaliser() const { return normaliser_.slice(2, 0, config_.features); }

  /// The size of all states in bytes; processing one token of each sequence reads and writes all of it.
  Index bytes() const { return (sums_.size() + normaliser_.size()) * static_cast<Index>(sizeof(T)); }

  /// Forgets all tokens.
  void reset() {
    std::fill_n(sums_.data(), sums_.size(), T(0));
    std::fill_n(normaliser_.data(), normaliser_.size(), T(0));
  }
  /// Forgets the tokens of one sequence. @throws std::invalid_argument if there is no such sequence.
  void reset(Index sequence) {
    check("reset", sequence);
    std::fill_n(of(sums_, sequence), size_of_one(sums_), T(0));
    std::fill_n(of(normaliser_, sequence), size_of_one(normaliser_), T(0));
  }

  /// Replaces each sequence i with the old sequence from[i], as beam search requires. A sequence may be used several
  /// times or not at all.
  /// @throws std::invalid_argument unless `from` has a valid sequence number for each sequence.
  void reorder(const Indices& from) {
    const std::span<const Index> numbers = from.values;
    detail::require(static_cast<Index>(numbers.size()) == config_.batch, "reorder: got ", numbers.size(),
                    " indices for ", config_.batch, " sequences");
    for (const Index number : numbers) check("reorder", number);
    const RecurrentState before = *this;
    for (Index i = 0; i < config_.batch; ++i) {
      const Index source = numbers[static_cast<std::size_t>(i)];
      if (source == i) continue;
      std::copy_n(of(before.sums_, source), size_of_one(sums_), of(sums_, i));
      std::copy_n(of(before.normaliser_, source), size_of_one(normaliser_), of(normaliser_, i));
    }
  }

  /// The memory in the form that the loops take.
  /// @{
  detail::StateMemory<T> memory() { return {sums_.data(), normaliser_.data()}; }
  detail::StateMemory<const T> memory() const { return {sums_.data(), normaliser_.data()}; }
  /// @}

 private:
  static constexpr Index kUnit = detail::kRowUnit<T>;

  static RecurrentStateConfig checked(RecurrentStateConfig c) {
    if (c.v_dim == 0) c.v_dim = c.features;
    detail::require(c.batch > 0 && c.kv_heads > 0 && c.features > 0 && c.v_dim > 0, "RecurrentState: batch ", c.batch,
                    ", kv_heads ", c.kv_heads, ", features ", c.features, ", v_dim ", c.v_dim, " must all be positive");
    return c;
  }
  void check(const char* what, Index sequence) const {
    detail::require(sequence >= 0 && sequence < config_.batch, what, ": sequence ", sequence,
                    " is out of range; the batch is ", config_.batch);
  }
  template <class X>
  static auto* of(X& tensor, Index sequence) {
    return tensor.data() + sequence * size_of_one(tensor);
  }
  template <class X>
  static Index size_of_one(const X& tensor) {
    return tensor.size() / tensor.dim(0);
  }

  RecurrentStateConfig config_;
  Tensor<T, 4> sums_;
  Tensor<T, 3> normaliser_;
};

namespace detail {

template <class X>
constexpr bool is_recurrent_state = false;
template <class T>
constexpr bool is_recurrent_state<RecurrentState<T>> = true;
/// What a call without a state has in its place.
template <class X>
concept NoState = !is_recurrent_state<X>;

}  // namespace detail

}  // namespace attn
