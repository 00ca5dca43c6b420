// Recurrent states: sequences fed in parts of any lengths, single tokens, ragged batches, beams.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "recurrent_paths.h"
#include "support/allocations.h"
#include "support/executors.h"
#include "support/refused.h"

namespace attn::test {
namespace {

constexpr Index kBatch = 2, kHeads = 4, kKvHeads = 2, kDim = 16, kVDim = 20;

/// The inputs of a sequence, and parts of them.
template <class T>
struct Sequence {
  explicit Sequence(Index len, std::uint64_t seed = 1)
      : random(seed),
        in(random, kBatch, kHeads, kKvHeads, len, len, kDim, kVDim, 0.3),
        q({kBatch, kHeads, len, kDim}),
        k(token_tensor<T>(in, in.k, in.head_dim)),
        v(token_tensor<T>(in, in.v, in.v_dim)),
        gates(token_tensor<T>(in, in.feature_gate, in.head_dim)),
        a(token_tensor<T>(in, in.a, in.head_dim)),
        b(token_tensor<T>(in, in.b_vector, in.head_dim)),
        gate(token_scalars<T>(in, in.token_gate)),
        beta(token_scalars<T>(in, in.beta)) {
    std::copy_n(as<T>(in.q).data(), q.size(), q.data());
  }
  Random random;
  Recurrent in;
  Tensor<T, 4> q, k, v, gates, a, b;
  Tensor<T, 3> gate, beta;

