// Exchanges tokens for heads, so that each rank works on whole texts of some heads, and back (Jacobs et al. 2023,
// "DeepSpeed Ulysses").
#pragma once

#include <algorithm>

#include "attn/detail/mpi/ring_forward.h"

namespace attn::detail {
inline namespace ATTN_BUILT_FOR {

/// The query heads of a rank, and the key and value heads that they share. Neighbouring ranks may need the same one.
struct RankHeads {
  Range q, kv;

  RankHeads(const Problem& p, Index rank, Index ranks) : q{p.heads * rank / ranks, p.heads * (rank + 1) / ranks} {
    kv = {p.kv_head(q.begin), p.kv_head(q.end - 1) + 1};
  }
};

/// Some heads of a tensor.
template <class T>
DTypeView<T> heads_of_tensor(const DTypeView<T>& t, const Range& heads) {
  typename DTypeView<T>::Shape shape = t.shape();
  shape[1] = heads.size();
  return t.part(heads.empty() || t.data() == nullptr ? 0 : heads.begin * t.stride(1), shape, t.strides());
}
/// The rows of a whole text that are some tokens.
template <class T>
DTypeView<T> tokens_of_tensor(const DTypeView<T>& t, const Progression& tokens) {
  typename DTypeView<T>::Shape shape = t.shape(), strides = t.strides();
  shape[2] = tokens.count;
  if (tokens.count > 1) strides[2] *= tokens.step;
  return t.part(tokens.count == 0 || t.data() == nullptr ? 0 : tokens.first * t.stride(2), shape, strides);
}

/// A tensor of our own for whole texts of some heads, of numbers like those of another tensor.
template <class T>
class HeadsRoom {
 public:
  HeadsRoom(DType dtype, Index batch, Index heads, Index len, Index dim)
      : dtype_(dtype), shape_{batch, heads, len, dim} {
    memory_ = Tensor<std::byte, 1>::uninitialized({batch * heads * len * dim * size_of_number<T>(dtype)});
  }
  DTypeView<T> view() { return {memory_.data(), dtype_, shape_, row_major_strides<4>(shape_)}; }
  Index bytes() const { return memory_.size(); }

 private:
  DType dtype_;
  Shape<4> shape_;
  Tensor<std::byte, 1> memory_;
};

/// Sends rows of heads to where they are worked on, and back, in a call on one rank.
template <class Call, class T>
class HeadExchange {
 public:
  HeadExchange(Call& call, mpi::Layout layout)
      : heads(call.own, call.comm.rank(), call.comm.ranks()), call_(call), layout_(layout), messages_(call.comm) {}

  const RankHeads heads;  ///< of this rank

  /// Room for whole texts of some heads, of numbers as in `like`, or, `is_computed`, as they are computed with.
  static HeadsRoom<T> room(const DTypeView<const T>& like, const Range& heads, Index len, bool is_computed = false) {
    return {is_computed ? DType::native : like.dtype(), like.dim(0), heads.size(), len, like.dim(3)};
  }

  /// Calls visit(rank, its heads), this rank first, then the nearest.
  template <class Visit>
  void for_each_rank(const Visit& visit) const {
    for (int step = 0; step < call_.comm.ranks(); ++step) {
      const int r = (call_.comm.rank() + step) % call_.comm.ranks();
      visit(r, RankHeads(call_.own, r, call_.comm.ranks()));
    }
  }

  /// Sends own rows of queries, keys or values to the ranks of their heads, and receives all rows of own heads.
  void to_heads(const DTypeView<const T>& rows, Range RankHeads::*which, const DTypeView<T>& whole, MessageKind kind) {
    const Index len = whole.dim(2);
    for_each_rank([&](int r, const RankHeads& theirs) {
      for (int part = 0; part < 2; ++part) {
        messages_.receive(tokens_of_rank(whole, len, r, part), r, kind, under_way_);
        messages_.send(heads_of_tensor(rows_of_part(rows, len, part), theirs.*which), r, kind, under_way_);
      }
    });
  }
  /// The reverse of to_heads(): sends rank r its rows of own heads `mine`, numbered as in `whole`, and receives own
  /// rows of `theirs`.
  void from_heads(int r, const DTypeView<T>& rows, const Range& theirs, const DTypeView<T>& whole, const Range& mine,
                  MessageKind kind) {
    const Index len = whole.dim(2);
    for (int part = 0; part < 2; ++part) {
      messages_.receive(heads_of_tensor(rows_of_part(rows, len, part), theirs), r, kind, under_way_);
      messages_.send(as_const(heads_of_tensor(tokens_of_rank(whole, len, r, part), mine)), r, kind, under_way_);
    }
  }
  /// Waits until everything has arrived.
  void wait(mpi::Traffic& traffic) {
    traffic.seconds_waited += messages_.finish(under_way_);
    traffic.bytes_sent = messages_.bytes_sent();
  }

  /// Calls visit(query heads) for the heads of this rank in runs. Heads that share a key head wholly on this rank go
  /// together; those of a key head that other ranks need too go by themselves. No two visits share a head.
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

  /// Heads that are worked on together: the sizes of a call with them alone, and its mods.
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
  RankTokens tokens(Index len, int rank) const { return {layout_, len, rank, call_.comm.ranks()}; }
  /// Own rows of one part of the rank's tokens, of `len` tokens in all.
  template <class U>
  DTypeView<U> rows_of_part(const DTypeView<U>& rows, Index len, int part) const {
    const RankTokens own = tokens(len, call_.comm.rank());
    return rows_of_tensor(rows, own.first_row(part), own.parts[static_cast<std::size_t>(part)].count);
  }
  DTypeView<T> tokens_of_rank(const DTypeView<T>& whole, Index len, int rank, int part) const {
    return tokens_of_tensor(whole, tokens(len, rank).parts[static_cast<std::size_t>(part)]);
  }

  const Call& call_;
  const mpi::Layout layout_;
  int under_way_ = 0;
  Messages messages_;
};

/// Log-sum-exps as rows of one number, which travel as other rows do.
template <class T>
DTypeView<T> lse_rows(const TensorView<T, 3>& lse) {
  return TensorView<T, 4>(lse.data(), {lse.dim(0), lse.dim(1), lse.dim(2), 1},
                          {lse.stride(0), lse.stride(1), lse.stride(2), 1});
}
/// Calls visit(number, batch element, head, row) for all log-sum-exps.
template <class T, class Visit>
void each_lse(const TensorView<T, 3>& lse, const Visit& visit) {
  for (Index b = 0; b < lse.dim(0); ++b)
    for (Index h = 0; h < lse.dim(1); ++h)
      for (Index i = 0; i < lse.dim(2); ++i) visit(lse(b, h, i), b, h, i);
}
/// What rounding takes from the log-sum-exps of a room, in another one.
template <class T>
KeptLseRests<T> rests_of_rows(HeadsRoom<T>& lse, HeadsRoom<T>& rests) {
  return {reinterpret_cast<const T*>(lse.view().data()), reinterpret_cast<T*>(rests.view().data())};
}

/// The reverse of lse_rows(). Rows without a number mean that there are no log-sum-exps.
template <class T>
TensorView<T, 3> lse_of_rows(const DTypeView<T>& rows) {
  if (rows.dim(3) == 0) return {};
  return {reinterpret_cast<T*>(rows.data()),
          {rows.dim(0), rows.dim(1), rows.dim(2)},
          {rows.stride(0), rows.stride(1), rows.stride(2)}};
}

}  // namespace ATTN_BUILT_FOR
}  // namespace attn::detail
