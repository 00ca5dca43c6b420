// A checked call on a ring: a rank's own rows and their sizes, the sizes of the whole sequence, and the keys that the
// rank sends to other ranks and receives from them.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "attn/core/base/ranges.h"
#include "attn/core/flash/checked_call.h"
#include "attn/mpi/agreement.h"
#include "attn/mpi/messages.h"
#include "attn/mpi/placed_mods.h"

namespace attn::mpi {

/// Bytes sent, time waited and memory used by a call on this rank.
struct Traffic {
  Index bytes_sent = 0;       ///< bytes of rows of tensors, such as keys, results or gradients
  double seconds_waited = 0;  ///< for messages, while there was nothing to compute
  Index bytes_held = 0;       ///< memory for keys and values of other ranks, and for gradients in transit
};

}  // namespace attn::mpi

namespace attn::detail::inline ATTN_BUILT_FOR {

/// Some rows of a rank's keys and values that are sent to another rank, and processed there, together.
struct Parcel {
  int rank;    ///< rank of the keys, or of the queries
  int part;    ///< which part of that rank's tokens; see RankTokens
  Range rows;  ///< rows of that part
};

/// A request that each rank sends to every other rank before any keys are sent: the rows that the sender needs of each
/// part of the receiver's tokens, and samples of the sender's mods.
struct Need {
  std::array<Range, 2> rows{};
  std::int64_t masks = 0;          ///< a hash
  std::array<double, 8> scores{};  ///< some modded scores, then some modded weights
  std::int64_t failed = 0;         ///< Failure::code()
};

/// Returns the number of parcels in which a rank's rows of one part are sent. A parcel has at most half of the rank's
/// rows, or 512 if that is more. So two parcels under way take no more memory than all keys of the rank, or 1024 keys.
/// 512 keys take a millisecond to process, during which the next ones arrive.
inline Index parcels_of(Index rows, Index rows_of_rank) {
  constexpr Index kShort = 512;
  const Index longest = std::max(ceil_div(rows_of_rank, 2), kShort);
  return ceil_div(rows, longest);
}

/// Adds the parcels of a rank's keys that `need` requests.
inline void add_parcels(std::vector<Parcel>& parcels, int rank, const Need& need, Index rows_of_rank) {
  for (int part = 0; part < 2; ++part) {
    const Range rows = need.rows[static_cast<std::size_t>(part)];
    const Index count = parcels_of(rows.size(), rows_of_rank);
    for (Index i = 0; i < count; ++i)
      parcels.push_back(
          {rank, part, {rows.begin + rows.size() * i / count, rows.begin + rows.size() * (i + 1) / count}});
  }
}

inline Index most_rows(const std::vector<Parcel>& parcels) {
  Index most = 0;
  for (const Parcel& parcel : parcels) most = std::max(most, parcel.rows.size());
  return most;
}

/// Returns the rows of some keys that some queries may need, according to the hints of the mods: a hull over all heads.
template <class Mods>
Range needed_rows(const Mods& mods, const Problem& whole, const Place& place) {
  const Range all{0, place.kv.count};
  if (place.q.count == 0 || place.kv.count == 0) return {};
  if constexpr (!Mods::kHasMasks) return all;
  const PlacedMods placed(mods, whole, place);
  Range needed{};
  for (Index batch = 0; batch < whole.batch; ++batch)
    for (Index head = 0; head < whole.heads; ++head) {
      const auto own = placed.of(batch);
      Tile tile{batch, head, {0, place.q.count}, all};
      tile.kv = own.kv_range(tile);
      if (!tile.kv.empty() && own.coverage(tile) != Coverage::none) needed = hull(needed, tile.kv);
      if (needed == all) return all;
    }
  return needed;
}

/// Samples what the mods of a call return for some pairs, for ranks to compare. Masks and dropout must agree exactly;
/// scores may come from other mathematical functions on another machine, and are compared roughly.
template <class Mods>
void sample_mods(const Mods& mods, const Problem& whole, Need& need) {
  Hash hash;
  const bool any = whole.batch > 0 && whole.heads > 0 && whole.q_len > 0 && whole.kv_len > 0;
  if constexpr (Mods::kHasSinks || Mods::kHasDropout) {
    mods.of(0).each_dropout([&](const DropoutMod& mod) {
      hash.add(mod.rate);
      hash.add(mod.seed);
      hash.add(static_cast<std::int64_t>(mod.first_batch));
    });
    for (Index head = 0; head < whole.heads; ++head) hash.add(mods.of(0).sink(head));
  }
  std::uint64_t random = 0x9e3779b97f4a7c15u;  // any odd number; all ranks draw the same pairs
  const auto draw = [&](Index below) {
    random = random * 6364136223846793005u + 1442695040888963407u;
    return static_cast<Index>((random >> 33) % static_cast<std::uint64_t>(below));
  };
  constexpr int kDrawn = 64;
  for (int i = 0; any && i < kDrawn; ++i) {
    const Index batch = draw(whole.batch), head = draw(whole.heads);
    const Position p{batch, head, whole.first_query(batch) + draw(whole.q_len), whole.kv_offset + draw(whole.kv_len)};
    const auto& own = mods.of(batch);
    if constexpr (Mods::kHasMasks) {
      hash.add(own.keep(p));
      // A query's range shows where a window ends, which a handful of pairs would not.
      const Range visited = own.kv_range({batch, head, {p.q, p.q + 1}, whole.keys()});
      hash.add(static_cast<std::int64_t>(visited.begin));
      hash.add(static_cast<std::int64_t>(visited.end));
    }
    constexpr float kScores[] = {1, -9, 70, 600};  // many mods leave scores near 0 unchanged
    if (i < 4) need.scores[static_cast<std::size_t>(i)] = static_cast<double>(own.score(kScores[i], p));
    if (i < 4) need.scores[static_cast<std::size_t>(4 + i)] = static_cast<double>(own.weight(0.25f, p));
  }
  need.masks = hash.value();
}

/// Whether two scores are the same up to rounding.
inline bool is_same_score(double a, double b) {
  if (std::isnan(a) || std::isnan(b)) return std::isnan(a) == std::isnan(b);
  return a == b || std::abs(a - b) <= 1e-3 * std::max(std::abs(a), std::abs(b)) + 1e-6;
}

/// Refuses a call on all ranks if one of them has failed so far, or if their mods differ. `each`: what each rank has
/// sent to this one.
inline void compare_needs(const Communicator& comm, const std::vector<Need>& each, const Failure& failure) {
  for (std::size_t r = 0; r < each.size(); ++r)
    if (each[r].failed != 0) fail_together(comm, static_cast<int>(r), each[r].failed == 1, failure);
  const Need& first = each[0];
  for (std::size_t r = 1; r < each.size(); ++r)
    require(each[r].masks == first.masks &&
                std::equal(first.scores.begin(), first.scores.end(), each[r].scores.begin(), is_same_score),
            "ranks disagree: the mods of rank ", r,
            " and rank 0 have the same type, but treat the same pairs differently");
}

/// Compares what sample(need) returns for the mods of each rank.
template <class Sample>
void compare_mods(const Communicator& comm, Failure& failure, const Sample& sample) {
  Need own;
  failure.guard([&] { sample(own); });
  own.failed = failure.code();
  compare_needs(comm, comm.all(own), failure);
}

/// The keys that this rank receives, and those that it sends, in the order in which they are processed: step s receives
/// keys from rank - s, and sends this rank's to rank + s. Each rank requests what it needs, and the others send exactly
/// that. So masks that differ in spite of all checks would give wrong results, but no rank would wait forever.
struct RingPlan {
  std::vector<Parcel> incoming, outgoing;

