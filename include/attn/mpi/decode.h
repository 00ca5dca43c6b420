// Decoding over ranks: all ranks have the queries, and each has some of the keys, in tensors or in a cache.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "attn/cache/bound_sequences.h"
#include "attn/core/base/check.h"
#include "attn/core/base/ranges.h"
#include "attn/core/mods/lengths.h"
#include "attn/merge.h"
#include "attn/mpi/ring.h"
#include "attn/mpi/token_layout.h"

namespace attn::mpi {

/// A cache that has grown since its prompts were distributed; see grown().
template <class Cache>
struct GrownCache {
  const Cache& cache;
  std::vector<Index> prompts;  ///< number of tokens of each sequence that are distributed by the layout

  /// Returns the view that Ring::decode() reads.
  decltype(auto) view() const { return cache.view(); }
};

/// Marks a rank's part of a cache that has grown since its prompts were distributed. The first `prompts` tokens of each
/// sequence, one number for all or one each, are distributed by the Ring's layout; later ones are distributed
/// round-robin: token t is on rank t mod P. So a sequence that was prefilled with Layout::zigzag can be continued. The
/// cache must outlive the returned object.
///
///     if (t % ring.ranks() == ring.rank()) cache.append(k, v);                       // token t, after the prompt
///     auto next = ring.decode(q, attn::mpi::grown(cache, {4096}), attn::causal());
template <class Cache>
GrownCache<Cache> grown(const Cache& cache, Indices prompts) {
  return {cache, std::move(prompts.values).to_vector()};
}

}  // namespace attn::mpi

namespace attn::detail::inline ATTN_BUILT_FOR {

/// The results of queries over some keys. A row, which is one message, has the v_dim elements of a query, followed by
/// its log-sum-exp and the part of the log-sum-exp lost to rounding.
template <class T>
class PartialResults {
 public:
  PartialResults(Index rows, Index v_dim) : numbers_(Tensor<T, 2>::uninitialized({rows, v_dim + 2})) {}

  /// `count` rows from `first` on.
  TensorView<T, 2> rows(Index first, Index count) { return numbers_.view().slice(0, first, first + count); }
  TensorView<T, 2> out(Index first, Index count) { return rows(first, count).slice(1, 0, lse_column()); }
  TensorView<T, 1> lse(Index first, Index count) { return rows(first, count).select(1, lse_column()); }
  /// Storage for the parts of log-sum-exps lost to rounding, each next to its log-sum-exp.
  KeptLseRests<T> lse_rests() { return {numbers_.data(), numbers_.data() + 1}; }
  T* data() { return numbers_.data(); }

 private:
  Index lse_column() const { return numbers_.dim(1) - 2; }

  Tensor<T, 2> numbers_;
};

/// Merges the results that all ranks have for the same rows. Each rank merges some rows of all ranks, pairwise in the
/// order of ranks, and sends the result to the others: a rank sends twice the size of the result, regardless of the
/// number of ranks.
template <class T>
void merge_ranks(const Communicator& comm, PartialResults<T>& own, PartialResults<T>& of_ranks, Index rows,
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
  const RowsType row(DTypeView<T>(as_rank4(own.rows(0, 1))));
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
  TensorView<T, 4> out() { return all().slice(3, 0, p_.v_dim); }
  TensorView<T, 3> lse() {
    if (rows_ == 0) return {nullptr, {p_.batch, p_.heads, p_.q_len}};
    return all().select(3, p_.v_dim);
  }
  KeptLseRests<T> lse_rests() { return own_.lse_rests(); }

  /// Merges the parts of all ranks, and stores the results, rounded to the caller's types.
  void merge(const Communicator& comm, const ResultViews<T>& result, mpi::Traffic& traffic) {
    if (rows_ == 0) return;
    merge_ranks(comm, own_, of_ranks_, rows_, p_.sigmoid_bias.has_value());
    traffic.bytes_sent = 2 * rows_ * (p_.v_dim + 2) * static_cast<Index>(sizeof(T));
    const auto out = this->out();
    const auto lse = this->lse();
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
  TensorView<T, 4> all() { return own_.rows(0, rows_).reshape(p_.batch, p_.heads, p_.q_len, p_.v_dim + 2); }

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
      attend(call, queries, tokens, rows_of_part(call.k, keys, part), rows_of_part(call.v, keys, part),
             DTypeView<T>(shared->out()), shared->lse(), shared->lse_rests(), begun, comm.rank() == 0, options, [] {});
    }
  });
  compare_mods(comm, call.failure, [&](Need& own) { sample_mods(*call.mods, call.whole, own); });
  shared->merge(comm, result, traffic);
}

