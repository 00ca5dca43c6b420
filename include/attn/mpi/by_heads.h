// Attention by heads: each rank processes whole sequences of some heads.
#pragma once

#include <optional>

#include "attn/mpi/head_exchange.h"

namespace attn::detail::inline ATTN_BUILT_FOR {

/// Attention by heads on one rank.
template <class Call, class T>
class ByHeads {
  using Exchange = HeadExchange<Call, T>;

 public:
  ByHeads(Call& call, mpi::Layout layout, const Options& options)
      : call_(call),
        options_(options),
        exchange_(call, layout),
        q_(Exchange::room(call.q, exchange_.heads.q, call.whole.q_len)),
        k_(Exchange::room(call.k, exchange_.heads.kv, call.whole.kv_len)),
        v_(Exchange::room(call.v, exchange_.heads.kv, call.whole.kv_len)),
        out_(DType::native, call.own.batch, exchange_.heads.q.size(), call.whole.q_len, call.own.v_dim),
        lse_(DType::native, call.own.batch, exchange_.heads.q.size(), call.whole.q_len, 1),
        lse_rests_(DType::native, call.own.batch, exchange_.heads.q.size(), call.whole.q_len, 1),
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
  HeadsBuffer<T> q_, k_, v_, out_, lse_, lse_rests_;
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

}  // namespace attn::detail::inline ATTN_BUILT_FOR
