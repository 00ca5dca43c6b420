// Attention in which keys pass from rank to rank (Liu et al. 2023, "Ring Attention with Blockwise Transformers").
#pragma once

#include <array>
#include <optional>
#include <vector>

#include "attn/core/flash/flash.h"
#include "attn/mpi/ring_call.h"

namespace attn::detail::inline ATTN_BUILT_FOR {

/// A tensor that a rank accumulates in the caller's memory, or in separate memory if the caller's is 16-bit.
template <class T>
class AccumulatedTensor {
 public:
  explicit AccumulatedTensor(const DTypeView<T>& result) : result_(result), sum(result) {
    if (result.dtype() == DType::native) return;
    own_ = Tensor<T, 4>::uninitialized(result.shape());
    sum = own_.view();
  }
  AccumulatedTensor(const AccumulatedTensor&) = delete;  // `sum` may view own_
  /// Rounds sums in separate memory to the caller's.
  void end(const Options& options) const {
    if (result_.dtype() == DType::native) return;
    const KernelFamily<T>& family = kernel_family<T>(vectors_of(isa_of(options)));
    for (Index b = 0; b < sum.dim(0); ++b)
      for (Index h = 0; h < sum.dim(1); ++h)
        family.unpack_rows(reinterpret_cast<const T*>(sum.rows(b, h).data), sum.dim(2), sum.dim(3), result_.rows(b, h));
  }

 private:
  DTypeView<T> result_;
  Tensor<T, 4> own_;

 public:
  DTypeView<T> sum;
};

/// The output and the log-sum-exps that a rank accumulates. Log-sum-exps for which the caller has no memory are in
/// separate memory.
template <class T>
class OutputSums {
 public:
  OutputSums(const ResultViews<T>& result, const Problem& own)
      : out(result.out), lse(result.lse), lse_rests(result.lse_rests) {
    if (lse.data() == nullptr) {
      own_lse_ = Tensor<T, 3>::uninitialized({own.batch, own.heads, own.q_len});
      lse = own_lse_.view();
      lse_rests = kept_rests_beside<T>(own_lse_);
    }
  }

 private:
  Tensor<T, 3> own_lse_;

 public:
  AccumulatedTensor<T> out;
  TensorView<T, 3> lse;
  KeptLseRests<T> lse_rests;
};

/// Attends from the queries of the tokens `q_tokens` to the keys of the tokens `kv_tokens`. `begun`: which parts of the
/// queries have seen keys before. `has_sinks`: whether sinks are added with the first keys.
template <class Call, class T, class Poll>
void attend(const Call& call, const RankTokens& q_tokens, const Progression& kv_tokens, const DTypeView<const T>& k,
            const DTypeView<const T>& v, const DTypeView<T>& out, const TensorView<T, 3>& lse,
            const KeptLseRests<T>& lse_rests, std::array<bool, 2>& begun, bool has_sinks, const Options& options,
            const Poll& poll) {
  using Mods = PlacedMods<typename Call::Mods>;
  for (std::size_t part = 0; part < begun.size(); ++part) {
    const bool resumes = begun[part];
    const Place place{q_tokens.parts[part], kv_tokens, {}, has_sinks && !resumes};
    // The first keys of queries are never skipped: without a pass nothing would be written.
    if (resumes && needed_rows(*call.mods, call.whole, place).empty()) continue;
    begun[part] = true;
    if (place.q.count == 0) continue;
    const Index row = q_tokens.first_row(static_cast<int>(part)), rows = place.q.count;
    const Problem problem = problem_of_part(call.own, rows, kv_tokens.count);
    const Mods mods(*call.mods, call.whole, place);
    const CallTensors<T> tensors{rows_of_tensor(out, row, rows),
                                 lse.slice(2, row, row + rows),
                                 rows_of_tensor(call.q, row, rows),
                                 k,
                                 v,
                                 problem,
                                 kKernelChoice<T>,
                                 lse_rests};
    flash(tensors, mods, part_options(options, problem, resumes, poll));
  }
}

/// The forward pass on one rank.
template <class Call, class T>
void ring_forward(Call& call, mpi::Layout layout, const ResultViews<T>& result, const Options& options,
                  mpi::Traffic& traffic) {
  const Communicator& comm = call.comm;
  const RankTokens q_tokens(layout, call.whole.q_len, comm.rank(), comm.ranks()),
      kv_tokens(layout, call.whole.kv_len, comm.rank(), comm.ranks());
  const RingPlan plan = plan_of(call, layout);
  std::optional<OutputSums<T>> sums;
  std::optional<Messages> messages(comm);
  std::optional<PassingKeys<T>> keys;
  call.failure.guard([&] { sums.emplace(result, call.own); });
  call.failure.guard([&] { keys.emplace(*messages, call.k, call.v, kv_tokens, plan); });
  end_together(comm, call.failure);
  const auto poll = [&] {
    messages->poll();
    keys->advance();
  };
  std::array<bool, 2> begun{};
  const auto meet = [&](const Parcel& parcel, const DTypeView<const T>& k, const DTypeView<const T>& v) {
    call.failure.guard([&] {
      attend(call, q_tokens, tokens_of(parcel, layout, call.whole.kv_len, comm.ranks()), k, v, sums->out.sum, sums->lse,
             sums->lse_rests, begun, true, options, poll);
    });
  };
  keys->receive();
  poll();
  for (int part = 0; part < 2; ++part) {
    const Parcel own{comm.rank(), part, {0, kv_tokens.part(part).count}};
    if (part == 0 || !own.rows.empty()) meet(own, keys->own_keys(own), keys->own_values(own));
  }
  // A rank that has failed continues to receive and send, because the others cannot know that it has failed.
  for (std::size_t i = 0; i < plan.incoming.size(); ++i) {
    traffic.seconds_waited += wait_for([&] {
      poll();
      return keys->has_arrived(i);
    });
    keys->receive();
    meet(plan.incoming[i], keys->keys(i), keys->values(i));
  }
  traffic.seconds_waited += wait_for([&] {
    poll();
    return keys->has_sent_all();
  });
  traffic.bytes_sent = messages->bytes_sent();
  traffic.bytes_held = keys->bytes();
  call.failure.guard([&] { sums->out.end(options); });
  end_together(comm, call.failure);
}

}  // namespace attn::detail::inline ATTN_BUILT_FOR