  /// `needs`: what this rank needs from each rank. @throws std::invalid_argument as compare_needs() does.
  RingPlan(const Communicator& comm, const std::vector<Need>& needs, const Failure& failure, mpi::Layout layout,
           Index kv_len) {
    const std::vector<Need> others = comm.exchanged(needs);
    compare_needs(comm, others, failure);
    const auto rows_of = [&](int rank) { return RankTokens(layout, kv_len, rank, comm.ranks()).rows(); };
    for (int step = 1; step < comm.ranks(); ++step) {
      const int from = (comm.rank() + comm.ranks() - step) % comm.ranks(), to = (comm.rank() + step) % comm.ranks();
      add_parcels(incoming, from, needs[static_cast<std::size_t>(from)], rows_of(from));
      add_parcels(outgoing, to, others[static_cast<std::size_t>(to)], rows_of(comm.rank()));
    }
  }
};

/// A tensor (batch, heads, rows, dim) without gaps, of any dtype that is computed in T.
template <class T>
class RowsBuffer {
 public:
  RowsBuffer(DType dtype, const Shape<4>& shape)
      : dtype_(dtype),
        shape_(shape),
        memory_(Tensor<std::byte, 1>::uninitialized(
            {shape[0] * shape[1] * shape[2] * shape[3] * size_of_element<T>(dtype)})) {}