  /// Calls form number `form` on tokens begin .. end - 1, without a state if `state` is null.
  Tensor<T, 4> run(int form, RecurrentState<T>* state, Index begin, Index end, const Options& options = {}) const {
    const auto part = [&](const auto& t) { return t.view().slice(2, begin, end); };
    const auto with = [&](const auto& call) { return call(part(q), part(k), part(v)).out; };
    const Mods<> none;
    switch (form) {
      case 0:
        return with([&](const auto&... x) {
          return state ? linear_attention(*state, x..., elu1(), causal(), options)
                       : linear_attention(x..., elu1(), causal(), options);
        });
      case 1:
        return with([&](const auto&... x) {
          return state ? gated_attention(*state, x..., part(gate), none, options)
                       : gated_attention(x..., part(gate), none, options);
        });
      case 2:
        return with([&](const auto&... x) {
          return state ? gated_attention(*state, x..., part(gates), none, options)
                       : gated_attention(x..., part(gates), none, options);
        });
      case 3:
        return with([&](const auto&... x) {
          return state ? gated_attention(*state, x..., retention_decay(kKvHeads), none, options)
                       : gated_attention(x..., retention_decay(kKvHeads), none, options);
        });
      case 4:
        return with([&](const auto&... x) {
          return state ? gated_delta_rule(*state, x..., part(gates), part(beta), none, options)
                       : gated_delta_rule(x..., part(gates), part(beta), none, options);
        });
      case 5:
        return with([&](const auto&... x) {
          return state ? dplr_delta_rule(*state, x..., part(a), part(b), part(gates), none, options)
                       : dplr_delta_rule(x..., part(a), part(b), part(gates), none, options);
        });
      default:
        return with([&](const auto&... x) {
          return state ? gated_delta_rule(*state, x..., part(gate), part(beta), none, options)
                       : gated_delta_rule(x..., part(gate), part(beta), none, options);
        });
    }
  }
};
constexpr int kForms = 7;

template <class T>
RecurrentState<T> empty_state() {
  return RecurrentState<T>({.batch = kBatch, .kv_heads = kKvHeads, .features = kDim, .v_dim = kVDim});
}

template <class T>
T largest_difference(const TensorView<const T, 4>& a, const TensorView<const T, 4>& b) {
  T most = 0;
  for (Index i = 0; i < a.dim(0); ++i)
    for (Index h = 0; h < a.dim(1); ++h)
      for (Index r = 0; r < a.dim(2); ++r)
        for (Index e = 0; e < a.dim(3); ++e) {
          const T difference = std::abs(a(i, h, r, e) - b(i, h, r, e));
          most = std::isnan(difference) ? std::numeric_limits<T>::infinity() : std::max(most, difference);
        }
  return most;
}

template <class T>
struct RecurrentStates : testing::Test {};
using Scalars = testing::Types<float, double, long double>;
TYPED_TEST_SUITE(RecurrentStates, Scalars);

TYPED_TEST(RecurrentStates, PartsOfAnyLengthsGiveTheWholeSequence) {
  using T = TypeParam;
  const Sequence<T> sequence(150);
  for (int form = 0; form < kForms; ++form) {
    const Tensor<T, 4> whole = sequence.run(form, nullptr, 0, 150);
    for (const std::vector<Index>& lengths :
         {std::vector<Index>{150}, {1, 2, 3, 144}, {70, 1, 1, 64, 14}, {63, 65, 22}, std::vector<Index>(150, 1)}) {
      auto state = empty_state<T>();
      Index at = 0;
      for (const Index n : lengths) {
        const Tensor<T, 4> part = sequence.run(form, &state, at, at + n);
        EXPECT_LE(largest_difference<T>(part, whole.slice(2, at, at + n)), 200 * std::numeric_limits<T>::epsilon())
            << "form " << form << " from token " << at << ", " << n;
        at += n;
      }
    }
  }
}

TYPED_TEST(RecurrentStates, RowInvariantPartsGiveTheBitsOfTheWholeSequence) {
  using T = TypeParam;
  const Index len = 1100;  // more than a segment
  const Sequence<T> sequence(len);
  const Options serially{.executor = serial(), .row_invariant = true},
      on_threads{.executor = eager_threads(3), .row_invariant = true};
  for (int form = 0; form < kForms; ++form) {
    auto all = empty_state<T>();
    const Tensor<T, 4> whole = sequence.run(form, nullptr, 0, len, serially);
    EXPECT_EQ(largest_difference<T>(sequence.run(form, &all, 0, len, on_threads), whole), 0) << "form " << form;
    EXPECT_LE(largest_difference<T>(sequence.run(form, nullptr, 0, len), whole),
              2000 * std::numeric_limits<T>::epsilon());
    for (const std::vector<Index>& lengths : {std::vector<Index>{1, 2, 63, 64, 65, 905}, {1030, 70}}) {
      auto state = empty_state<T>();
      Index at = 0;
      for (const Index n : lengths) {
        const Tensor<T, 4> part = sequence.run(form, &state, at, at + n, at % 2 ? serially : on_threads);
        EXPECT_EQ(largest_difference<T>(part, whole.slice(2, at, at + n)), 0) << "form " << form << " from " << at;
        at += n;
      }
      EXPECT_EQ(largest_difference<T>(state.sums(), all.sums()), 0) << "form " << form;
    }
  }
  // Keys without queries, and a batch element alone.
  const Tensor<T, 4> whole = sequence.run(0, nullptr, 0, len, serially),
                     last = linear_attention(sequence.q.view().slice(2, len - 20, len), sequence.k, sequence.v, elu1(),
                                             causal(), on_threads)
                                .out,
                     second = linear_attention(sequence.q.view().slice(0, 1, 2), sequence.k.view().slice(0, 1, 2),
                                               sequence.v.view().slice(0, 1, 2), elu1(), causal(), on_threads)
                                  .out;
  EXPECT_EQ(largest_difference<T>(last, whole.slice(2, len - 20, len)), 0);
  EXPECT_EQ(largest_difference<T>(second, whole.slice(0, 1, 2)), 0);
}

/// A head gives the same bits alone as in a group that shares its keys.
TEST(RecurrentState, RowInvariantHeadsDoNotDependOnTheirGroup) {
  const Options options{.row_invariant = true};
  for (const Index dim : {7, 16, 33}) {
    Random random(3);
    Tensor<float, 4> q({1, 3, 50, dim}), k({1, 1, 50, dim}), v({1, 1, 50, 20});
    Tensor<float, 3> gate({1, 1, 50}), beta({1, 1, 50});
    const auto draw = [&](auto& x, double from, double to) {
      for (Index i = 0; i < x.size(); ++i) x.data()[i] = static_cast<float>(random.uniform(from, to));
    };
    draw(q, -1, 1), draw(k, -0.3, 0.3), draw(v, -1, 1), draw(gate, -0.5, 0), draw(beta, 0, 1);
    const Mods<> none;
    const auto check = [&](const auto& form) {
      const Tensor<float, 4> all = form(q).out;
      for (Index h = 0; h < 3; ++h) {
        const Tensor<float, 4> one = form(Tensor<float, 4>(q.view().slice(1, h, h + 1))).out;
        EXPECT_EQ(largest_difference<float>(one, all.slice(1, h, h + 1)), 0) << "head " << h << ", head_dim " << dim;
      }
    };
    check([&](const auto& queries) { return linear_attention(queries, k, v, elu1(), causal(), options); });
    check([&](const auto& queries) { return gated_attention(queries, k, v, gate, none, options); });
    check([&](const auto& queries) { return gated_delta_rule(queries, k, v, gate, beta, none, options); });
  }
}

/// Each sequence of the batch consumes its own number of tokens; NaN in the trailing padding has no effect.
TYPED_TEST(RecurrentStates, PromptsOfDifferentLengths) {
  using T = TypeParam;
  Sequence<T> sequence(80), other(80);
  for (Index h = 0; h < kKvHeads; ++h)
    for (Index t = 30; t < 80; ++t) {
      for (Index d = 0; d < kDim; ++d) other.k(0, h, t, d) = std::numeric_limits<T>::quiet_NaN();
      for (Index e = 0; e < kVDim; ++e) other.v(0, h, t, e) = std::numeric_limits<T>::infinity();
      other.gate(0, h, t) = std::numeric_limits<T>::quiet_NaN();
    }
  auto ragged = empty_state<T>(), ragged_gated = empty_state<T>();
  const auto out = linear_attention(ragged, other.q, other.k, other.v, elu1(), causal() | key_lengths({30, 80})).out;
  const auto gated = gated_attention(ragged_gated, other.q, other.k, other.v, other.gate, key_lengths({30, 80})).out;
  auto first = empty_state<T>(), all = empty_state<T>(), first_gated = first, all_gated = all;
  sequence.run(0, &first, 0, 30), sequence.run(0, &all, 0, 80);
  sequence.run(1, &first_gated, 0, 30), sequence.run(1, &all_gated, 0, 80);
  const auto same = [](const auto& a, const auto& b, const auto& c) {  // sequence 0 of a, sequence 1 of b
    const T near = 200 * std::numeric_limits<T>::epsilon();
    const auto got = c.sums(), zero = a.sums(), one = b.sums();
    EXPECT_LE(largest_difference<T>(got.slice(0, 0, 1), zero.slice(0, 0, 1)), near);
    EXPECT_LE(largest_difference<T>(got.slice(0, 1, 2), one.slice(0, 1, 2)), near);
  };
  same(first, all, ragged);
  same(first_gated, all_gated, ragged_gated);
  for (Index h = 0; h < kHeads; ++h)
    for (Index e = 0; e < kVDim; ++e) {
      EXPECT_TRUE(std::isfinite(out(0, h, 70, e)));
      EXPECT_EQ(gated(0, h, 70, e), 0);
    }
}

TEST(RecurrentState, CopyResetAndReorder) {
  const Sequence<float> sequence(40);
  auto state = empty_state<float>();
  sequence.run(0, &state, 0, 39);
  const auto before = state;
  const auto next = sequence.run(0, &state, 39, 40);
  auto copy = before;
  EXPECT_EQ(largest_difference<float>(sequence.run(0, &copy, 39, 40), next), 0);

  auto swapped = before;
  swapped.reorder({1, 0});
  EXPECT_EQ(largest_difference<float>(swapped.sums().slice(0, 0, 1), before.sums().slice(0, 1, 2)), 0);
  EXPECT_EQ(largest_difference<float>(swapped.sums().slice(0, 1, 2), before.sums().slice(0, 0, 1)), 0);
  EXPECT_EQ(swapped.normaliser()(0, 1, 3), before.normaliser()(1, 1, 3));
  swapped.reorder({1, 1});
  EXPECT_EQ(largest_difference<float>(swapped.sums().slice(0, 0, 1), before.sums().slice(0, 0, 1)), 0);

  auto one = before;
  one.reset(0);
  EXPECT_EQ(one.sums()(0, 1, 2, 3), 0);
  EXPECT_EQ(one.normaliser()(0, 1, 2), 0);
  EXPECT_EQ(one.sums()(1, 1, 2, 3), before.sums()(1, 1, 2, 3));
  one.reset();
  EXPECT_EQ(one.sums()(1, 1, 2, 3), 0);
  EXPECT_EQ(largest_difference<float>(sequence.run(0, &one, 0, 10), sequence.run(0, nullptr, 0, 10)), 0);
}

/// The state holds the sums of features times values, and of features.
TEST(RecurrentState, HoldsSums) {
  RecurrentState<double> state({.features = 2, .v_dim = 1});
  const Eigen::MatrixXd k{{1, 2}, {3, 0}}, v{{5}, {7}};
  linear_attention(state, k, k, v, identity(), causal());
  EXPECT_EQ(state.sums()(0, 0, 0, 0), 5 + 21);
  EXPECT_EQ(state.sums()(0, 0, 1, 0), 10);
  EXPECT_EQ(state.normaliser()(0, 0, 0), 4);
  EXPECT_EQ(state.bytes() % 64, 0);
}

/// A state consumes all keys of one or several segments, with rows before, among or after them, or without rows.
TEST(RecurrentState, ConsumesAllKeysForRowsAtAnyPosition) {
  Random random(3);
  for (const Index kv_len : {5, 130, 2500}) {
    const Recurrent in(random, 1, 2, 1, 70, kv_len, 4, 3);
    const auto k = token_tensor<double>(in, in.k, 4), v = token_tensor<double>(in, in.v, 3);
    Tensor<double, 4> all({1, 2, 70, 4});
    std::copy_n(in.q.data(), all.size(), all.data());
    double sum = 0, keys = 0;
    for (Index j = 0; j < kv_len; ++j) {
      const double x = k(0, 0, j, 1), feature = x > 0 ? x + 1 : std::exp(x);
      sum += feature * v(0, 0, j, 2), keys += feature;
    }
    for (const Index q_len : {0, 3, 70})
      for (const Index q_offset : {Index(-200), Index(-2), Index(0), kv_len / 2, kv_len - 1, kv_len + 9})
        for (const Executor& executor : {serial(), eager_threads(3)}) {
          const auto q = all.view().slice(2, 0, q_len);
          RecurrentState<double> state({.features = 4, .v_dim = 3});
          const Options options{.q_offset = q_offset, .executor = executor};
          const auto out = linear_attention(state, q, k, v, elu1(), causal(), options).out,
                     expected = naive_linear_attention(q, k, v, elu1(), causal(), options).out;
          EXPECT_LE(largest_difference<double>(out, expected), 1e-12) << kv_len << ", " << q_len << ", " << q_offset;
          EXPECT_NEAR(state.sums()(0, 0, 1, 2), sum, 1e-10) << kv_len << ", " << q_len << ", " << q_offset;
          EXPECT_NEAR(state.normaliser()(0, 0, 1), keys, 1e-10) << kv_len << ", " << q_len << ", " << q_offset;
        }
  }
}

/// Steps process wide values several vectors at a time, and the remaining vectors one at a time.
TEST(RecurrentState, SingleTokensOfWideValues) {
  for (const Index v_dim : {31, 64, 128, 150, 272})
    for (const Isa isa : instruction_sets()) {
      Random random(4);
      const Recurrent in(random, 1, 1, 1, 5, 5, 3, v_dim, 0.3);
      const auto q = token_tensor<float>(in, in.q, 3), k = token_tensor<float>(in, in.k, 3),
                 v = token_tensor<float>(in, in.v, v_dim);
      const auto gate = token_scalars<float>(in, in.token_gate), beta = token_scalars<float>(in, in.beta);
      const Options options{.executor = serial(), .isa = isa};
      RecurrentState<float> gated({.features = 3, .v_dim = v_dim}), delta = gated;
      const auto of_gated = gated_attention(q, k, v, gate, options).out,
                 of_delta = gated_delta_rule(q, k, v, gate, beta, options).out;
      for (Index t = 0; t < 5; ++t) {
        const auto at = [t](const auto& x) { return x.view().slice(2, t, t + 1); };
        EXPECT_LE(
            largest_difference<float>(gated_attention(gated, at(q), at(k), at(v), at(gate), options).out, at(of_gated)),
            1e-5f)
            << v_dim << " on " << to_string(isa);
        EXPECT_LE(largest_difference<float>(
                      gated_delta_rule(delta, at(q), at(k), at(v), at(gate), at(beta), options).out, at(of_delta)),
                  1e-5f)
            << v_dim << " on " << to_string(isa);
      }
    }
}

/// A token takes the same memory after any number of tokens.
TEST(RecurrentState, MemoryPerTokenIsConstant) {
  const Sequence<float> sequence(130);
  for (int form = 0; form < kForms; ++form) {
    auto state = empty_state<float>();
    std::ptrdiff_t peaks[2];
    sequence.run(form, &state, 0, 1, {.executor = serial()});
    peaks[0] = allocations_of([&] { sequence.run(form, &state, 1, 2, {.executor = serial()}); }).peak;
    sequence.run(form, &state, 2, 129, {.executor = serial()});
    peaks[1] = allocations_of([&] { sequence.run(form, &state, 129, 130, {.executor = serial()}); }).peak;
    // The heap may give an aligned block a cache line more. One float per token would be 508 bytes.
    EXPECT_NEAR(static_cast<double>(peaks[0]), static_cast<double>(peaks[1]), 64) << form;
  }
}

/// If any allocation fails, the gradient of the state is left unchanged.
TEST(RecurrentState, FailedAllocationsLeaveTheGradientOfTheStateUnchanged) {
  if (!memory_can_run_out()) GTEST_SKIP() << "sanitizers replace the heap, so allocations cannot be made to fail";
  const Sequence<float> sequence(200);
  const auto before = empty_state<float>();
  auto grad_state = empty_state<float>();
  std::fill_n(grad_state.sums().data(), 20, 1.5f);
  const auto numbers = [&] {
    const Tensor<float, 4> sums(grad_state.sums());
    return std::vector<float>(sums.data(), sums.data() + sums.size());
  };
  Tensor<float, 4> grad_out({kBatch, kHeads, 200, kVDim});
  std::fill_n(grad_out.data(), grad_out.size(), 0.5f);
  const auto unchanged = [&](const char* form, const auto& backward) {
    const std::vector<float> given = numbers();
    std::ptrdiff_t count = 0;
    for (; runs_out(count, backward); ++count) ASSERT_EQ(numbers(), given) << form << ", " << count;
    EXPECT_GT(count, 3) << form;
    EXPECT_NE(numbers(), given) << form;
  };
  for (const Executor& executor : {serial(), eager_threads(3)}) {
    const Options options{.executor = executor};
    unchanged("delta", [&] {
      gated_delta_rule_backward(before, grad_state, grad_out, sequence.q, sequence.k, sequence.v, sequence.gate,
                                sequence.beta, options);
    });
    unchanged("gated", [&] {
      gated_attention_backward(before, grad_state, grad_out, sequence.q, sequence.k, sequence.v, sequence.gates,
                               options);
    });
    unchanged("linear", [&] {
      linear_attention_backward(before, grad_state, grad_out, sequence.q, sequence.k, sequence.v, elu1(), causal(),
                                options);
    });
  }
}

TEST(RecurrentState, RefusesBadArguments) {
  expect_refused("sizes", {"features 0", "batch 1"}, [] { RecurrentState<float> s({.batch = 1, .features = 0}); });
  auto state = empty_state<float>();
  expect_refused("reorder", {"3 indices", "2 sequences"}, [&] { state.reorder({0, 1, 0}); });
  expect_refused("reorder", {"sequence 2", "batch is 2"}, [&] { state.reorder({0, 2}); });
  expect_refused("reset", {"sequence -1"}, [&] { state.reset(-1); });
  const Sequence<float> sequence(4);
  RecurrentState<float> other({.batch = kBatch, .kv_heads = kKvHeads, .features = kDim, .v_dim = kVDim + 1});
  expect_refused("another v_dim", {"(2, 2, 16, 21)", "(2, 2, 16, 20)"}, [&] { sequence.run(0, &other, 0, 4); });
  RecurrentState<float> of_heads({.batch = kBatch, .kv_heads = kHeads, .features = kDim, .v_dim = kVDim});
  expect_refused("another number of heads", {"(2, 4, 16, 20)"}, [&] { sequence.run(4, &of_heads, 0, 4); });
  RecurrentState<float> narrow({.batch = kBatch, .kv_heads = kKvHeads, .features = kDim, .v_dim = kVDim});
  expect_refused("features of a map", {"(2, 2, 24, 20)"},
                 [&] { linear_attention(narrow, sequence.q, sequence.k, sequence.v, favor(24, 1), causal()); });
}

}  // namespace
}  // namespace attn::test
