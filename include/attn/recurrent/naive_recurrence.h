// Recurrences by their definition, token by token, without kernels or chunks: the reference for tests and benchmarks.
#pragma once

#include <cmath>
#include <vector>

#include "attn/core/base/compiled_once.h"
#include "attn/parallel.h"
#include "attn/recurrent/recurrence_call.h"

namespace attn::detail::inline ATTN_BUILT_FOR {

/// The state of one head, in plain loops.
template <class T>
class NaiveState {
 public:
  NaiveState(const RecurrenceCall<T>& call, Index batch, Index kv_head)
      : call_(call),
        batch_(batch),
        kv_head_(kv_head),
        features_(call.features()),
        v_dim_(call.problem.v_dim),
        sums_(static_cast<std::size_t>(features_ * v_dim_)),
        normaliser_(static_cast<std::size_t>(features_)),
        decay_(static_cast<std::size_t>(features_), T(1)) {}

  /// Adds token j, whose key has these features, by the rule above RecurrenceCall; the delta rule is computed as state
  /// = decay * state + beta * key * (valueᵀ - keyᵀ * decay * state).
  void add(const T* key, Index j) {
    const auto number = [&](const DTypeView<const T>& of, Index f) {
      return load_number<T>(of.rows(batch_, kv_head_, j), 0, f);
    };
    for (Index f = 0; f < features_ && call_.gates != Gates::none; ++f)
      decay_[static_cast<std::size_t>(f)] = std::exp(number(call_.gate, call_.gates == Gates::of_features ? f : 0));
    const bool has_b = call_.b.data() != nullptr;
    for (Index e = 0; e < v_dim_; ++e) {
      T value = number(call_.v, e), seen = 0;
      for (Index f = 0; has_b && f < features_; ++f) seen += number(call_.a, f) * at(f, e);
      for (Index f = 0; f < features_; ++f) at(f, e) *= decay_[static_cast<std::size_t>(f)];
      if (call_.has_beta()) {
        for (Index f = 0; f < features_; ++f) value -= key[f] * at(f, e);
        value *= number(call_.beta, 0);
      }
      for (Index f = 0; f < features_; ++f) at(f, e) += key[f] * value + (has_b ? number(call_.b, f) * seen : T(0));
    }
    for (Index f = 0; f < features_; ++f) normaliser_[static_cast<std::size_t>(f)] += key[f];
  }

  /// Writes the output for a query's features: scale * query * state, or query * state divided by query * normaliser.
  void read(const T* query, const RowsToWrite& out, Index row) {
    T sum = 0;
    for (Index f = 0; f < features_; ++f) sum += query[f] * normaliser_[static_cast<std::size_t>(f)];
    const T factor = !call_.is_normalised ? call_.scale : sum == T(0) ? T(0) : 1 / sum;
    for (Index e = 0; e < v_dim_; ++e) {
      T x = 0;
      for (Index f = 0; f < features_; ++f) x += query[f] * at(f, e);
      store_number<T>(out, row, e, x * factor);
    }
  }

 private:
  T& at(Index f, Index e) { return sums_[static_cast<std::size_t>(f * v_dim_ + e)]; }

  const RecurrenceCall<T>& call_;
  Index batch_, kv_head_, features_, v_dim_;
  std::vector<T> sums_, normaliser_, decay_;
};

/// Features of one row, by the definition of the map. Unlike in the kernels, no factor is taken out of the features of
/// queries, except e^max out of random features, which would otherwise overflow.
template <class T>
class NaiveFeatures {
 public:
  explicit NaiveFeatures(const RecurrenceCall<T>& call)
      : call_(call),
        row_(static_cast<std::size_t>(call.problem.head_dim)),
        features_(static_cast<std::size_t>(call.features())) {}

  const T* of(const RowsToRead& rows, bool query) {
    for (Index d = 0; d < call_.problem.head_dim; ++d) row_[static_cast<std::size_t>(d)] = load_number<T>(rows, 0, d);
    call_.map.define(row_.data(), features_.data(), query);
    return features_.data();
  }

 private:
  const RecurrenceCall<T>& call_;
  std::vector<T> row_, features_;
};

template <class T, class = include_attn_instantiate_h_in_one_unit>
void naive_recurrence(const RecurrenceCall<T>& call, const Executor& asked) {
  Workers({call.flops()}, asked).run(call.states(), [&](Index task, int) {
    const Problem& p = call.problem;
    const Index batch = task / p.kv_heads, kv_head = task % p.kv_heads, offset = p.first_query_among_keys(batch);
    NaiveFeatures<T> features(call);
    for (const TokenRun& run : call.runs.of(batch)) {
      NaiveState<T> state(call, batch, kv_head);
      Index j = run.keys.begin;
      for (Index row = run.rows.begin; row < run.rows.end; ++row) {
        const Index end = call.is_causal ? std::clamp(offset + row + 1, run.keys.begin, run.keys.end) : run.keys.end;
        for (; j < end; ++j) state.add(features.of(call.k.rows(batch, kv_head, j), false), j);
        const bool is_token = call.is_normalised || offset + row < run.keys.end;
        for (Index head = kv_head * call.group(); head < (kv_head + 1) * call.group(); ++head) {
          const RowsToWrite out = call.out.rows(batch, head);
          if (is_token)
            state.read(features.of(call.q.rows(batch, head, row), true), out, row);
          else
            for (Index e = 0; e < p.v_dim; ++e) store_number<T>(out, row, e, T(0));
        }
      }
    }
  });
}
ATTN_COMPILED_ONCE(naive_recurrence)

}  // namespace attn::detail::inline ATTN_BUILT_FOR
