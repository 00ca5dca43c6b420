// Attention in which keys pass from rank to rank (Liu et al. 2023, "Ring Attention with Blockwise Transformers"). In
// the backward pass, the gradients of the keys are sent back.
#pragma once

#include <array>
#include <optional>
#include <vector>

#include "attn/core/backward/checked_backward.h"
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

template <class T>
void add_rows(const DTypeView<T>& to, const DTypeView<T>& from) {
  for (Index b = 0; b < to.dim(0); ++b)
    for (Index h = 0; h < to.dim(1); ++h) to.matrix(b, h) += from.matrix(b, h);
}
template <class T>
void set_zero(const DTypeView<T>& t) {
  for (Index b = 0; b < t.dim(0); ++b)
    for (Index h = 0; h < t.dim(1); ++h) t.matrix(b, h).setZero();
}

/// The arguments and results of a backward call on one rank.
template <class T>
struct RingGradients {
  DTypeView<const T> out, grad_out;
  TensorView<const T, 3> lse, grad_lse;
  LseRests<T> lse_rests;
  DTypeView<T> grad_q, grad_k, grad_v;
  bool has_grad_lse = false;  ///< the same on all ranks, even those without rows
};

/// A backward call on one rank.
template <class Call, class T>
class RingBackward {
  using Mods = PlacedMods<typename Call::Mods>;

 public:
  RingBackward(Call& call, mpi::Layout layout, const RingGradients<T>& arrays, const RingPlan& plan,
               const Options& options, mpi::Traffic& traffic)
      : call_(call),
        layout_(layout),
        arrays_(arrays),
        plan_(plan),
        options_(options),
        traffic_(traffic),
        q_tokens_(layout, call.whole.q_len, call.comm.rank(), call.comm.ranks()),
        kv_tokens_(layout, call.whole.kv_len, call.comm.rank(), call.comm.ranks()),
        messages_(call.comm),
        keys_(messages_, call.k, call.v, kv_tokens_, plan),
        own_(own_parcels()),
        grad_q_(arrays.grad_q),
        grad_k_(arrays.grad_k),
        grad_v_(arrays.grad_v),
        buffers_{room(most_keys()), room(most_keys())},
        arriving_(room(most_rows(plan.outgoing))) {
    for (const auto* gradient : {&grad_q_, &grad_k_, &grad_v_}) set_zero(gradient->sum);
    traffic_.bytes_held = keys_.bytes() + buffers_[0].bytes() + buffers_[1].bytes() + arriving_.bytes();
  }

  void run() {
    keys_.receive();
    poll();
    if constexpr (Mods::kLearns) call_.failure.guard([&] { learn_sinks(); });
    for (const Parcel& parcel : own_) meet(parcel, keys_.own_keys(parcel), keys_.own_values(parcel));
    // This rank's gradients are added first, then those of others in the planned order, so that sums are the same in
    // every run.
    accepts_ = true;
    for (std::size_t i = 0; i < plan_.incoming.size(); ++i) {
      wait([&] { return keys_.has_arrived(i); });
      keys_.receive();
      meet(plan_.incoming[i], keys_.keys(i), keys_.values(i));
    }
    wait([&] {
      return keys_.has_sent_all() && accepted_ == plan_.outgoing.size() && buffers_[0].pending == 0 &&
             buffers_[1].pending == 0;
    });
    traffic_.bytes_sent = messages_.bytes_sent();
    call_.failure.guard([&] {
      for (const auto* gradient : {&grad_q_, &grad_k_, &grad_v_}) gradient->end(options_);
    });
  }

 private:
  /// This rank's keys are split into parcels too, so that their gradients fit into the same memory.
  std::vector<Parcel> own_parcels() const {
    std::vector<Parcel> own;
    add_parcels(own, call_.comm.rank(), {{Range{0, kv_tokens_.part(0).count}, {0, kv_tokens_.part(1).count}}},
                kv_tokens_.rows());
    return own;
  }
  Index most_keys() const { return std::max(most_rows(plan_.incoming), most_rows(own_)); }
  KvBuffer<T> room(Index rows) const { return KvBuffer<T>(call_.k, call_.v, rows, true); }

  void poll() {
    messages_.poll();
    keys_.advance();
    while (accepts_ && accepted_ < plan_.outgoing.size() && arriving_.pending == 0) accept();
  }
  template <class Condition>
  void wait(const Condition& condition) {
    traffic_.seconds_waited += wait_for([&] {
      poll();
      return condition();
    });
  }

  /// Begins to receive the next gradients, or adds those that have arrived to this rank's own.
  void accept() {
    const Parcel& parcel = plan_.outgoing[accepted_];
    const Index rows = parcel.rows.size();
    if (!receives_) {
      receives_ = true;
      messages_.receive(arriving_.keys.view(rows), parcel.rank, MessageKind::key_gradients, arriving_.pending);
      messages_.receive(arriving_.values.view(rows), parcel.rank, MessageKind::value_gradients, arriving_.pending);
    } else {
      add_to_own(parcel, arriving_);
      receives_ = false;
      ++accepted_;
    }
  }
  void add_to_own(const Parcel& parcel, KvBuffer<T>& gradients) {
    const Index first = kv_tokens_.first_row(parcel.part) + parcel.rows.begin, rows = parcel.rows.size();
    add_rows(rows_of_tensor(grad_k_.sum, first, rows), gradients.keys.view(rows));
    add_rows(rows_of_tensor(grad_v_.sum, first, rows), gradients.values.view(rows));
  }

