// A checked call on a ring: a rank's own rows and their sizes, the sizes of the whole sequence, and the keys that the
// rank receives from other ranks.
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "attn/core/flash/checked_call.h"
#include "attn/mpi/messages.h"
#include "attn/mpi/ring_plan.h"

namespace attn::mpi {

/// Bytes sent, time waited and memory used by a call on this rank.
struct Traffic {
  Index bytes_sent = 0;       ///< bytes of rows of tensors, such as keys, results or gradients
  double seconds_waited = 0;  ///< for messages, while there was nothing to compute
  Index bytes_held = 0;       ///< memory for keys and values of other ranks, and for gradients in transit
};

}  // namespace attn::mpi

namespace attn::detail::inline ATTN_BUILT_FOR {

/// Memory for keys, or their gradients, followed by values. Both are row-major without gaps.
template <class T>
class KvBuffer {
 public:
  /// Allocates `rows` rows in the dtypes of `k` and `v`, or in the computed type if `is_computed`.
  KvBuffer(const DTypeView<const T>& k, const DTypeView<const T>& v, Index rows, bool is_computed)
      : k_dtype_(is_computed ? DType::native : k.dtype()),
        v_dtype_(is_computed ? DType::native : v.dtype()),
        k_shape_(k.shape()),
        v_shape_(v.shape()),
        k_bytes_(padded(bytes_of(k_dtype_, k_shape_, rows), kAlignment)),
        memory_(Tensor<std::byte, 1>::uninitialized({k_bytes_ + bytes_of(v_dtype_, v_shape_, rows)})) {}

  DTypeView<T> keys(Index rows) { return view(0, k_dtype_, k_shape_, rows); }
  DTypeView<T> values(Index rows) { return view(k_bytes_, v_dtype_, v_shape_, rows); }
  Index bytes() const { return memory_.size(); }

  int pending = 0;  ///< messages that read or write this memory

 private:
  static Index bytes_of(DType dtype, const Shape<4>& s, Index rows) {
    return s[0] * s[1] * rows * s[3] * size_of_element<T>(dtype);
  }
  DTypeView<T> view(Index offset, DType dtype, Shape<4> shape, Index rows) {
    shape[2] = rows;
    return {memory_.data() + offset, dtype, shape, row_major_strides<4>(shape)};
  }

  DType k_dtype_, v_dtype_;
  Shape<4> k_shape_, v_shape_;
  Index k_bytes_;
  Tensor<std::byte, 1> memory_;
};

/// Returns a read-only view of the same elements.
template <class T>
DTypeView<const T> as_const(const DTypeView<T>& t) {
  return {t.data(), t.dtype(), t.shape(), t.strides()};
}

/// The arguments of a call on a ring, the counterpart of CheckedCall: this rank's rows, and the mods bound to the whole
/// sequence. Every entry point first makes a RingCall, on all ranks.
/// @throws std::invalid_argument, the same on all ranks, if sizes disagree on one rank or between ranks, or a mod does
/// not fit.
template <class Q, class K, class V, class M>
class RingCall : public CallInputs<Q, K, V> {
  using Inputs = CallInputs<Q, K, V>;
  static_assert(check_mods<M>());

 public:
  using Inputs::q, Inputs::k, Inputs::v;
  using typename Inputs::T;
  using Mods = Bound<M>;

  /// `more(call, terms)` makes further checks, and adds terms; it must be the same on all ranks.
  template <class More>
  RingCall(const Communicator& on, const Sharing& sharing, const char* operation, const Q& query, const K& key,
           const V& value, const M& given_mods, const Options& options, const More& more)
      : Inputs(query, key, value), comm(on) {
    Terms terms;
    failure.guard([&] {
      own = make_problem<T>(q, k, v, options);
      check_ring_options(options, sharing);
      terms = terms_of<M>(operation, own, options);
      terms.set(Terms::q_type, static_cast<int>(q.dtype()));
      terms.set(Terms::k_type, static_cast<int>(k.dtype()));
      terms.set(Terms::v_type, static_cast<int>(v.dtype()));
      terms.set(Terms::scalar, sizeof(T));
      more(*this, terms);
    });
    const Lengths lengths = agree(comm, terms, failure, sharing);
    whole = own;
    whole.q_len = lengths.q;
    whole.kv_len = lengths.kv;
    failure.guard([&] {
      set_offsets(whole, options);
      mods.emplace(bind_call(given_mods, whole));
    });
  }

