// Decoding over ranks: all ranks have the queries, and each has some of the keys.
#pragma once

#include <array>
#include <optional>
#include <vector>

#include "attn/merge.h"
#include "attn/mpi/ring_forward.h"

namespace attn::detail::inline ATTN_BUILT_FOR {

/// The results of queries over some keys. A row, which is one message, has the v_dim elements of a query, followed by
/// its log-sum-exp and the part of the log-sum-exp lost to rounding.
template <class T>
class PartialResults {
 public:
  PartialResults(Index rows, Index v_dim) : numbers_(Tensor<T, 2>::uninitialized({rows, v_dim + 2})) {}

  T* data() { return numbers_.data(); }
  /// The results of all queries of a call with these sizes.
  TensorView<T, 4> out(const Problem& p) {
    const Index row = p.v_dim + 2;
    return {data(), {p.batch, p.heads, p.q_len, p.v_dim}, {p.heads * p.q_len * row, p.q_len * row, row, 1}};
  }
  TensorView<T, 3> lse(const Problem& p) {
    const Index row = p.v_dim + 2;
    return {numbers_.size() == 0 ? nullptr : data() + p.v_dim,
            {p.batch, p.heads, p.q_len},
            {p.heads * p.q_len * row, p.q_len * row, row}};
  }
  /// `count` rows from `first` on.
  TensorView<T, 2> out(Index first, Index count) {
    const Index row = numbers_.dim(1);
    return {data() + first * row, {count, row - 2}, {row, 1}};
  }
  TensorView<T, 1> lse(Index first, Index count) {
    const Index row = numbers_.dim(1);
    return {data() + first * row + row - 2, {count}, {row}};
  }
  /// Storage for the parts of log-sum-exps lost to rounding, each next to its log-sum-exp.
  KeptLseRests<T> lse_rests() { return {data(), data() + 1}; }

 private:
  Tensor<T, 2> numbers_;
};

/// The MPI datatype of a row of partial results.
class RowType {
 public:
  explicit RowType(Index bytes) {
    check_mpi(MPI_Type_contiguous(mpi_count(bytes, "bytes in a row"), MPI_BYTE, &type_), "MPI_Type_contiguous");
    check_mpi(MPI_Type_commit(&type_), "MPI_Type_commit");
  }
  RowType(const RowType&) = delete;
  ~RowType() { MPI_Type_free(&type_); }
  MPI_Datatype get() const { return type_; }

 private:
  MPI_Datatype type_ = MPI_DATATYPE_NULL;
};

/// Merges the results that all ranks have for the same rows. Each rank merges some rows of all ranks, pairwise in the
/// order of ranks, and sends the result to the others: a rank sends twice the size of the result, regardless of the
/// number of ranks.
template <class T>
void merge_ranks(const Communicator& comm, PartialResults<T>& own, PartialResults<T>& of_ranks, Index rows, Index v_dim,
                 bool adds_up) {
  const Index ranks = comm.ranks();
  std::vector<int> counts(static_cast<std::size_t>(ranks)), firsts(counts.size());
  std::vector<int> own_counts(counts.size()), own_firsts(counts.size());
  mpi_count(rows, "rows of queries");
  for (std::size_t r = 0; r < counts.size(); ++r) {
    const auto first = [&](std::size_t rank) { return static_cast<int>(rows * static_cast<Index>(rank) / ranks); };
    firsts[r] = first(r);
    counts[r] = first(r + 1) - first(r);
  }
  const auto mine = static_cast<std::size_t>(comm.rank());
  const Index share = counts[mine];
  for (std::size_t r = 0; r < counts.size(); ++r) {
    own_counts[r] = counts[mine];
    own_firsts[r] = static_cast<int>(static_cast<Index>(r) * share);
  }
  const RowType row((v_dim + 2) * static_cast<Index>(sizeof(T)));
  run_together("MPI_Ialltoallv", [&](MPI_Request* r) {
    return MPI_Ialltoallv(own.data(), counts.data(), firsts.data(), row.get(), of_ranks.data(), own_counts.data(),
                          own_firsts.data(), row.get(), comm.get(), r);
  });
  for (Index distance = 1; distance < ranks && share > 0; distance *= 2)
    for (Index r = 0; r + distance < ranks; r += 2 * distance) {
      const auto to = of_ranks.out(r * share, share), from = of_ranks.out((r + distance) * share, share);
      if (adds_up)
        to.matrix() += from.matrix();
      else
        merge_rows<T>(as_rank4(to), lse_rank3(of_ranks.lse(r * share, share)), of_ranks.lse_rests(), as_rank4(from),
                      lse_rank3(of_ranks.lse((r + distance) * share, share)), of_ranks.lse_rests());
    }
  run_together("MPI_Iallgatherv", [&](MPI_Request* r) {
    return MPI_Iallgatherv(of_ranks.data(), counts[mine], row.get(), own.data(), counts.data(), firsts.data(),
                           row.get(), comm.get(), r);
  });
}

/// The results of a call that all ranks need, and of which each has computed a part.
template <class T>
class SharedResults {
 public:
  SharedResults(const Problem& p, int ranks)
      : p_(p),
        rows_(p.batch * p.heads * p.q_len),
        own_(rows_, p.v_dim),
        of_ranks_((rows_ / ranks + 1) * ranks, p.v_dim) {}

