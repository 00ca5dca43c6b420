// More than one machine: attention over tokens that lie on the ranks of an MPI communicator. Not part of attn.h. It
// needs MPI 3, of which it uses the C interface: `find_package(attn COMPONENTS mpi)` and attn::mpi, or the flags of
// mpicxx.
#pragma once

#include <type_traits>
#include <utility>

#include "attn/attention.h"
#include "attn/backward.h"
#include "attn/detail/mpi/by_heads.h"
#include "attn/detail/mpi/by_heads_backward.h"
#include "attn/detail/mpi/decode_cache.h"
#include "attn/detail/mpi/ring_backward.h"
#include "attn/detail/mpi/scatter_gather.h"

namespace attn::mpi {
inline namespace ATTN_BUILT_FOR {

/// Attention over the ranks of a communicator, each of which has some tokens of a text.
///
///     MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &provided);
///     attn::mpi::Ring ring(MPI_COMM_WORLD, attn::mpi::Layout::zigzag);
///     auto r = ring.attention(q, k, v, attn::causal());                      // own rows of all
///     auto g = ring.attention_backward(grad_out, q, k, v, r, attn::causal());
///
/// Mods, options and results are those of the same call on one machine that has all rows: lambdas see positions in the
/// whole text, tensors and lists of mods are for the whole text, dropout drops the same pairs. All ranks call the same
/// functions in the same order with the same mods and options; executor and isa may differ. What they disagree about is
/// compared before anything travels, and all ranks throw the same std::invalid_argument then: the function, sizes,
/// scalars, options, the types of mods, and what these say of some pairs.
///
/// If a mod throws on a rank, or the rank runs out of memory, it takes part in the call to its end, without computing,
/// and then throws what was thrown; all others throw a RankError that names it. A rank that does not come to a call, or
/// ends, is MPI's affair: mpirun ends the others.
///
/// Messages are sent and received by the thread that calls, between its tasks. MPI_THREAD_FUNNELED is enough, and one
/// thread at a time may use a Ring. A Ring has a duplicate of the communicator, so making and destroying one is
/// collective.
class Ring {
 public:
  /// The ring of all ranks of `comm`. @throws std::invalid_argument if MPI is not initialised.
  explicit Ring(MPI_Comm comm, Layout layout = Layout::contiguous) : comm_(comm), layout_(layout) {}

  /// This rank's number, from 0.
  int rank() const { return comm_.rank(); }
  /// How many ranks there are.
  int ranks() const { return comm_.ranks(); }
  /// Which rank holds which tokens.
  Layout layout() const { return layout_; }

  /// How many of `len` tokens this rank holds.
  Index rows(Index len) const { return tokens(len).rows(); }
  /// Which of `len` tokens a row of this rank is.
  Index token(Index len, Index row) const { return tokens(len).token(row); }

  /// Returns this rank's rows of a tensor: (len, dim), (batch, heads, len) or (batch, heads, len, dim), anything
  /// attn::view() takes. Without a root all ranks hold the tensor, and nothing but its shape is compared. With a root,
  /// only the root's tensor is read, and the others pass any tensor of the same type and rank.
  template <class X>
  auto scatter(const X& tensor, int root = kAll) {
    const auto v = view(tensor);
    return own_rank<rank_of<decltype(v)>>(
        detail::scatter<scalar_of<decltype(v)>>(comm_, layout_, detail::tokens_view(v), rank_of<decltype(v)>, root));
  }

  /// Returns the whole tensor from the rows of all ranks: on all of them, or on the root alone, and an empty one on the
  /// others.
  template <class X>
  auto gather(const X& own_rows, int root = kAll) {
    const auto v = view(own_rows);
    return own_rank<rank_of<decltype(v)>>(
        detail::gather<scalar_of<decltype(v)>>(comm_, layout_, detail::tokens_view(v), rank_of<decltype(v)>, root));
  }
  static constexpr int kAll = -1;  ///< in the place of a root: all ranks

  /// attention() of the whole text. This rank passes its rows of query, key and value and gets those of out and lse, of
  /// the same types. There may be other numbers of queries than of keys; both lie as the layout says.
  ///
  /// Own keys come first, then those of rank - 1, rank - 2, …; a rank that needs other rows than all of a block, as the
  /// hints of the masks say, gets only those. So results depend on the number of ranks and the layout, but neither on
  /// threads nor on time: they are the same bits from run to run. They differ from those of one machine by rounding.
  /// With 16 bits, sums are float and are rounded once.
  ///
  /// Memory: the keys and values of one rank, in two halves, one worked on while the other comes; floats for out where
  /// that has 16 bits. Cost besides: for each rank and part of its tokens the hints of the masks for each head; an
  /// all-gather, an all-to-all and two reductions of some hundred bytes.
  /// @throws std::invalid_argument as attention() does, on all ranks; RankError.
  template <class Q, class K, class V, class M = Options>
  auto attention(const Q& query, const K& key, const V& value, const M& mods = {}, const Options& options = {}) {
    const detail::ModsAndOptions with(mods, options);
    traffic_ = {};
    detail::RingCall call(comm_, detail::Sharing{layout_}, "attention", query, key, value, with.mods, with.options,
                          [](const auto&, auto&) {});
    using T = typename decltype(call)::T;
    auto result = detail::Answer<Q>::result(call.own);
    detail::with_result_views<T>(call.own, result, with.options, [&](const detail::ResultViews<T>& to) {
      detail::ring_forward<decltype(call), T>(call, layout_, to, with.options, traffic_);
    });
    return result;
  }

  /// attention_backward() of the whole text: this rank passes its rows of grad_out (or {grad_out, grad_lse}), query,
  /// key and value, and what attention() returned to it, and gets the gradients of its rows.
  ///
  /// Keys and values come by again, and their gradients are sent to the rank that they belong to, which adds them up in
  /// a fixed order: the same bits from run to run. With 16 bits, gradients travel and are added up as floats. What mods
  /// learn (see bias() with a second tensor) is a sum over this rank's queries: for the whole text, add those of all
  /// ranks up with MPI_Allreduce.
  ///
  /// Memory: the keys and values of one rank in two halves, their gradients likewise, and half of these arriving.
  /// @throws std::invalid_argument as attention_backward() does, on all ranks; RankError.
  template <class G, class Q, class K, class V, class R, class M = Options>
  auto attention_backward(const G& grad_out, const Q& query, const K& key, const V& value, const R& result,
                          const M& mods = {}, const Options& options = {}) {
    const detail::ModsAndOptions with(mods, options);
    return backward(false, grad_out, query, key, value, result, with.mods, with.options,
                    [&](auto& call, const auto& arrays) {
                      using Call = std::remove_reference_t<decltype(call)>;
                      detail::ring_backward<Call, typename Call::T>(call, layout_, arrays, with.options, traffic_);
                    });
  }

  /// attention() with the same arguments and results, another way: ranks exchange their rows for all rows of some
  /// heads, work on these, and exchange the results back. Each number of q, k, v and out travels once, where a ring
  /// sends keys to all ranks. But nothing is computed meanwhile, and there must be a head for each rank. Heads that
  /// ranks do not divide, and ranks that need the same key head, are fine. Results differ from those of the ring by
  /// rounding.
  ///
  /// Memory: whole texts of this rank's heads, as much as its rows have.
  /// @throws std::invalid_argument as attention() does, and where there are fewer heads than ranks.
  template <class Q, class K, class V, class M = Options>
  auto attention_by_heads(const Q& query, const K& key, const V& value, const M& mods = {},
                          const Options& options = {}) {
    const detail::ModsAndOptions with(mods, options);
    traffic_ = {};
    detail::RingCall call(comm_, detail::Sharing{layout_}, "attention_by_heads", query, key, value, with.mods,
                          with.options,
                          [](const auto& c, auto&) { check_heads(c, "attention_by_heads", "attention()"); });
    using T = typename decltype(call)::T;
    auto result = detail::Answer<Q>::result(call.own);
    detail::with_result_views<T>(call.own, result, with.options, [&](const detail::ResultViews<T>& to) {
      detail::attention_by_heads<decltype(call), T>(call, layout_, to, with.options, traffic_);
    });
    return result;
  }

  /// attention_backward() of the whole text by heads: this rank passes what it passes to attention_backward(), and gets
  /// the gradients of its rows. `result` may come from either way.
  ///
  /// Query, key, value, output, its gradient and all gradients travel once each. Where ranks share a key head, its
  /// gradients are added up in the order of ranks: the same bits from run to run. What mods learn is a sum over this
  /// rank's heads: add those of all ranks up.
  ///
  /// Memory: whole texts of this rank's heads of all that travels, twice what its rows have; where ranks share a key
  /// head, own rows of its gradients once more for each of them.
  /// @throws std::invalid_argument as attention_backward() does, and where there are fewer heads than ranks.
  template <class G, class Q, class K, class V, class R, class M = Options>
  auto attention_by_heads_backward(const G& grad_out, const Q& query, const K& key, const V& value, const R& result,
                                   const M& mods = {}, const Options& options = {}) {
    const detail::ModsAndOptions with(mods, options);
    return backward(true, grad_out, query, key, value, result, with.mods, with.options,
                    [&](auto& call, const auto& arrays) {
                      using Call = std::remove_reference_t<decltype(call)>;
                      detail::by_heads_backward<Call, typename Call::T>(call, layout_, arrays, with.options, traffic_);
                    });
  }

  /// attention() of a few queries that all ranks have, over keys and values of which each rank has its rows: a token
  /// that is generated from a long text. All ranks get the whole result. With Layout::striped a text may grow: token t
  /// goes to rank t mod P, and nothing moves; for other layouts see attn::mpi::grown().
  ///
  /// No key travels: ranks merge their results (see merge()) in the order of ranks, two by two, the same bits on all of
  /// them. Each sends as much as twice the result has.
  template <class Q, class K, class V, class M = Options>
  requires(!detail::KvSource<K>) auto decode(const Q& query, const K& key, const V& value, const M& mods = {},
                                             const Options& options = {}) {
    const detail::ModsAndOptions with(mods, options);
    traffic_ = {};
    detail::RingCall call(comm_, detail::Sharing{layout_, false}, "decode", query, key, value, with.mods, with.options,
                          [](const auto&, auto&) {});
    using T = typename decltype(call)::T;
    auto result = detail::Answer<Q>::result(call.own);
    detail::decode_over_ranks<decltype(call), T>(
        call, layout_, detail::result_views<T>(call.own, result.out, result.lse), with.options, traffic_);
    return result;
  }

  /// decode() over a cache, of which each rank has its tokens of each sequence: a KvCache, sequences of a PagedKvCache,
  /// or a KvView, of any numbers, also those of 8 bits. The rest is as with attention(query, cache, mods, options),
  /// also ragged() queries. Each sequence has its own length, and lies over the ranks as the layout says.
  ///
  ///     if (t % ring.ranks() == ring.rank()) cache.append(k, v);   // token t of the text, Layout::striped
  ///     auto out = ring.decode(q, cache, attn::causal()).out;      // q of token t, on all ranks
  ///
  /// The cache must have no Rope, which would turn keys by rows instead of tokens: turn keys and queries before, by
  /// Rope::rotate(k, positions).
  /// @throws std::invalid_argument as attention() does, on all ranks, and if a rank has other tokens than the layout
  /// gives it, or the cache has a rope; RankError.
  template <class Q, detail::KvSource Cache, class M = Options>
  auto decode(const Q& query, const Cache& cache, const M& mods = {}, const Options& options = {}) {
    const detail::ModsAndOptions with(mods, options);
    traffic_ = {};
    detail::DecodeCall call(comm_, layout_, query, cache, with.mods, with.options);
    using Call = decltype(call);
    auto result = detail::Answer<typename Call::Q>::result(call.problem);
    call.run(detail::result_views<typename Call::T>(call.problem, result.out, result.lse), with.options, traffic_);
    return result;
  }

  /// What the last call sent and waited for on this rank.
  const Traffic& traffic() const { return traffic_; }

 private:
  template <class View>
  static constexpr int rank_of = std::remove_cvref_t<View>::kRank;
  template <class View>
  using scalar_of = typename std::remove_cvref_t<View>::Scalar;

  /// A backward call: checks its arguments and makes the gradients, which run(call, arrays) fills in.
  template <class G, class Q, class K, class V, class R, class M, class Run>
  auto backward(bool by_heads, const G& grad_out, const Q& query, const K& key, const V& value, const R& result,
                const M& mods, const Options& options, const Run& run) {
    traffic_ = {};
    const char* const operation = by_heads ? "attention_by_heads_backward" : "attention_backward";
    using T = detail::computed_t<typename detail::Traits<Q>::Scalar>;
    decltype(auto) grad_held = detail::evaluated(detail::gradient_of_out(grad_out));
    decltype(auto) out_held = detail::evaluated(result.out);
    detail::RingGradients<T> arrays;
    detail::RingCall call(comm_, detail::Sharing{layout_}, operation, query, key, value, mods, options,
                          [&](const auto& c, detail::Terms& terms) {
                            using Terms = detail::Terms;
                            const Shape<4> want{c.own.batch, c.own.heads, c.own.q_len, c.own.v_dim};
                            arrays.grad_out = detail::checked_input<T>(grad_held, want, "grad_out");
                            detail::checked_input<T>(out_held, want, "out");
                            arrays.out = detail::before_rounding<T>(out_held);
                            arrays.lse = detail::checked_lse<T>(result.lse, c.own, "lse");
                            arrays.lse_rests = detail::rests_beside<T>(result.lse);
                            if constexpr (detail::WholeResult<G>) {
                              arrays.grad_lse = detail::checked_lse<T>(grad_out.lse, c.own, "grad_lse");
                              arrays.has_grad_lse = !c.own.sigmoid_bias;
                            }
                            terms.set(Terms::out_type, static_cast<int>(arrays.out.dtype()));
                            terms.set(Terms::grad_out_type, static_cast<int>(arrays.grad_out.dtype()));
                            terms.set(Terms::grad_lse, arrays.has_grad_lse ? 1 : 0);
                            if (by_heads) check_heads(c, operation, "attention_backward()");
                          });
    auto q = detail::gradient_like<Q>(call.q);
    auto k = detail::gradient_like<K>(call.k);
    auto v = detail::gradient_like<V>(call.v);
    attn::Gradients<decltype(q), decltype(k), decltype(v)> grads{std::move(q), std::move(k), std::move(v)};
    arrays.grad_q = detail::checked_gradient<T>(grads.query, call.q, "grad_query");
    arrays.grad_k = detail::checked_gradient<T>(grads.key, call.k, "grad_key");
    arrays.grad_v = detail::checked_gradient<T>(grads.value, call.v, "grad_value");
    run(call, arrays);
    return grads;
  }
  /// Checks that there is a head for each rank, as exchanging heads needs.
  template <class Call>
  static void check_heads(const Call& call, const char* operation, const char* remedy) {
    detail::require(call.own.heads >= call.comm.ranks(), operation, ": there are ", call.own.heads, " heads for ",
                    call.comm.ranks(), " ranks, and each needs one; use ", remedy);
  }

  detail::RankTokens tokens(Index len) const { return {layout_, len, comm_.rank(), comm_.ranks()}; }

  /// A tensor of rank 4 with as many dimensions as the caller's. What only the root gets has none on the others.
  template <int kRank, class T>
  static Tensor<T, kRank> own_rank(Tensor<T, 4> t) {
    if constexpr (kRank == 4)
      return t;
    else if (t.dim(0) == 0 || t.dim(1) == 0 || t.dim(3) == 0)
      return Tensor<T, kRank>();
    else if constexpr (kRank == 3)
      return Tensor<T, 3>(TensorView<const T, 3>(t.view().squeeze(3)));
    else
      return Tensor<T, 2>(TensorView<const T, 2>(t.view().select(0, 0).select(0, 0)));
  }

  detail::Communicator comm_;
  Layout layout_;
  Traffic traffic_;
};

}  // namespace ATTN_BUILT_FOR
}  // namespace attn::mpi
