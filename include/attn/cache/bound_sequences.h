// The checked sequences of a call over a cache, each with the mods bound to it, and the keys that a select() lists for
// its queries, which are read in place of all keys.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "attn/attention.h"
#include "attn/core/base/fixed_vector.h"
#include "attn/core/flash/passes_of_call.h"
#include "attn/core/mods/grouping/selected_keys.h"
#include "attn/kv_view.h"

namespace attn::detail::inline ATTN_BUILT_FOR {

/// The passes of a sequence over the keys that its mods list, and what they refer to.
template <class T, class Mods>
class ListedKeysOfPages {
 public:
  /// The most passes that a sequence has: query heads that share keys may have separate lists.
  static Index most_passes(Index heads, Index kv_heads) {
    return std::max<Index>(heads / std::max<Index>(kv_heads, 1), 1);
  }

  /// Adds the passes over `tensors`, one sequence, unless it takes less time to visit all keys.
  /// @returns whether it added them.
  bool add_passes(const CallTensors<T>& tensors, const Mods& mods, bool resumes, FixedVector<Pass<T>>& passes) {
    const ListGathering* gathering = mods.grouped().gathering;
    Problem call = tensors.problem;
    call.sequence = tensors.first_batch;
    parts_.clear();
    // The end of a tile may show entries of the next list, which must not be keys that only another sequence has.
    if (gathering->lists().batch > 1) {
      own_.reset(new OwnLists(gathering->lists().of_element(tensors.first_batch)));
      gathering = &own_->gathering;
    }
    if (call.row_invariant || !gathering->pays(call)) return false;
    gathering->for_each(call, [&](const GatheredTokens& tokens, const auto& far, const Problem& problem) {
      const Part& part = *parts_.emplace_back(std::make_unique<Part>(tensors, mods, tokens, far, problem));
      passes.add(Pass<T>{part.tensors, part.tile_mods.get(), resumes, tensors});
    });
    return true;
  }

 private:
  /// A pass, and what it refers to.
  struct Part {
    using Others = decltype(std::declval<const Mods&>().of(0).without_grouped());
    using Far = decltype(within_list(std::declval<const GatheredTokens&>()));
    using Mapped = MappedMods<Others, GatheredTokens, Far>;

    Part(const CallTensors<T>& of, const Mods& given, const GatheredTokens& tokens, const Far& within,
         const Problem& sizes)
        : problem(sizes),
          others(given.of(tokens.batch).without_grouped()),
          far(within),
          mods(others, tokens, far),
          tile_mods(mods),
          tensors(tensors_of(of, tokens, problem)) {}
    Part(const Part&) = delete;  // its members refer to each other

    Problem problem;
    Others others;
    Far far;
    Mapped mods;
    TileModsIfAny<T, Mapped> tile_mods;
    CallTensors<T> tensors;
  };

  struct OwnLists {
    explicit OwnLists(KeyLists of) : lists(std::move(of)) {}

    KeyLists lists;
    ListGathering gathering{lists};
  };

  std::unique_ptr<OwnLists> own_;  // those of this sequence, if sequences have separate lists
  std::vector<std::unique_ptr<Part>> parts_;
};

/// Sequences whose mods list no keys.
template <class T, class Mods>
requires(!lists_keys<Mods>()) class ListedKeysOfPages<T, Mods> {
 public:
  static Index most_passes(Index, Index) { return 1; }
  bool add_passes(const CallTensors<T>&, const Mods&, bool, FixedVector<Pass<T>>&) { return false; }
};

/// The rows of each sequence in a tensor of queries (batch, heads, len, head_dim).
template <class Q>
struct QueryRows {
  using Tensor = Q;
  static const Q& tensor(const Q& q) { return q; }
  static void check(const Q&, const Shape<4>& shape, Index sequences) {
    require(shape[0] == sequences, "batch differs: query has ", shape[0], ", the cache has ", sequences, " sequences",
            shape[0] == 1 && sequences > 1
                ? "; pass concatenated queries of several sequences as attn::ragged(q, {their lengths})"
                : "");
  }
  /// Calls visit(sequence, batch element, rows) for each sequence.
  template <class Visit>
  static void for_each(const Q&, const Shape<4>& shape, Index sequences, const Visit& visit) {
    for (Index s = 0; s < sequences; ++s) visit(s, s, Range{0, shape[2]});
  }
};
template <class Q>
struct QueryRows<Ragged<Q>> {
  using Tensor = std::remove_cvref_t<Q>;
  static const Tensor& tensor(const Ragged<Q>& r) { return r.q; }
  static void check(const Ragged<Q>& r, const Shape<4>& shape, Index sequences) {
    const Index given = static_cast<Index>(r.lens.size());
    require(given == sequences, "ragged: got ", given, " lengths for ", sequences, " sequences");
    require(shape[0] == 1, "ragged: query has shape ", shape,
            ", but its batch must be 1, with the tokens of all sequences in len");
    Index left = shape[2];
    for (std::size_t i = 0; i < r.lens.size(); ++i) {
      require(r.lens[i] >= 0 && r.lens[i] <= left, "ragged: lens[", i, "] must be in 0..", left,
              " (the queries left of ", shape[2], "), but is ", r.lens[i]);
      left -= r.lens[i];
    }
    require(left == 0, "ragged: the lengths add up to ", shape[2] - left, ", but there are ", shape[2], " queries");
  }
  template <class Visit>
  static void for_each(const Ragged<Q>& r, const Shape<4>&, Index sequences, const Visit& visit) {
    for (Index s = 0, first = 0; s < sequences; ++s) {
      const Index end = first + r.lens[static_cast<std::size_t>(s)];
      visit(s, 0, Range{first, end});
      first = end;
    }
  }
};

/// A sequence with everything that its pass refers to.
template <class T, class M>
class BoundSequence {
 public:
  BoundSequence(const Problem& own, const Problem& for_mods, const M& mods, const Rope* rope)
      : problem(own), rotation(rotation_for<T>(rope, 0)), bound_(bind_call(mods, for_mods)), tile_mods_(bound_) {}
  BoundSequence(const BoundSequence&) = delete;

