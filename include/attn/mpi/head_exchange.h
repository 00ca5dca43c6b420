// Exchanges tokens for heads and back, so that each rank processes whole sequences of some heads (Jacobs et al. 2023,
// "DeepSpeed Ulysses").
#pragma once

#include <algorithm>

#include "attn/mpi/ring_forward.h"

namespace attn::detail::inline ATTN_BUILT_FOR {

/// The query heads of a rank, and the key and value heads that they share. Neighbouring ranks may need the same key
/// head.
struct RankHeads {
  Range q, kv;

  RankHeads(const Problem& p, Index rank, Index ranks) : q{p.heads * rank / ranks, p.heads * (rank + 1) / ranks} {
    kv = {p.kv_head(q.begin), p.kv_head(q.end - 1) + 1};
  }
};

/// Returns some heads of a tensor.
template <class T>
DTypeView<T> heads_of_tensor(const DTypeView<T>& t, const Range& heads) {
  typename DTypeView<T>::Shape shape = t.shape();
  shape[1] = heads.size();
  return t.part(heads.empty() || t.data() == nullptr ? 0 : heads.begin * t.stride(1), shape, t.strides());
}

/// An owning tensor for whole sequences of some heads, of any dtype that is computed in T.
template <class T>
class HeadsBuffer {
 public:
  HeadsBuffer(DType dtype, Index batch, Index heads, Index len, Index dim)
      : dtype_(dtype), shape_{batch, heads, len, dim} {
    memory_ = Tensor<std::byte, 1>::uninitialized({batch * heads * len * dim * size_of_element<T>(dtype)});
  }
  DTypeView<T> view() { return {memory_.data(), dtype_, shape_, row_major_strides<4>(shape_)}; }
  Index bytes() const { return memory_.size(); }

 private:
  DType dtype_;
  Shape<4> shape_;
  Tensor<std::byte, 1> memory_;
};

/// One rank's part of an exchange: sends rows of heads to the ranks that process them, and back.
template <class Call, class T>
class HeadExchange {
 public:
  HeadExchange(Call& call, mpi::Layout layout)
      : heads(call.own, call.comm.rank(), call.comm.ranks()), call_(call), layout_(layout), messages_(call.comm) {}

  const RankHeads heads;  ///< of this rank

  /// Allocates whole sequences of some heads, in the dtype of `like`, or in the computed type if `is_computed`.
  static HeadsBuffer<T> room(const DTypeView<const T>& like, const Range& heads, Index len, bool is_computed = false) {
    return {is_computed ? DType::native : like.dtype(), like.dim(0), heads.size(), len, like.dim(3)};
  }

  /// Calls visit(rank, its heads), for this rank first and then for those after it.
  template <class Visit>
  void for_each_rank(const Visit& visit) const {
    for (int step = 0; step < call_.comm.ranks(); ++step) {
      const int r = (call_.comm.rank() + step) % call_.comm.ranks();
      visit(r, RankHeads(call_.own, r, call_.comm.ranks()));
    }
  }

  /// Sends this rank's rows of queries, keys or values to the ranks of their heads, and receives all rows of its own
  /// heads.
  void to_heads(const DTypeView<const T>& rows, Range RankHeads::*which, const DTypeView<T>& whole, MessageKind kind) {
    const RankTokens own = tokens(whole.dim(2), call_.comm.rank());
    for_each_rank([&](int r, const RankHeads& theirs) {
      for (int part = 0; part < 2; ++part) {
        messages_.receive(rows_at(whole, tokens(whole.dim(2), r).part(part)), r, kind, pending_);
        messages_.send(heads_of_tensor(rows_of_part(rows, own, part), theirs.*which), r, kind, pending_);
      }
    });
  }
  /// Reverses to_heads(): sends rank r its rows of this rank's heads `mine`, numbered as in `whole`, and receives this
  /// rank's rows of the heads `theirs`.
  void from_heads(int r, const DTypeView<T>& rows, const Range& theirs, const DTypeView<T>& whole, const Range& mine,
                  MessageKind kind) {
    const RankTokens own = tokens(whole.dim(2), call_.comm.rank()), of_rank = tokens(whole.dim(2), r);
    for (int part = 0; part < 2; ++part) {
      messages_.receive(heads_of_tensor(rows_of_part(rows, own, part), theirs), r, kind, pending_);
      messages_.send(as_const(heads_of_tensor(rows_at(whole, of_rank.part(part)), mine)), r, kind, pending_);
    }
  }
  /// Waits until everything has arrived.
  void wait(mpi::Traffic& traffic) {
    traffic.seconds_waited += messages_.finish(pending_);
    traffic.bytes_sent = messages_.bytes_sent();
  }

