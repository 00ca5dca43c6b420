// Gradients of attention by heads. Each rank computes the gradients of whole sequences of some heads, and sends them to
// the ranks of their rows.
#pragma once

#include <optional>
#include <vector>

#include "attn/mpi/head_exchange.h"
#include "attn/mpi/ring_backward.h"

namespace attn::detail::inline ATTN_BUILT_FOR {

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
        q_(of_queries(call.q)),
        out_(of_queries(arrays.out)),
        grad_out_(of_queries(arrays.grad_out)),
        grad_q_(of_queries(call.q, true)),
        k_(of_keys(call.k)),
        v_(of_keys(call.v)),
        grad_k_(of_keys(call.k, true)),
        grad_v_(of_keys(call.v, true)),
        lse_(of_lse(!call.own.sigmoid_bias)),
        lse_rests_(of_lse(!call.own.sigmoid_bias)),
        grad_lse_(of_lse(arrays.has_grad_lse)),
        own_rests_(Tensor<T, 3>::uninitialized(arrays.lse.shape())),
        sum_q_(arrays.grad_q),
        sum_k_(arrays.grad_k),
        sum_v_(arrays.grad_v) {
    for (const auto* gradient : {&sum_q_, &sum_k_, &sum_v_}) set_zero(gradient->sum);
    for (int r = 0; r < call.comm.ranks(); ++r) {
      const auto room = [&](const DTypeView<const T>& like) {
        return HeadsBuffer<T>(DType::native, call.own.batch, shared_head(r).size(), like.dim(2), like.dim(3));
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
      for (const HeadsBuffer<T>& room : *more) traffic.bytes_held += room.bytes();
  }

 private:
  HeadsBuffer<T> of_queries(const DTypeView<const T>& like, bool is_computed = false) const {
    return Exchange::room(like, exchange_.heads.q, call_.whole.q_len, is_computed);
  }
  HeadsBuffer<T> of_keys(const DTypeView<const T>& like, bool is_computed = false) const {
    return Exchange::room(like, exchange_.heads.kv, call_.whole.kv_len, is_computed);
  }
  /// Allocates log-sum-exps of the heads, if they exist: a rank cannot tell from its own rows, because it may have
  /// none.
  HeadsBuffer<T> of_lse(bool exists) const {
    return {DType::native, call_.own.batch, exchange_.heads.q.size(), call_.whole.q_len, exists ? 1 : 0};
  }
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
    const auto in_q = [&](HeadsBuffer<T>& room) { return as_const(heads_of_tensor(room.view(), heads.q)); };
    const auto in_kv = [&](HeadsBuffer<T>& room) { return as_const(heads_of_tensor(room.view(), heads.kv)); };
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
      const auto keys = [&](HeadsBuffer<T>& gradients, const DTypeView<T>& sum, HeadsBuffer<T>& more,
                            MessageKind kind) {
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
  HeadsBuffer<T> q_, out_, grad_out_, grad_q_, k_, v_, grad_k_, grad_v_, lse_, lse_rests_, grad_lse_;
  Tensor<T, 3> own_rests_;  ///< of this rank's rows
  AccumulatedTensor<T> sum_q_, sum_k_, sum_v_;
  std::vector<HeadsBuffer<T>> more_k_, more_v_;  ///< [r]: gradients of a key head that rank r - 1 has too
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