  const Problem problem;
  Rotation<T> rotation;                   ///< empty until a result is requested
  std::optional<CallTensors<T>> tensors;  ///< a batch of one

  /// The most passes that add_passes() adds.
  static Index most_passes(Index heads, Index kv_heads) {
    return ListedKeysOfPages<T, Bound<M>>::most_passes(heads, kv_heads);
  }
  /// Adds the pass over all keys, or those over the keys that a mod lists.
  void add_passes(bool resumes, FixedVector<Pass<T>>& passes) {
    if (!listed_.add_passes(*tensors, bound_, resumes, passes))
      passes.add(Pass<T>{*tensors, tile_mods_.get(), resumes});
  }

 private:
  Bound<M> bound_;
  TileModsIfAny<T, Bound<M>> tile_mods_;
  ListedKeysOfPages<T, Bound<M>> listed_;
};

/// The kv_offset of a sequence: from the options, or else the position of its first remaining token.
template <class T>
std::optional<Index> kv_offset_of(const Options& options, const KvView<T>& view, Index sequence) {
  if (options.kv_offset || view.offset(sequence) == 0) return options.kv_offset;
  return view.offset(sequence);
}

/// The type in which attention over a cache is computed.
template <class Cache>
using scalar_of = typename std::remove_cvref_t<decltype(std::declval<const Cache&>().view())>::Scalar;

/// Rejects, with a one-sentence error, wrong types of a call; see check_types().
template <class Query, class T>
constexpr bool check_query() {
  using Q = typename QueryRows<Query>::Tensor;
  constexpr int kRank = Traits<Q>::kRank;
  constexpr bool kIsScalar =
      is_scalar<typename Traits<Q>::Scalar> && std::is_same_v<computed_t<typename Traits<Q>::Scalar>, T>;
  static_assert(
      kIsScalar,
      "attn: query must have the scalar type that the cache computes in (float and 16-bit floats may be mixed)");
  static_assert(kRank == 2 || kRank == 4,
                "attn: query must be a matrix (len, dim) or a rank-4 tensor (batch, heads, len, dim)");
  return kIsScalar && (kRank == 2 || kRank == 4);
}

/// The arguments of a call over cached keys and values: see CheckedCall.
template <class Query, class Cache, class M>
class CheckedSequences {
  static constexpr bool kIsCall = check_query<Query, scalar_of<Cache>>();
  static_assert(kIsCall);

 public:
  using Q = typename QueryRows<Query>::Tensor;
  using T = scalar_of<Cache>;

 private:
  using Rows = QueryRows<Query>;

  const Query& query_;
  const Held<Q> q_held_;
  const decltype(std::declval<const Cache&>()
                     .view()) kept_;  // a reference if the cache is a KvView, otherwise a new view
  const DTypeView<const T> q_;
  FixedVector<BoundSequence<T, M>> bound_;
  FixedVector<Pass<T>> passes_;
  const bool accumulates_;