  const Communicator& comm;
  Problem own, whole;
  Failure failure;
  std::optional<Mods> mods;  ///< empty if binding failed, which the next step reports on all ranks
};

/// Plans what this rank needs from the others, and what they need from it.
template <class Call>
RingPlan plan_of(Call& call, mpi::Layout layout) {
  const Communicator& comm = call.comm;
  const RankTokens queries(layout, call.whole.q_len, comm.rank(), comm.ranks());
  Need own;
  call.failure.guard([&] { sample_mods(*call.mods, call.whole, own); });
  std::vector<Need> needs(static_cast<std::size_t>(comm.ranks()), own);
  call.failure.guard([&] {
    for (int r = 0; r < comm.ranks(); ++r) {
      const RankTokens keys(layout, call.whole.kv_len, r, comm.ranks());
      for (int part = 0; r != comm.rank() && part < 2; ++part) {
        Range needed{};
        for (const Progression& q : queries.parts)
          needed = hull(needed, needed_rows(*call.mods, call.whole, {q, keys.part(part)}));
        needs[static_cast<std::size_t>(r)].set(part, needed);
      }
    }
  });
  for (Need& need : needs) need.failed = call.failure.code();
  return RingPlan(comm, needs, call.failure, layout, call.whole.kv_len);
}

/// Sends this rank's keys and values to other ranks, and receives theirs.
template <class T>
class PassingKeys {
 public:
  PassingKeys(Messages& messages, const DTypeView<const T>& k, const DTypeView<const T>& v, const RankTokens& tokens,
              const RingPlan& plan)
      : messages_(messages),
        k_(k),
        v_(v),
        tokens_(tokens),
        plan_(plan),
        buffers_{KvBuffer<T>(k, v, plan.most_rows, false),
                 KvBuffer<T>(k, v, plan.incoming.size() > 1 ? plan.most_rows : 0, false)} {}

  /// Returns this rank's own rows of a parcel.
  DTypeView<const T> own_keys(const Parcel& parcel) const { return own(k_, parcel); }
  DTypeView<const T> own_values(const Parcel& parcel) const { return own(v_, parcel); }

  /// Sends the next parcels, a few at a time, because the other ranks cannot use more.
  void advance() {
    constexpr int kMessages = 8;  // keys and values of four parcels
    while (next_sent_ < plan_.outgoing.size() && sending_ < kMessages) {
      const Parcel& parcel = plan_.outgoing[next_sent_++];
      messages_.send(own_keys(parcel), parcel.rank, MessageKind::keys, sending_);
      messages_.send(own_values(parcel), parcel.rank, MessageKind::values, sending_);
    }
  }
  bool has_sent_all() const { return next_sent_ == plan_.outgoing.size() && sending_ == 0; }

  /// Whether this parcel has arrived.
  bool has_arrived(std::size_t parcel) const { return buffers_[parcel % 2].pending == 0; }
  /// Begins to receive the next parcel. Call it when the parcel before the last is no longer needed, because there is
  /// memory for only two parcels.
  void receive() {
    if (next_received_ == plan_.incoming.size()) return;
    KvBuffer<T>& room = buffers_[next_received_ % 2];
    const Parcel& parcel = plan_.incoming[next_received_++];
    messages_.receive(room.keys(parcel.rows.size()), parcel.rank, MessageKind::keys, room.pending);
    messages_.receive(room.values(parcel.rows.size()), parcel.rank, MessageKind::values, room.pending);
  }
  DTypeView<const T> keys(std::size_t parcel) {
    return as_const(buffers_[parcel % 2].keys(plan_.incoming[parcel].rows.size()));
  }
  DTypeView<const T> values(std::size_t parcel) {
    return as_const(buffers_[parcel % 2].values(plan_.incoming[parcel].rows.size()));
  }
  Index bytes() const { return buffers_[0].bytes() + buffers_[1].bytes(); }

 private:
  DTypeView<const T> own(const DTypeView<const T>& t, const Parcel& parcel) const {
    return rows_of_tensor(t, tokens_.first_row(parcel.part) + parcel.rows.begin, parcel.rows.size());
  }

  Messages& messages_;
  const DTypeView<const T>&k_, &v_;
  const RankTokens tokens_;
  const RingPlan& plan_;
  std::array<KvBuffer<T>, 2> buffers_;
  std::size_t next_sent_ = 0, next_received_ = 0;
  int sending_ = 0;
};

/// Returns the tokens of a parcel of keys.
inline Progression tokens_of(const Parcel& parcel, mpi::Layout layout, Index len, int ranks) {
  const Progression part = RankTokens(layout, len, parcel.rank, ranks).part(parcel.part);
  return {part[parcel.rows.begin], part.step, parcel.rows.size()};
}

/// Returns the sizes of a call with only some of the queries and keys, whose positions are row numbers.
inline Problem problem_of_part(const Problem& own, Index q_len, Index kv_len) {
  Problem p = own;
  p.q_len = q_len;
  p.kv_len = kv_len;
  p.q_offset = 0;
  p.q_offsets = {};
  p.kv_offset = 0;
  p.has_part_of_keys = false;
  return p;
}

/// Returns the options of a part, whose tasks let messages make progress. `accumulates`: whether it continues from the
/// results of other parts.
template <class Poll>
Options part_options(const Options& options, const Problem& part, bool accumulates, const Poll& poll) {
  const double flops = 2.0 * static_cast<double>(part.batch * part.heads) * static_cast<double>(part.q_len) *
                       static_cast<double>(part.kv_len) * static_cast<double>(part.head_dim + part.v_dim);
  Options own = options;
  own.accumulate = accumulates;
  own.executor = Executor(std::make_shared<ProgressBackend>(
      Workers({flops}, options.executor).count() == 1 ? serial() : options.executor, poll));
  return own;
}

}  // namespace attn::detail::inline ATTN_BUILT_FOR
