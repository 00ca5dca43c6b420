// Layer 5: the sequences of a call over a cache, checked, with the mods made ready for each.
#pragma once

#include <deque>
#include <span>
#include <vector>

#include "attn/attention.h"
#include "attn/detail/flash_sequences.h"
#include "attn/kv_batch.h"

namespace attn {
namespace detail {
inline namespace ATTN_BUILT_FOR {

/// Which rows of a tensor of queries (batch, heads, len, head_dim) belong to which sequence.
template <class Q>
struct QueryRows {
  using Tensor = Q;
  static const Q& tensor(const Q& q) { return q; }
  static void check(const Q&, const Shape<4>& shape, Index sequences) {
    require(shape[0] == sequences, "batch differs: query has ", shape[0], ", the cache ", sequences, " sequences");
  }
  /// Those of a sequence: batch element, first row, rows.
  template <class Visit>
  static void for_each(const Q&, const Shape<4>& shape, Index sequences, const Visit& visit) {
    for (Index s = 0; s < sequences; ++s) visit(s, s, Range{0, shape[2]});
  }
};
template <class Q>
struct QueryRows<Ragged<Q>> {
  using Tensor = std::remove_cvref_t<Q>;
  static const Tensor& tensor(const Ragged<Q>& r) { return r.q; }
  static void check(const Ragged<Q>& r, const Shape<4>& shape, Index sequences) {
    const Index given = static_cast<Index>(r.lens.size());
    require(given == sequences, "ragged: ", given, " lengths for ", sequences, " sequences");
    require(shape[0] == 1, "ragged: query has shape ", shape, ", the batch must be 1, and all tokens in its len");
    Index left = shape[2];
    for (std::size_t i = 0; i < r.lens.size(); ++i) {
      require(r.lens[i] >= 0 && r.lens[i] <= left, "ragged: lens[", i, "] is ", r.lens[i], ", of ", shape[2],
              " queries ", left, " are left");
      left -= r.lens[i];
    }
    require(left == 0, "ragged: the lengths add up to ", shape[2] - left, ", there are ", shape[2], " queries");
  }
  template <class Visit>
  static void for_each(const Ragged<Q>& r, const Shape<4>&, Index sequences, const Visit& visit) {
    for (Index s = 0, first = 0; s < sequences; ++s) {
      const Index end = first + r.lens[static_cast<std::size_t>(s)];
      visit(s, 0, Range{first, end});
      first = end;
    }
  }
};

/// A sequence with all that its tensors and mods refer to.
template <class T, class M>
class BoundSequence {
 public:
  BoundSequence(const Problem& own, const Problem& for_mods, const M& mods, const Rope* rope)
      : problem(own), rotation(rotation_of<T>(rope, 0, 0)), bound_(bind(mods, for_mods)), passes_(bound_) {}
  BoundSequence(const BoundSequence&) = delete;

  const Problem problem;
  Rotation<T> rotation;  ///< of no tokens, until somebody wants the result

  const TileMods<T>* mods() const { return passes_.in_one(); }

 private:
  using Bound = decltype(bind(std::declval<const M&>(), std::declval<const Problem&>()));
  Bound bound_;
  PassesOf<T, Bound> passes_;
};

/// The type that attention over a cache is computed in.
template <class Cache>
using scalar_of = typename std::remove_cvref_t<decltype(std::declval<const Cache&>().batch())>::Scalar;

/// The result of a call as views, without data for calls that only ask.
template <class T>
struct ResultViews {
  StoredView<T> out;
  TensorView<T, 3> lse;
};

/// Says in one sentence what is wrong with the types of a call; see check_types().
template <class Query, class T>
constexpr auto check_query() {
  using Q = typename QueryRows<Query>::Tensor;
  static_assert(is_scalar<typename Traits<Q>::Scalar> && std::is_same_v<computed_t<typename Traits<Q>::Scalar>, T>,
                "attn: query must hold the scalar type of the cache, or floats of 32 and 16 bits");
  static_assert(Traits<Q>::kRank == 2 || Traits<Q>::kRank == 4,
                "attn: query must be a matrix (len, dim) or a rank-4 tensor (batch, heads, len, dim)");
}

/// Checks a call over `batch` and gives use(sequences). `result(problem)` gives the views for a result of these sizes.
template <class T, class Query, class M, class MakeResult, class Use>
void with_batch(const Query& query, const KvBatch<T>& batch, const M& mods, const Options& options,
                const MakeResult& result, const Use& use) {
  using Rows = QueryRows<Query>;
  const auto& held = evaluated(Rows::tensor(query));
  const StoredView<const T> q = as_rank4(view(held));
  Rows::check(query, q.shape(), batch.size());
  // Of queries, results or log-sum-exps.
  const auto part = [](const auto& t, Index batch_element, const Range& rows) {
    auto shape = t.shape();
    shape[0] = 1;
    shape[2] = rows.size();
    const Index offset = t.data() ? batch_element * t.stride(0) + rows.begin * t.stride(2) : 0;
    return t.part(offset, shape, t.strides());
  };
  // For shapes alone.
  const auto keys_like = [&](const StoredView<const T>& pages, Index length) {
    return pages.part(0, {1, pages.dim(1), length, pages.dim(3)}, pages.strides());
  };
  Problem whole;
  whole.batch = q.dim(0);
  whole.heads = q.dim(1);
  whole.q_len = q.dim(2);
  whole.v_dim = batch.v_dim();

  std::deque<BoundSequence<T, M>> bound;
  Rows::for_each(query, q.shape(), batch.size(), [&](Index s, Index element, const Range& rows) {
    Problem problem = make_problem<T>(part(q, element, rows), keys_like(batch.keys(s), batch.length(s)),
                                      keys_like(batch.values(s), batch.length(s)), options);
    const Problem own = problem;
    problem.batch = batch.size();
    problem.sequence = s;
    bound.emplace_back(own, problem, mods, batch.rope());
  });
  const ResultViews<T> to = result(whole);
  std::vector<Sequence<T>> sequences;
  Rows::for_each(query, q.shape(), batch.size(), [&](Index s, Index element, const Range& rows) {
    BoundSequence<T, M>& b = bound[static_cast<std::size_t>(s)];
    if (to.out.data()) b.rotation = rotation_of<T>(batch.rope(), b.problem.q_offset, b.problem.q_len);
    const CallTensors<T> tensors{part(to.out, element, rows),
                                 part(to.lse, element, rows),
                                 part(q, element, rows),
                                 batch.keys(s),
                                 batch.values(s),
                                 b.problem,
                                 s,
                                 batch.rope() ? &b.rotation : nullptr};
    sequences.push_back({tensors, b.mods()});
  });
  use(std::span<const Sequence<T>>(sequences));
}

}  // namespace ATTN_BUILT_FOR
}  // namespace detail
}  // namespace attn