  /// Where this rank stores its part.
  DTypeView<T> out() { return own_.out(p_); }
  TensorView<T, 3> lse() { return own_.lse(p_); }
  KeptLseRests<T> lse_rests() { return own_.lse_rests(); }

  /// Merges the parts of all ranks, and stores the results, rounded to the caller's types.
  void merge(const Communicator& comm, const ResultViews<T>& result, mpi::Traffic& traffic) {
    if (rows_ == 0) return;
    merge_ranks(comm, own_, of_ranks_, rows_, p_.v_dim, p_.sigmoid_bias.has_value());
    traffic.bytes_sent = 2 * rows_ * (p_.v_dim + 2) * static_cast<Index>(sizeof(T));
    const auto out = own_.out(p_);
    const auto lse = own_.lse(p_);
    for (Index b = 0; b < p_.batch; ++b)
      for (Index h = 0; h < p_.heads; ++h)
        for (Index i = 0; i < p_.q_len; ++i) {
          for (Index c = 0; c < p_.v_dim; ++c) store_number(result.out.rows(b, h), i, c, out(b, h, i, c));
          if (result.lse.data() == nullptr) continue;
          result.lse(b, h, i) = lse(b, h, i);
          result.lse_rests.set(&result.lse(b, h, i), own_.lse_rests().of(&lse(b, h, i)));
        }
  }

 private:
  const Problem& p_;
  Index rows_;
  PartialResults<T> own_, of_ranks_;
};

template <class Call, class T>
void decode_over_ranks(Call& call, mpi::Layout layout, const ResultViews<T>& result, const Options& options,
                       mpi::Traffic& traffic) {
  const Communicator& comm = call.comm;
  const RankTokens queries(mpi::Layout::contiguous, call.own.q_len, 0, 1),
      keys(layout, call.whole.kv_len, comm.rank(), comm.ranks());
  std::optional<SharedResults<T>> shared;
  call.failure.guard([&] {
    shared.emplace(call.own, comm.ranks());
    std::array<bool, 2> begun{};
    for (int part = 0; part < 2; ++part) {
      const Progression& tokens = keys.part(part);
      if (part > 0 && tokens.count == 0) continue;
      attend(call, queries, tokens, rows_of_part(call.k, keys, part), rows_of_part(call.v, keys, part), shared->out(),
             shared->lse(), shared->lse_rests(), begun, comm.rank() == 0, options, [] {});
    }
  });
  compare_mods(comm, call.failure, [&](Need& own) { sample_mods(*call.mods, call.whole, own); });
  shared->merge(comm, result, traffic);
}

}  // namespace attn::detail::inline ATTN_BUILT_FOR