/// Returns how many tokens of each sequence are distributed by the layout; empty if all are.
template <class Cache>
std::vector<Index> prompts_of(const Cache&, Index) {
  return {};
}
template <class Cache>
std::vector<Index> prompts_of(const mpi::GrownCache<Cache>& grown, Index sequences) {
  std::vector<Index> prompts = grown.prompts;
  const auto given = static_cast<Index>(prompts.size());
  require(given == sequences || given == 1, "grown: got ", given, " prompt lengths for ", sequences,
          " sequences; give one per sequence, or one for all");
  for (std::size_t i = 0; i < prompts.size(); ++i)
    require(prompts[i] >= 0, "grown: prompts[", i, "] must not be negative, but is ", prompts[i]);
  if (given == 1) prompts.assign(static_cast<std::size_t>(sequences), prompts[0]);
  return prompts;
}

/// Returns the tokens of a sequence that a rank has, in the order of its rows.
inline std::array<Progression, 3> cached_tokens(mpi::Layout layout, Index len, Index prompt, Index rank, Index ranks) {
  const RankTokens first(layout, prompt, rank, ranks);
  const Index behind = prompt + floor_mod(rank - prompt, ranks);
  return {first.parts[0], first.parts[1], {behind, ranks, behind < len ? (len - behind - 1) / ranks + 1 : 0}};
}

/// A call of Ring::decode() over a cache, checked on all ranks.
template <class Query, class Cache, class M>
class DecodeCall {
  static constexpr bool kIsCall = check_query<Query, scalar_of<Cache>>();
  static_assert(kIsCall);
  using Rows = QueryRows<Query>;

 public:
  using Q = typename Rows::Tensor;
  using T = scalar_of<Cache>;

  DecodeCall(const Communicator& comm, mpi::Layout layout, const Query& query, const Cache& cache, const M& mods,
             const Options& options)
      : comm_(comm),
        layout_(layout),
        query_(query),
        q_held_(evaluated(Rows::tensor(query))),
        kept_(cache.view()),
        q_(as_rank4(view(q_held_))) {
    Terms terms;
    failure_.guard([&] {
      check(options);
      prompts_ = prompts_of(cache, kept_.size());
      const bool any = kept_.size() > 0;
      terms.add_types<T>("decode of a cache", q_.dtype(), any ? kept_.keys(0).dtype() : DType::native,
                         any ? kept_.values(0).dtype() : DType::native);
      terms.add_call<M>(problem, options);
      std::vector<Index> lens;
      each_sequence([&](Index, Index, const Range& rows) { lens.push_back(rows.size()); });
      terms.add("the number of sequences", kept_.size());
      terms.add_opaque("the list of ragged query lengths", hash_of(lens));
      terms.add_opaque("the list of prompt lengths", hash_of(prompts_));
      terms.values.kv_rows = 0;  // differs by sequence: see lengths_over_ranks()
    });
    agree(comm_, terms, failure_, Sharing{layout, false});
    const std::vector<Index> lens = lengths_over_ranks();
    failure_.guard([&] {
      each_sequence([&](Index s, Index, const Range&) {
        Problem whole = own_[static_cast<std::size_t>(s)];
        whole.kv_len = lens[static_cast<std::size_t>(s)];
        set_offsets(whole, of_sequence(options, s));
        whole.batch = kept_.size();
        whole.sequence = s;
        bound_.emplace_back(whole, mods, sections_of(s, whole.kv_len));
      });
    });
  }
  DecodeCall(const DecodeCall&) = delete;

  /// The sizes of all queries and of their results, regardless of sequences.
  Problem problem;

  void run(const ResultViews<T>& result, const Options& options, mpi::Traffic& traffic) {
    std::optional<SharedResults<T>> shared;
    failure_.guard([&] {
      shared.emplace(problem, comm_.ranks());
      for (std::size_t section = 0; attend(section, *shared, options); ++section) {
      }
    });
    compare_mods(comm_, failure_, [&](Need& need) { sample(need); });
    shared->merge(comm_, result, traffic);
  }

