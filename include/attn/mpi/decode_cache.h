// Decoding over a distributed cache: all ranks have the queries, and each has some tokens of the cached sequences.
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
#include "attn/mpi/decode.h"
#include "attn/mpi/grown_cache.h"

namespace attn::detail::inline ATTN_BUILT_FOR {

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
      terms = terms_of<M>("decode of a cache", problem, options);
      terms.set(Terms::sequences, kept_.size());
      terms.set(Terms::q_type, static_cast<int>(q_.dtype()));
      terms.set(Terms::scalar, sizeof(T));
      if (kept_.size() > 0) terms.set(Terms::k_type, static_cast<int>(kept_.keys(0).dtype()));
      if (kept_.size() > 0) terms.set(Terms::v_type, static_cast<int>(kept_.values(0).dtype()));
      Hash lens, prompts;
      each_sequence([&](Index, Index, const Range& rows) { lens.add(static_cast<std::int64_t>(rows.size())); });
      for (const Index prompt : prompts_) prompts.add(static_cast<std::int64_t>(prompt));
      terms.set(Terms::query_lens, lens.value());
      terms.set(Terms::prompts, prompts.value());
      terms.kv_rows = 0;  // differs by sequence: see lengths_over_ranks()
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
    check_ring_options(options, {.layout = layout_, .of_queries = false});
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
                         kKernelChoice<T>, shared.lse_rests(), s});
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