  /// Computes the gradients that result from this rank's queries and some keys, and sends the gradients of the keys to
  /// the rank that has these keys.
  void meet(const Parcel& parcel, const DTypeView<const T>& k, const DTypeView<const T>& v) {
    const Index rows = parcel.rows.size();
    KvBuffer<T>& room = buffers_[met_++ % buffers_.size()];
    wait([&] { return room.pending == 0; });
    call_.failure.guard([&] {
      const Progression tokens = tokens_of(parcel, layout_, call_.whole.kv_len, call_.comm.ranks());
      set_zero(room.keys.view(rows));
      set_zero(room.values.view(rows));
      for (int part = 0; part < 2; ++part) {
        const Place place{q_tokens_.part(part), tokens, {}, false};
        if (!needed_rows(*call_.mods, call_.whole, place).empty()) differentiate(place, part, k, v, room, true);
      }
      if (parcel.rank == call_.comm.rank()) add_to_own(parcel, room);
    });
    if (parcel.rank == call_.comm.rank()) return;
    messages_.send(as_const(room.keys.view(rows)), parcel.rank, MessageKind::key_gradients, room.pending);
    messages_.send(as_const(room.values.view(rows)), parcel.rank, MessageKind::value_gradients, room.pending);
  }

  /// Adds the gradients of sinks: calls backward() without keys for each part of the queries, before any keys are
  /// processed, so that each query contributes exactly once. These calls also initialise grad_q.
  void learn_sinks() {
    KvBuffer<T> none = room(0);
    const DTypeView<const T> k = rows_of_tensor(call_.k, 0, 0), v = rows_of_tensor(call_.v, 0, 0);
    for (int part = 0; part < 2; ++part) differentiate({q_tokens_.part(part), {}, {}, true}, part, k, v, none, false);
  }

  /// Computes the gradients of some queries and keys. If `accumulates`, they are added to those in grad_q and `to`.
  void differentiate(const Place& place, int part, const DTypeView<const T>& k, const DTypeView<const T>& v,
                     KvBuffer<T>& to, bool accumulates) {
    const Index row = q_tokens_.first_row(part), rows = place.q.count, keys = place.kv.count;
    const Problem problem = problem_of_part(call_.own, rows, keys);
    const auto of_queries = [&](const auto& t) { return rows_of_tensor(t, row, rows); };
    const auto of_lse = [&](const TensorView<const T, 3>& lse) {
      return lse.data() == nullptr ? lse : lse.slice(2, row, row + rows);
    };
    const Mods mods(*call_.mods, call_.whole, place);
    const BackwardMods<T, Mods> seen(mods, problem);
    backward<T>({{{}, {}, of_queries(call_.q), k, v, problem, kKernelChoice<T>},
                 of_queries(arrays_.out),
                 of_queries(arrays_.grad_out),
                 of_lse(arrays_.lse),
                 of_lse(arrays_.grad_lse),
                 arrays_.lse_rests,
                 of_queries(grad_q_.sum),
                 to.keys.view(keys),
                 to.values.view(keys),
                 seen.tile(),
                 seen.slopes(),
                 seen.learned(),
                 {},
                 accumulates},
                part_options(options_, problem, accumulates, [this] { poll(); }));
  }

  Call& call_;
  const mpi::Layout layout_;
  const RingGradients<T>& arrays_;
  const RingPlan& plan_;
  const Options& options_;
  mpi::Traffic& traffic_;
  const RankTokens q_tokens_, kv_tokens_;
  Messages messages_;
  PassingKeys<T> keys_;
  const std::vector<Parcel> own_;
  AccumulatedTensor<T> grad_q_, grad_k_, grad_v_;
  std::array<KvBuffer<T>, 2> buffers_;  ///< gradients of keys that are being computed or sent
  KvBuffer<T> arriving_;                ///< gradients of this rank's keys
  std::size_t met_ = 0, accepted_ = 0;
  bool accepts_ = false, receives_ = false;
};

template <class Call, class T>
void ring_backward(Call& call, mpi::Layout layout, const RingGradients<T>& arrays, const Options& options,
                   mpi::Traffic& traffic) {
  const RingPlan plan = plan_of(call, layout);
  std::optional<RingBackward<Call, T>> work;
  call.failure.guard([&] { work.emplace(call, layout, arrays, plan, options, traffic); });
  end_together(call.comm, call.failure);
  work->run();
  end_together(call.comm, call.failure);
}

/// Returns grad_out itself, or the one in {grad_out, grad_lse}.
template <class G>
decltype(auto) gradient_of_out(const G& g) {
  if constexpr (WholeResult<G>)
    return (g.out);
  else
    return (g);
}

}  // namespace attn::detail::inline ATTN_BUILT_FOR