 private:
  /// Rows of a sequence on this rank whose tokens are equally spaced. A section begins at the start of a page, or stays
  /// within one page.
  struct Section {
    Index first_row;
    Progression tokens;
  };
  /// A sequence over all ranks, and the mods bound to it. A BoundWhole is never moved.
  struct BoundWhole {
    BoundWhole(const Problem& of_all, const M& mods, std::vector<Section> own_rows)
        : whole(of_all), bound(bind_call(mods, whole)), sections(std::move(own_rows)) {}
    BoundWhole(const BoundWhole&) = delete;

    const Problem whole;
    const Bound<M> bound;
    const std::vector<Section> sections;
  };
  /// A section as the loops see it.
  struct Part {
    using Mods = PlacedMods<Bound<M>>;

    Part(const BoundWhole& of, const Problem& own, const Section& section, bool has_sinks)
        : problem(problem_of_part(own, own.q_len, section.tokens.count)),
          mods(of.bound, of.whole, {{0, 1, own.q_len}, section.tokens, {}, has_sinks}),
          tile_mods(mods) {}
    Part(const Part&) = delete;

    const Problem problem;
    const Mods mods;
    const TileModsIfAny<T, Mods> tile_mods;
  };

  template <class Visit>
  void each_sequence(const Visit& visit) const {
    Rows::for_each(query_, q_.shape(), kept_.size(), visit);
  }
  static Options of_sequence(const Options& options, Index s) {
    Options own = options;
    own.q_offset = q_offset_of(options, s);
    own.q_offsets = {};
    return own;
  }
  /// Returns the rows `rows` of one batch element: a sequence's part of a tensor of queries, results or log-sum-exps.
  template <class View>
  static View part(const View& t, Index batch_element, const Range& rows) {
    auto shape = t.shape();
    shape[0] = 1;
    shape[2] = rows.size();
    return t.part(t.data() ? batch_element * t.stride(0) + rows.begin * t.stride(2) : 0, shape, t.strides());
  }

  void check(const Options& options) {
    Rows::check(query_, q_.shape(), kept_.size());
    check_q_offsets(options, kept_.size());
    for (Index s = 0; s < kept_.size(); ++s)
      require(kept_.offset(s) == 0, "attn::mpi: ", kept_.offset(s), " tokens of sequence ", s,
              " have left the window of its cache, but ranks need all tokens of their layout");
    check_ring_options(options, {.layout = layout_, .of_queries = false}, has_weight_mods<M>);
    require(kept_.rope() == nullptr,
            "decode: the cache rotates keys by their rows on this rank, which are not their positions; use a cache "
            "without a rope, and rotate keys and queries beforehand: rope.rotate(k, positions)");
    each_sequence([&](Index s, Index element, const Range& rows) {
      const auto like = [&](const DTypeView<const T>& pages) {
        return pages.part(0, {1, pages.dim(1), kept_.length(s), pages.dim(3)}, pages.strides());
      };
      own_.push_back(make_problem<T>(part(q_, element, rows), like(kept_.keys(s)), like(kept_.values(s)),
                                     of_sequence(options, s)));
    });
    if (!own_.empty()) problem = own_[0];
    problem.batch = q_.dim(0);
    problem.heads = q_.dim(1);
    problem.q_len = q_.dim(2);
    problem.v_dim = kept_.v_dim();
    problem.sigmoid_bias = options.normaliser.sigmoid_bias();
  }

  /// Returns the lengths of all sequences over all ranks.
  /// @throws std::invalid_argument, on all ranks, if one does not have the rows that the layout gives it.
  std::vector<Index> lengths_over_ranks() const {
    const Index ranks = comm_.ranks(), sequences = kept_.size();
    std::vector<std::int64_t> own;
    for (Index s = 0; s < sequences; ++s) own.push_back(static_cast<std::int64_t>(kept_.length(s)));
    const std::vector<std::int64_t> each = comm_.all_of(own);
    std::vector<Index> lens;
    for (Index s = 0; s < sequences; ++s) {
      const auto of_rank = [&](Index r) {
        return static_cast<Index>(each[static_cast<std::size_t>(r * sequences + s)]);
      };
      Index len = 0;
      for (Index r = 0; r < ranks; ++r) len += of_rank(r);
      for (Index r = 0; r < ranks; ++r) {
        Index wanted = 0;
        for (const Progression& tokens : tokens_of(s, len, r)) wanted += tokens.count;
        require(of_rank(r) == wanted, "decode: rank ", r, " has ", of_rank(r), " tokens of sequence ", s,
                ", but the layout gives it ", wanted, " of ", len, " tokens on ", ranks,
                " ranks; for a sequence that has grown since its prompt was distributed, see attn::mpi::grown()");
      }
      lens.push_back(len);
    }
    return lens;
  }
  std::array<Progression, 3> tokens_of(Index s, Index len, Index rank) const {
    const Index prompt = prompts_.empty() ? len : std::min(len, prompts_[static_cast<std::size_t>(s)]);
    return cached_tokens(layout_, len, prompt, rank, comm_.ranks());
  }

