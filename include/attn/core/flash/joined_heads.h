// The query heads that share a key head as the queries of one head, for Options::row_invariant.
#pragma once

#include <algorithm>
#include <limits>

#include "attn/core/base/ranges.h"
#include "attn/core/flash/pass.h"

namespace attn::detail::inline ATTN_BUILT_FOR {

/// A pass over one query per head, seen as a pass over one query head per key head, whose queries are the heads of the
/// group. A tile computes whole vectors of queries, so it then serves several heads in the time of one. On a Zen 3 core
/// with AVX2, single queries whose keys are read from memory take 1.8 times as long as in DecodeLoop with four heads
/// per key head, and 0.7 times as long with sixteen.
template <class T>
class JoinedHeads {
 public:
  /// Whether the heads of a pass can be joined. Passes with sinks, additive scores or dropout cannot: each head has a
  /// separate sink and score, but a tile has only one, and dropout draws its numbers for several queries of a head at a
  /// time.
  static bool can_join(const Pass<T>& pass) {
    const Problem& p = pass.tensors.problem;
    if (p.q_len != 1 || p.heads == p.kv_heads || pass.tensors.score || pass.tensors.q_list.exists()) return false;
    if (!pass.mods) return true;
    if (pass.mods->kept_factor() != 1) return false;
    for (Index h = 0; h < p.heads; ++h)
      if (pass.mods->sink(h) != -std::numeric_limits<double>::infinity()) return false;
    return true;
  }

  explicit JoinedHeads(const Pass<T>& of)
      : of_(of), problem_(of.tensors.problem), tensors_(joined(of.tensors, problem_)), mods_(of, tensors_) {}
  JoinedHeads(const JoinedHeads&) = delete;  // its members refer to each other

  Pass<T> pass() const { return {tensors_, of_.mods ? &mods_ : nullptr, of_.resumes, of_.whole}; }

 private:
  /// The mods of the heads. Query i of a joined head is the query of head i of the group.
  class Mods final : public TileMods<T> {
   public:
    Mods(const Pass<T>& of, const CallTensors<T>& joined)
        : mods_(of.mods), joined_(joined), group_(of.tensors.problem.heads / of.tensors.problem.kv_heads) {}

    Range kv_range(const Tile& tile) const override {
      Range all{0, 0};
      each(tile, [&](const Tile& one, Index) { all = hull(all, mods_->kv_range(one)); });
      return all;
    }
    Coverage coverage(VectorSet vectors, const Tile& tile) const override {
      Coverage all = Coverage::some;
      each(tile, [&](const Tile& one, Index i) {
        const Coverage own = mods_->coverage(vectors, one);
        all = i == 0 || all == own ? own : Coverage::some;
      });
      return all;
    }
    bool has_scores() const override { return mods_->has_scores(); }
    double sink(Index) const override { return -std::numeric_limits<double>::infinity(); }
    void apply(VectorSet vectors, T* scores, Index stride, const Tile& tile, bool masked) const override {
      each(tile, [&](const Tile& one, Index i) { mods_->apply(vectors, scores + i, stride, one, masked); });
    }
    long double kept_factor() const override { return 1; }
    void drop_weights(VectorSet, T*, WeightOrder, Index, const Tile&) const override {}  // there is no dropout

   private:
    /// Calls use(tile of a single query, its number in the tile).
    template <class Use>
    void each(const Tile& tile, const Use& use) const {
      const Index first = joined_.problem.first_query(tile.batch - joined_.first_batch);
      for (Index i = 0; i < tile.q.size(); ++i)
        use({tile.batch, tile.head * group_ + tile.q.begin - first + i, {first, first + 1}, tile.kv}, i);
    }

    const TileMods<T>* mods_;
    const CallTensors<T>& joined_;
    Index group_;
  };

  static CallTensors<T> joined(const CallTensors<T>& t, Problem& problem) {
    const Index group = problem.heads / problem.kv_heads;
    problem.q_len = group;
    problem.heads = problem.kv_heads;
    const auto of = [&]<class View>(const View& view) {
      if (view.data() == nullptr) return view;
      auto shape = view.shape(), strides = view.strides();
      shape[1] = problem.heads, shape[2] = group;
      strides[2] = strides[1];
      if (problem.heads > 1) strides[1] *= group;  // with one head, the product could overflow
      return view.part(0, shape, strides);
    };
    CallTensors<T> all{
        .out = of(t.out), .lse = of(t.lse), .q = of(t.q), .k = t.k, .v = t.v, .problem = problem, .kernels = t.kernels};
    all.lse_rests = t.lse_rests;
    all.first_batch = t.first_batch;
    all.rotation = t.rotation;
    all.rows_are_heads = true;
    return all;
  }

  const Pass<T>& of_;
  Problem problem_;
  CallTensors<T> tensors_;
  Mods mods_;
};

}  // namespace attn::detail::inline ATTN_BUILT_FOR
