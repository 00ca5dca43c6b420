// Attention by heads, forward and backward: ranks exchange tokens for heads and back, so that each processes whole
// sequences of some heads (Jacobs et al. 2023, "DeepSpeed Ulysses").
#pragma once

#include <algorithm>
#include <optional>
#include <vector>

#include "attn/mpi/ring.h"

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

/// One rank's part of an exchange: sends rows of heads to the ranks that process them, and back.
template <class Call, class T>
class HeadExchange {
 public:
  HeadExchange(Call& call, mpi::Layout layout)
      : heads(call.own, call.comm.rank(), call.comm.ranks()), call_(call), layout_(layout), messages_(call.comm) {}

  const RankHeads heads;  ///< of this rank

  /// Allocates whole sequences of this rank's query heads or key heads.
  RowsBuffer<T> of_queries(const DTypeView<const T>& like, bool is_computed = false) const {
    return rows_like(like, heads.q.size(), call_.whole.q_len, is_computed);
  }
  RowsBuffer<T> of_keys(const DTypeView<const T>& like, bool is_computed = false) const {
    return rows_like(like, heads.kv.size(), call_.whole.kv_len, is_computed);
  }
  /// Allocates rows of `dim` computed elements for this rank's query heads.
  RowsBuffer<T> numbers(Index dim) const {
    return {DType::native, {call_.own.batch, heads.q.size(), call_.whole.q_len, dim}};
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
KeptLseRests<T> rests_of_rows(RowsBuffer<T>& lse, RowsBuffer<T>& rests) {
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

/// Attention by heads on one rank.
template <class Call, class T>
class ByHeads {
  using Exchange = HeadExchange<Call, T>;

 public:
  ByHeads(Call& call, mpi::Layout layout, const Options& options)
      : call_(call),
        options_(options),
        exchange_(call, layout),
        q_(exchange_.of_queries(call.q)),
        k_(exchange_.of_keys(call.k)),
        v_(exchange_.of_keys(call.v)),
        out_(exchange_.numbers(call.own.v_dim)),
        lse_(exchange_.numbers(1)),
        lse_rests_(exchange_.numbers(1)),
        own_rests_(Tensor<T, 3>::uninitialized({call.own.batch, call.own.heads, call.own.q_len})) {}

  void run(const OutputSums<T>& sums, mpi::Traffic& traffic) {
    exchange_.to_heads(call_.q, &RankHeads::q, q_.view(), MessageKind::rows);
    exchange_.to_heads(call_.k, &RankHeads::kv, k_.view(), MessageKind::keys);
    exchange_.to_heads(call_.v, &RankHeads::kv, v_.view(), MessageKind::values);
    exchange_.wait(traffic);
    call_.failure.guard(
        [&] { exchange_.for_each_run([&](const typename Exchange::HeadRun& heads) { attend(heads); }); });
    const Range own{0, exchange_.heads.q.size()};
    exchange_.for_each_rank([&](int r, const RankHeads& theirs) {
      exchange_.from_heads(r, sums.out.sum, theirs.q, out_.view(), own, MessageKind::values);
      exchange_.from_heads(r, lse_rows(sums.lse), theirs.q, lse_.view(), own, MessageKind::rows);
      exchange_.from_heads(r, lse_rows(own_rests_.view()), theirs.q, lse_rests_.view(), own, MessageKind::rows);
    });
    exchange_.wait(traffic);
    call_.failure.guard([&] {
      each_lse(sums.lse, [&](T& lse, Index b, Index h, Index i) { sums.lse_rests.set(&lse, own_rests_(b, h, i)); });
    });
    traffic.bytes_held = q_.bytes() + k_.bytes() + v_.bytes() + out_.bytes() + lse_.bytes() + lse_rests_.bytes();
  }

 private:
  void attend(const typename Exchange::HeadRun& heads) {
    const CallTensors<T> tensors{heads_of_tensor(out_.view(), heads.q),
                                 lse_of_rows<T>(heads_of_tensor(lse_.view(), heads.q)),
                                 as_const(heads_of_tensor(q_.view(), heads.q)),
                                 as_const(heads_of_tensor(k_.view(), heads.kv)),
                                 as_const(heads_of_tensor(v_.view(), heads.kv)),
                                 heads.problem,
                                 kKernelChoice<T>,
                                 rests_of_rows(lse_, lse_rests_)};
    flash(tensors, heads.mods, options_);
  }

  Call& call_;
  const Options& options_;
  Exchange exchange_;
  RowsBuffer<T> q_, k_, v_, out_, lse_, lse_rests_;
  Tensor<T, 3> own_rests_;  ///< of this rank's rows
};

template <class Call, class T>
void attention_by_heads(Call& call, mpi::Layout layout, const ResultViews<T>& result, const Options& options,
                        mpi::Traffic& traffic) {
  std::optional<OutputSums<T>> sums;
  std::optional<ByHeads<Call, T>> work;
  call.failure.guard([&] { sums.emplace(result, call.own); });
  call.failure.guard([&] { work.emplace(call, layout, options); });
  compare_mods(call.comm, call.failure, [&](Need& own) { sample_mods(*call.mods, call.whole, own); });
  work->run(*sums, traffic);
  call.failure.guard([&] { sums->out.end(options); });
  end_together(call.comm, call.failure);
}

/// A backward call by heads on one rank.
template <class Call, class T>
class ByHeadsBackward {
  using Exchange = HeadExchange<Call, T>;
  using HeadRun = typename Exchange::HeadRun;

 public:
  ByHeadsBackward(Call& call, mpi::Layout layout, const RingGradients<T>& arrays, const Options& options)
      : call_(call),
        arrays_(arrays),
        options_(options),
        exchange_(call, layout),
        q_(exchange_.of_queries(call.q)),
        out_(exchange_.of_queries(arrays.out)),
        grad_out_(exchange_.of_queries(arrays.grad_out)),
        grad_q_(exchange_.of_queries(call.q, true)),
        k_(exchange_.of_keys(call.k)),
        v_(exchange_.of_keys(call.v)),
        grad_k_(exchange_.of_keys(call.k, true)),
        grad_v_(exchange_.of_keys(call.v, true)),
        // A rank cannot tell from its own rows whether log-sum-exps exist, because it may have no rows.
        lse_(exchange_.numbers(call.own.sigmoid_bias ? 0 : 1)),
        lse_rests_(exchange_.numbers(call.own.sigmoid_bias ? 0 : 1)),
        grad_lse_(exchange_.numbers(arrays.has_grad_lse ? 1 : 0)),
        own_rests_(Tensor<T, 3>::uninitialized(arrays.lse.shape())),
        sum_q_(arrays.grad_q),
        sum_k_(arrays.grad_k),
        sum_v_(arrays.grad_v) {
    for (const auto* gradient : {&sum_q_, &sum_k_, &sum_v_}) set_zero(gradient->sum);
    for (int r = 0; r < call.comm.ranks(); ++r) {
      const auto room = [&](const DTypeView<const T>& like) {
        return rows_like(like, shared_head(r).size(), like.dim(2), true);
      };
      more_k_.push_back(room(call.k));
      more_v_.push_back(room(call.v));
    }
  }

  void run(mpi::Traffic& traffic) {
    exchange_.to_heads(call_.q, &RankHeads::q, q_.view(), MessageKind::rows);
    exchange_.to_heads(arrays_.out, &RankHeads::q, out_.view(), MessageKind::rows);
    exchange_.to_heads(arrays_.grad_out, &RankHeads::q, grad_out_.view(), MessageKind::rows);
    each_lse(arrays_.lse,
             [&](const T& lse, Index b, Index h, Index i) { own_rests_(b, h, i) = arrays_.lse_rests.of(&lse); });
    if (!call_.own.sigmoid_bias) {
      exchange_.to_heads(lse_rows(arrays_.lse), &RankHeads::q, lse_.view(), MessageKind::rows);
      exchange_.to_heads(lse_rows(TensorView<const T, 3>(own_rests_.view())), &RankHeads::q, lse_rests_.view(),
                         MessageKind::rows);
    }
    if (arrays_.has_grad_lse)
      exchange_.to_heads(lse_rows(arrays_.grad_lse), &RankHeads::q, grad_lse_.view(), MessageKind::rows);
    exchange_.to_heads(call_.k, &RankHeads::kv, k_.view(), MessageKind::keys);
    exchange_.to_heads(call_.v, &RankHeads::kv, v_.view(), MessageKind::values);
    exchange_.wait(traffic);
    call_.failure.guard([&] { exchange_.for_each_run([&](const HeadRun& heads) { differentiate(heads); }); });
    return_gradients();
    exchange_.wait(traffic);
    call_.failure.guard([&] { end(); });
    traffic.bytes_held = bytes_of(q_, out_, grad_out_, grad_q_, k_, v_, grad_k_, grad_v_, lse_, lse_rests_, grad_lse_);
    for (const auto* more : {&more_k_, &more_v_})
      for (const RowsBuffer<T>& room : *more) traffic.bytes_held += room.bytes();
  }

 private:
  template <class... Rooms>
  static Index bytes_of(const Rooms&... rooms) {
    return (rooms.bytes() + ...);
  }

  /// Returns the first key head of a rank if the previous rank has it too; both ranks then compute a part of its
  /// gradients. Otherwise the range is empty.
  Range shared_head(int rank) const {
    if (rank == 0) return {};
    const Index first = RankHeads(call_.own, rank, call_.comm.ranks()).kv.begin,
                end_before = RankHeads(call_.own, rank - 1, call_.comm.ranks()).kv.end;
    return {first, std::max(first, end_before)};
  }

  void differentiate(const HeadRun& heads) {
    const auto in_q = [&](RowsBuffer<T>& room) { return as_const(heads_of_tensor(room.view(), heads.q)); };
    const auto in_kv = [&](RowsBuffer<T>& room) { return as_const(heads_of_tensor(room.view(), heads.kv)); };
    const BackwardMods<T, typename HeadRun::Mods> mods(heads.mods, heads.problem);
    const CallTensors<T> tensors{{}, {}, in_q(q_), in_kv(k_), in_kv(v_), heads.problem, kKernelChoice<T>};
    backward<T>({tensors,
                 in_q(out_),
                 in_q(grad_out_),
                 lse_of_rows(in_q(lse_)),
                 lse_of_rows(in_q(grad_lse_)),
                 rests_of_rows(lse_, lse_rests_),
                 heads_of_tensor(grad_q_.view(), heads.q),
                 heads_of_tensor(grad_k_.view(), heads.kv),
                 heads_of_tensor(grad_v_.view(), heads.kv),
                 mods.tile(),
                 mods.slopes(),
                 mods.learned(),
                 {},
                 false,
                 sums_rows<T>(tensors, in_q(out_), false, options_)},
                options_);
  }

  /// Sends gradients to the ranks of their rows. If several ranks have a key head, the gradients of the lowest such
  /// rank are received into the sums, and the gradients of the others into separate memory.
  void return_gradients() {
    const RankHeads& own = exchange_.heads;
    const Index own_shared = shared_head(call_.comm.rank()).size();
    exchange_.for_each_rank([&](int r, const RankHeads& theirs) {
      exchange_.from_heads(r, sum_q_.sum, theirs.q, grad_q_.view(), {0, own.q.size()}, MessageKind::rows);
      const auto i = static_cast<std::size_t>(r);
      const Index shared = shared_head(r).size();
      const auto keys = [&](RowsBuffer<T>& gradients, const DTypeView<T>& sum, RowsBuffer<T>& more, MessageKind kind) {
        exchange_.from_heads(r, more.view(), {0, shared}, gradients.view(), {0, own_shared}, kind);
        exchange_.from_heads(r, sum, {theirs.kv.begin + shared, theirs.kv.end}, gradients.view(),
                             {own_shared, own.kv.size()}, kind);
      };
      keys(grad_k_, sum_k_.sum, more_k_[i], MessageKind::key_gradients);
      keys(grad_v_, sum_v_.sum, more_v_[i], MessageKind::value_gradients);
    });
  }

  /// Adds the gradients of shared key heads in the order of ranks, and rounds the sums.
  void end() {
    for (int r = 0; r < call_.comm.ranks(); ++r) {
      const auto i = static_cast<std::size_t>(r);
      if (shared_head(r).empty()) continue;
      add_rows(heads_of_tensor(sum_k_.sum, shared_head(r)), more_k_[i].view());
      add_rows(heads_of_tensor(sum_v_.sum, shared_head(r)), more_v_[i].view());
    }
    for (const auto* gradient : {&sum_q_, &sum_k_, &sum_v_}) gradient->end(options_);
  }

  Call& call_;
  const RingGradients<T>& arrays_;
  const Options& options_;
  Exchange exchange_;
  RowsBuffer<T> q_, out_, grad_out_, grad_q_, k_, v_, grad_k_, grad_v_, lse_, lse_rests_, grad_lse_;
  Tensor<T, 3> own_rests_;  ///< of this rank's rows
  AccumulatedTensor<T> sum_q_, sum_k_, sum_v_;
  std::vector<RowsBuffer<T>> more_k_, more_v_;  ///< [r]: gradients of a key head that rank r - 1 has too
};

template <class Call, class T>
void by_heads_backward(Call& call, mpi::Layout layout, const RingGradients<T>& arrays, const Options& options,
                       mpi::Traffic& traffic) {
  std::optional<ByHeadsBackward<Call, T>> work;
  call.failure.guard([&] { work.emplace(call, layout, arrays, options); });
  compare_mods(call.comm, call.failure, [&](Need& own) { sample_mods(*call.mods, call.whole, own); });
  work->run(traffic);
  end_together(call.comm, call.failure);
}

}  // namespace attn::detail::inline ATTN_BUILT_FOR