  /// Returns the sections of a sequence on this rank: at least one, which may be empty. Tokens that continue with the
  /// same spacing belong to the same section.
  std::vector<Section> sections_of(Index s, Index len) const {
    std::vector<Section> sections{{0, {}}};
    Index row = 0;
    for (const Progression& tokens : tokens_of(s, len, comm_.rank())) {
      Progression& last = sections.back().tokens;
      if (last.count == 0)
        last = tokens;
      else if (last.step == tokens.step && last[last.count] == tokens.first)
        last.count += tokens.count;
      else if (tokens.count > 0)
        cut_at_page(row, tokens, sections);
      row += tokens.count;
    }
    return sections;
  }
  /// Adds tokens that begin at `row`. They make two sections if `row` is in the middle of a page and they extend beyond
  /// that page.
  void cut_at_page(Index row, const Progression& tokens, std::vector<Section>& sections) const {
    const Index left = kept_.page_size() - row % kept_.page_size();
    if (left == kept_.page_size() || left >= tokens.count) return sections.push_back({row, tokens});
    sections.push_back({row, {tokens.first, tokens.step, left}});
    sections.push_back({row + left, {tokens[left], tokens.step, tokens.count - left}});
  }

  /// Attends from the queries to section number `section` of each sequence that has one. Returns false if none has.
  bool attend(std::size_t section, SharedResults<T>& shared, const Options& options) const {
    std::deque<Part> parts;
    std::deque<CallTensors<T>> tensors;
    std::vector<Pass<T>> passes;
    each_sequence([&](Index s, Index element, const Range& rows) {
      const BoundWhole& of = bound_[static_cast<std::size_t>(s)];
      if (section >= of.sections.size()) return;
      const Section& own = of.sections[section];
      const Part& p = parts.emplace_back(of, own_[static_cast<std::size_t>(s)], own, comm_.rank() == 0 && section == 0);
      CallTensors<T>& own_tensors = tensors.emplace_back(
          CallTensors<T>{part(shared.out(), element, rows), part(shared.lse(), element, rows), part(q_, element, rows),
                         kept_.keys(s).from(own.first_row), kept_.values(s).from(own.first_row), p.problem,
                         kept_.kernels_with_halves(), shared.lse_rests(), s});
      own_tensors.choose_dots = kept_.choose_dots();
      passes.push_back({own_tensors, p.tile_mods.get(), section > 0});
    });
    if (passes.empty()) return false;
    run_passes<T>(passes, options, options.workspace);
    return true;
  }

  /// Samples what the mods return for some pairs of all sequences.
  void sample(Need& need) const {
    Hash hash;
    for (const BoundWhole& of : bound_) {
      Need of_sequence;
      sample_mods(of.bound, of.whole, of_sequence);
      hash.add(of_sequence.masks);
      for (std::size_t i = 0; i < need.scores.size(); ++i) need.scores[i] += of_sequence.scores[i];
    }
    need.masks = hash.value();
  }

  const Communicator& comm_;
  const mpi::Layout layout_;
  const Query& query_;
  const Held<Q> q_held_;
  const decltype(std::declval<const Cache&>()
                     .view()) kept_;  // a reference if the cache is a KvView, otherwise a new view
  const DTypeView<const T> q_;
  Failure failure_;
  std::vector<Index> prompts_;
  std::vector<Problem> own_;  ///< this rank's sizes of each sequence
  std::deque<BoundWhole> bound_;
};

}  // namespace attn::detail::inline ATTN_BUILT_FOR