  /// Calls visit(HeadRun) for consecutive heads of this rank. Heads whose key heads are needed by this rank alone are
  /// visited together; the heads of a key head that other ranks also need are visited separately. No two visits share a
  /// key head.
  template <class Visit>
  void for_each_run(const Visit& visit) const {
    const Index group = call_.own.heads / call_.own.kv_heads;
    for (Index head = heads.q.begin; head < heads.q.end;) {
      const bool begins_group = head % group == 0 && head + group <= heads.q.end;
      const Index end =
          begins_group ? head + (heads.q.end - head) / group * group : std::min(heads.q.end, padded(head + 1, group));
      visit(HeadRun(call_, heads, {head, end}));
      head = end;
    }
  }

  /// Heads that are processed together: the sizes of a call with these heads alone, and its mods.
  struct HeadRun {
    using Mods = PlacedMods<typename Call::Mods>;

    HeadRun(const Call& call, const RankHeads& all, const Range& heads)
        : problem(problem_of_part(call.own, call.whole.q_len, call.whole.kv_len)),
          mods(*call.mods, call.whole, {{0, 1, call.whole.q_len}, {0, 1, call.whole.kv_len}, heads, true}) {
      const Range shared{call.own.kv_head(heads.begin), call.own.kv_head(heads.end - 1) + 1};
      problem.heads = heads.size();
      problem.kv_heads = shared.size();
      q = {heads.begin - all.q.begin, heads.end - all.q.begin};
      kv = {shared.begin - all.kv.begin, shared.end - all.kv.begin};
    }

    Problem problem;
    Mods mods;
    Range q, kv;  ///< of this rank's heads
  };

 private:
  /// Returns the tokens of a rank if all ranks together have `len` tokens.
  RankTokens tokens(Index len, int rank) const { return {layout_, len, rank, call_.comm.ranks()}; }

  const Call& call_;
  const mpi::Layout layout_;
  int pending_ = 0;
  Messages messages_;
};

/// Returns log-sum-exps as rows of one element, which are sent as other rows are.
template <class T>
DTypeView<T> lse_rows(const TensorView<T, 3>& lse) {
  return TensorView<T, 4>(lse.data(), {lse.dim(0), lse.dim(1), lse.dim(2), 1},
                          {lse.stride(0), lse.stride(1), lse.stride(2), 1});
}
/// Calls visit(element, batch element, head, row) for all log-sum-exps.
template <class T, class Visit>
void each_lse(const TensorView<T, 3>& lse, const Visit& visit) {
  for (Index b = 0; b < lse.dim(0); ++b)
    for (Index h = 0; h < lse.dim(1); ++h)
      for (Index i = 0; i < lse.dim(2); ++i) visit(lse(b, h, i), b, h, i);
}
/// Returns storage in `rests` for the parts of the log-sum-exps `lse` lost to rounding.
template <class T>
KeptLseRests<T> rests_of_rows(HeadsBuffer<T>& lse, HeadsBuffer<T>& rests) {
  return {reinterpret_cast<const T*>(lse.view().data()), reinterpret_cast<T*>(rests.view().data())};
}

/// Reverses lse_rows(). Rows without elements mean that there are no log-sum-exps.
template <class T>
TensorView<T, 3> lse_of_rows(const DTypeView<T>& rows) {
  if (rows.dim(3) == 0) return {};
  return {reinterpret_cast<T*>(rows.data()),
          {rows.dim(0), rows.dim(1), rows.dim(2)},
          {rows.stride(0), rows.stride(1), rows.stride(2)}};
}

}  // namespace attn::detail::inline ATTN_BUILT_FOR