 public:
  CheckedSequences(const Query& query, const Cache& cache, const M& mods, const Options& options,
                   Outputs outputs = Outputs::own)
      : query_(query),
        q_held_(evaluated(Rows::tensor(query))),
        kept_(cache.view()),
        q_(as_rank4(view(q_held_))),
        bound_(kept_.size()),
        passes_(kept_.size() * BoundSequence<T, M>::most_passes(q_.dim(1), kept_.kv_heads())),
        accumulates_(options.accumulate),
        problem(problem_of_all(q_, kept_.v_dim(), options)) {
    Rows::check(query, q_.shape(), kept_.size());
    check_q_offsets(options, kept_.size());
    Options own_options = options;  // for one sequence, with its own q_offset
    own_options.q_offsets = {};
    Rows::for_each(query, q_.shape(), kept_.size(), [&](Index s, Index element, const Range& rows) {
      own_options.q_offset = q_offset_of(options, s);
      own_options.kv_offset = kv_offset_of(options, kept_, s);
      const Problem own =
          make_problem<T>(part(q_, element, rows), keys_like(kept_.keys(s), kept_.length(s)),
                          keys_like(kept_.values(s), kept_.length(s)), own_options, outputs, has_weight_mods<M>);
      Problem for_mods = own;
      for_mods.batch = kept_.size();
      for_mods.sequence = s;
      if (kept_.rope()) for_mods.rope_positions = kept_.positions(s);
      bound_.add(own, for_mods, mods, kept_.rope());
    });
  }
  CheckedSequences(const CheckedSequences&) = delete;

  /// The sizes of all queries and of their results, regardless of sequences.
  const Problem problem;

  /// Returns one pass per sequence, with its part of the result: see result_views(). Valid until the next call.
  template <class... To>
  std::span<const Pass<T>> passes(To&&... result) {
    if constexpr (kIsCall)
      return passes_with(result_views<T>(problem, result...), kernels<To...>());  // see CheckedCall::tensors()
  }
  /// Like passes(), for results in the caller's memory; see CheckedCall::caller_tensors().
  template <class... To>
  std::span<const Pass<T>> caller_passes(To&&... result) {
    if constexpr (kIsCall && check_destinations<To...>()) {
      const ResultViews<T> to = result_views<T>(problem, result...);
      check_apart(to.out, "out", q_, "query");
      if (to.lse.data()) {
        check_apart(to.lse, "lse", q_, "query");
        check_apart(to.lse, "lse", to.out, "out");
      }
      return passes_with(to, kernels<To...>());
    }
  }

 private:
  template <class... To>
  const KernelChoice<T>& kernels() const {
    if constexpr (hold_computed_numbers<Q, std::remove_cvref_t<To>...>())
      return kept_.kernels();
    else
      return kept_.kernels_with_halves();
  }

  std::span<const Pass<T>> passes_with(const ResultViews<T>& to, const KernelChoice<T>& kernels) {
    passes_.clear();
    Rows::for_each(query_, q_.shape(), kept_.size(), [&](Index s, Index element, const Range& rows) {
      BoundSequence<T, M>& b = bound_[s];
      // Keys were rotated by the positions of their rows, regardless of kv_offset.
      if (to.out.data())
        b.rotation =
            rotation_of<T>(kept_.rope(), kept_.positions(s), b.problem.first_query_among_keys(0), b.problem.q_len);
      b.tensors.emplace(CallTensors<T>{.out = part(to.out, element, rows),
                                       .lse = part(to.lse, element, rows),
                                       .q = part(q_, element, rows),
                                       .k = kept_.keys(s),
                                       .v = kept_.values(s),
                                       .problem = b.problem,
                                       .kernels = kernels,
                                       .lse_rests = to.lse_rests,
                                       .first_batch = s,
                                       .rotation = kept_.rope() ? &b.rotation : nullptr,
                                       .choose_dots = kept_.choose_dots()});
      b.add_passes(accumulates_, passes_);
    });
    return passes_.all();
  }

  /// Returns the rows `rows` of one batch element: a sequence's part of a tensor of queries, results or log-sum-exps.
  template <class View>
  static View part(const View& t, Index batch_element, const Range& rows) {
    auto shape = t.shape();
    shape[0] = 1;
    shape[2] = rows.size();
    const Index offset = t.data() ? batch_element * t.stride(0) + rows.begin * t.stride(2) : 0;
    return t.part(offset, shape, t.strides());
  }
  /// Returns a view that is used only for its shape.
  static DTypeView<const T> keys_like(const DTypeView<const T>& pages, Index length) {
    return pages.part(0, {1, pages.dim(1), length, pages.dim(3)}, pages.strides());
  }

  static Problem problem_of_all(const DTypeView<const T>& q, Index v_dim, const Options& options) {
    Problem all;
    all.batch = q.dim(0);
    all.heads = q.dim(1);
    all.q_len = q.dim(2);
    all.v_dim = v_dim;
    all.sigmoid_bias = options.normaliser.sigmoid_bias();
    return all;
  }
};

}  // namespace attn::detail::inline ATTN_BUILT_FOR
