// Tokens exchanged for heads and back, so that each rank works on whole texts of some heads (Jacobs et al. 2023,
// "DeepSpeed Ulysses").
#pragma once

#include <optional>

#include "attn/detail/mpi/ring_forward.h"

namespace attn::detail {
inline namespace ATTN_BUILT_FOR {

/// The query heads of a rank, and the key and value heads that these share. Neighbouring ranks may need the same one.
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
  return t.part(heads.empty() ? 0 : heads.begin * t.stride(1), shape, t.strides());
}
/// The rows of a whole text that are some tokens.
template <class T>
DTypeView<T> tokens_of_tensor(const DTypeView<T>& t, const Progression& tokens) {
  typename DTypeView<T>::Shape shape = t.shape(), strides = t.strides();
  shape[2] = tokens.count;
  if (tokens.count > 1) strides[2] *= tokens.step;
  return t.part(tokens.count == 0 ? 0 : tokens.first * t.stride(2), shape, strides);
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

/// Attention by heads on one rank.
template <class Call, class T>
class ByHeads {
 public:
  ByHeads(Call& call, mpi::Layout layout, const Options& options)
      : call_(call),
        options_(options),
        layout_(layout),
        messages_(call.comm),
        heads_(call.own, call.comm.rank(), call.comm.ranks()),
        q_(room(call.q, heads_.q, call.whole.q_len)),
        k_(room(call.k, heads_.kv, call.whole.kv_len)),
        v_(room(call.v, heads_.kv, call.whole.kv_len)),
        out_(DType::native, call.own.batch, heads_.q.size(), call.whole.q_len, call.own.v_dim),
        lse_(DType::native, call.own.batch, heads_.q.size(), call.whole.q_len, 1) {}

  void run(const OutputSums<T>& sums, mpi::Traffic& traffic) {
    for_each_rank([&](int r, const RankHeads& heads) {
      to_heads(call_.q, heads.q, q_.view(), r, call_.whole.q_len, MessageKind::rows);
      to_heads(call_.k, heads.kv, k_.view(), r, call_.whole.kv_len, MessageKind::keys);
      to_heads(call_.v, heads.kv, v_.view(), r, call_.whole.kv_len, MessageKind::values);
    });
    wait(traffic);
    call_.failure.guard([&] { compute(); });
    const TensorView<T, 4> lse4(sums.lse.data(),
                                {call_.own.batch, call_.own.heads, call_.own.q_len, sums.lse.data() ? 1 : 0},
                                {sums.lse.stride(0), sums.lse.stride(1), sums.lse.stride(2), 1});
    for_each_rank([&](int r, const RankHeads& heads) {
      from_heads(sums.out, heads.q, out_.view(), r, MessageKind::values);
      from_heads(DTypeView<T>(lse4), heads.q, lse_.view(), r, MessageKind::rows);
    });
    wait(traffic);
    traffic.bytes_sent = messages_.bytes_sent();
    traffic.bytes_held = q_.bytes() + k_.bytes() + v_.bytes() + out_.bytes() + lse_.bytes();
  }

 private:
  static HeadsRoom<T> room(const DTypeView<const T>& like, const Range& heads, Index len) {
    return {like.dtype(), like.dim(0), heads.size(), len, like.dim(3)};
  }
  RankTokens tokens(Index len, int rank) const { return {layout_, len, rank, call_.comm.ranks()}; }

  /// Calls visit(rank, its heads), the nearest first, this rank itself too.
  template <class Visit>
  void for_each_rank(const Visit& visit) {
    for (int step = 0; step < call_.comm.ranks(); ++step) {
      const int r = (call_.comm.rank() + step) % call_.comm.ranks();
      visit(r, RankHeads(call_.own, r, call_.comm.ranks()));
    }
  }
  void wait(mpi::Traffic& traffic) {
    traffic.seconds_waited += wait_for([&] {
      messages_.poll();
      return under_way_ == 0;
    });
  }

  /// Own rows of the heads of rank r go there; its rows of our heads come.
  void to_heads(const DTypeView<const T>& rows, const Range& heads, const DTypeView<T>& whole, int r, Index len,
                MessageKind kind) {
    const RankTokens own = tokens(len, call_.comm.rank()), theirs = tokens(len, r);
    for (int part = 0; part < 2; ++part) {
      const auto i = static_cast<std::size_t>(part);
      messages_.receive(tokens_of_tensor(whole, theirs.parts[i]), r, kind, under_way_);
      messages_.send(heads_of_tensor(rows_of_tensor(rows, own.first_row(part), own.parts[i].count), heads), r, kind,
                     under_way_);
    }
  }
  /// The way back, of the queries.
  void from_heads(const DTypeView<T>& rows, const Range& heads, const DTypeView<T>& whole, int r, MessageKind kind) {
    const RankTokens own = tokens(call_.whole.q_len, call_.comm.rank()), theirs = tokens(call_.whole.q_len, r);
    for (int part = 0; part < 2; ++part) {
      const auto i = static_cast<std::size_t>(part);
      messages_.receive(heads_of_tensor(rows_of_tensor(rows, own.first_row(part), own.parts[i].count), heads), r, kind,
                        under_way_);
      messages_.send(as_const(tokens_of_tensor(whole, theirs.parts[i])), r, kind, under_way_);
    }
  }

  /// Heads that share a key head wholly on this rank go together; those of a key head that other ranks need too, by
  /// themselves.
  void compute() {
    const Index group = call_.own.heads / call_.own.kv_heads;
    for (Index head = heads_.q.begin; head < heads_.q.end;) {
      const bool begins_group = head % group == 0 && head + group <= heads_.q.end;
      const Index end =
          begins_group ? head + (heads_.q.end - head) / group * group : std::min(heads_.q.end, padded(head + 1, group));
      attend_heads({head, end});
      head = end;
    }
  }
  void attend_heads(const Range& heads) {
    using Mods = PlacedMods<typename Call::Mods>;
    Problem problem = problem_of_part(call_.own, call_.whole.q_len, call_.whole.kv_len);
    const Range kv{call_.own.kv_head(heads.begin), call_.own.kv_head(heads.end - 1) + 1};
    problem.heads = heads.size();
    problem.kv_heads = kv.size();
    const auto in_room = [](const Range& r, Index first) { return Range{r.begin - first, r.end - first}; };
    const Range q_heads = in_room(heads, heads_.q.begin), kv_heads = in_room(kv, heads_.kv.begin);
    const Mods mods(*call_.mods, call_.whole,
                    {{0, 1, call_.whole.q_len}, {0, 1, call_.whole.kv_len}, heads.begin, true});
    const DTypeView<T> lse = heads_of_tensor(lse_.view(), q_heads);
    const CallTensors<T> tensors{
        heads_of_tensor(out_.view(), q_heads),
        TensorView<T, 4>(reinterpret_cast<T*>(lse.data()), lse.shape(), lse.strides()).squeeze(3),
        as_const(heads_of_tensor(q_.view(), q_heads)),
        as_const(heads_of_tensor(k_.view(), kv_heads)),
        as_const(heads_of_tensor(v_.view(), kv_heads)),
        problem};
    flash<T>(tensors, PassSequenceOf<T, Mods>(mods), options_);
  }

  Call& call_;
  const Options& options_;
  const mpi::Layout layout_;
  int under_way_ = 0;
  Messages messages_;
  const RankHeads heads_;
  HeadsRoom<T> q_, k_, v_, out_, lse_;
};

template <class Call, class T>
void attention_by_heads(Call& call, mpi::Layout layout, const ResultViews<T>& result, const Options& options,
                        mpi::Traffic& traffic) {
  Need own;
  std::optional<OutputSums<T>> sums;
  std::optional<ByHeads<Call, T>> work;
  call.failure.guard([&] { sample_mods(*call.mods, call.whole, own); });
  call.failure.guard([&] { sums.emplace(result, call.own); });
  call.failure.guard([&] { work.emplace(call, layout, options); });
  own.failed = call.failure.code();
  compare_needs(call.comm, call.comm.all(own), call.failure);
  work->run(*sums, traffic);
  call.failure.guard([&] { sums->end(options); });
  end_together(call.comm, call.failure);
}

}  // namespace ATTN_BUILT_FOR
}  // namespace attn::detail