  DTypeView<T> view() { return view(shape_[2]); }
  /// A tensor of fewer rows, in the same memory.
  DTypeView<T> view(Index rows) {
    Shape<4> shape = shape_;
    shape[2] = rows;
    return {memory_.data(), dtype_, shape, row_major_strides<4>(shape)};
  }
  Index bytes() const { return memory_.size(); }

 private:
  DType dtype_;
  Shape<4> shape_;
  Tensor<std::byte, 1> memory_;
};

/// Allocates `rows` rows of the heads of `like`, in its dtype, or in the computed type if `is_computed`.
template <class T>
RowsBuffer<T> rows_like(const DTypeView<const T>& like, Index heads, Index rows, bool is_computed) {
  return {is_computed ? DType::native : like.dtype(), {like.dim(0), heads, rows, like.dim(3)}};
}

/// Memory for rows of keys and values, or for their gradients.
template <class T>
struct KvBuffer {
  KvBuffer(const DTypeView<const T>& k, const DTypeView<const T>& v, Index rows, bool is_computed)
      : keys(rows_like(k, k.dim(1), rows, is_computed)), values(rows_like(v, v.dim(1), rows, is_computed)) {}

  RowsBuffer<T> keys, values;
  int pending = 0;  ///< messages that read or write this memory

  Index bytes() const { return keys.bytes() + values.bytes(); }
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
      own = make_problem<T>(q, k, v, options, Outputs::own, has_weight_mods<M>);
      check_ring_options(options, sharing, own.changes_weights);
      terms.add_types<T>(operation, q.dtype(), k.dtype(), v.dtype());
      terms.add_call<M>(own, options);
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
      for (std::size_t part = 0; r != comm.rank() && part < 2; ++part)
        for (const Progression& q : queries.parts) {
          Range& needed = needs[static_cast<std::size_t>(r)].rows[part];
          needed = hull(needed, needed_rows(*call.mods, call.whole, {q, keys.parts[part]}));
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
        buffers_{KvBuffer<T>(k, v, most_rows(plan.incoming), false),
                 KvBuffer<T>(k, v, plan.incoming.size() > 1 ? most_rows(plan.incoming) : 0, false)} {}

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
    messages_.receive(room.keys.view(parcel.rows.size()), parcel.rank, MessageKind::keys, room.pending);
    messages_.receive(room.values.view(parcel.rows.size()), parcel.rank, MessageKind::values, room.pending);
  }
  DTypeView<const T> keys(std::size_t parcel) {
    return as_const(buffers_[parcel % 2].keys.view(plan_.incoming[parcel].rows.size()));
  }
  DTypeView<const T> values(std::size_t parcel) {
    return as_const(buffers_[parcel % 2].values.view(plan_.incoming[parcel].rows.size()));
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
