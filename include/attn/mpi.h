// Distributed attention: each rank of an MPI communicator holds some of the tokens. Not part of attn.h. It uses the C
// interface of MPI 3: build with `find_package(attn COMPONENTS mpi)` and attn::mpi, or with the flags of mpicxx.
#pragma once

#include "attn/types.h"

// Exceptions are needed because a rank that cannot compute still communicates, after which all ranks throw; RTTI
// because ranks compare the types of their mods.
#if defined(ATTN_NO_EXCEPTIONS) || !defined(__cpp_rtti) || defined(ATTN_NO_THREADS)
#error "attn/mpi.h needs exceptions, RTTI and threads: compile without -fno-exceptions, -fno-rtti and ATTN_NO_THREADS"
#endif

#include <type_traits>
#include <utility>

#include "attn/attention.h"
#include "attn/backward.h"
#include "attn/mpi/by_heads.h"
#include "attn/mpi/decode.h"
#include "attn/mpi/ring.h"
#include "attn/mpi/scatter_gather.h"

namespace attn::mpi::inline ATTN_BUILT_FOR {

/// Attention over the ranks of a communicator, each of which holds some tokens of a sequence.
///
///     MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &provided);
///     attn::mpi::Ring ring(MPI_COMM_WORLD, attn::mpi::Layout::zigzag);
///     auto r = ring.attention(q, k, v, attn::causal());                      // this rank's rows
///     auto g = ring.attention_backward(grad_out, q, k, v, r, attn::causal());
///
/// Mods, options and results are those of the same call in a single process that holds all rows: lambdas see positions
/// in the whole sequence, tensors and lists of mods cover the whole sequence, and dropout drops the same pairs. All
/// ranks call the same functions in the same order with the same mods and options; executor and isa may differ. Before
/// any data is sent, ranks compare the function, sizes, scalar types, options, the types of mods, and what the mods
/// return for some pairs. If they disagree, all throw the same std::invalid_argument.
///
/// If a mod throws on a rank, or the rank runs out of memory, that rank takes part in the rest of the call without
/// computing, and then rethrows; all other ranks throw a RankError that names it. If a rank does not make the call, the
/// others wait for it; if a rank terminates, mpirun ends the others.
///
/// The calling thread sends and receives messages between its tasks. MPI_THREAD_FUNNELED is enough, and only one thread
/// at a time may use a Ring. A Ring duplicates the communicator, so its construction and destruction are collective.
class Ring {
 public:
  /// Creates a ring of all ranks of `comm`. @throws std::invalid_argument if MPI is not initialised.
  explicit Ring(MPI_Comm comm, Layout layout = Layout::contiguous) : comm_(comm), layout_(layout) {}

  /// This rank's number, from 0.
  int rank() const { return comm_.rank(); }
  /// The number of ranks.
  int ranks() const { return comm_.ranks(); }
  /// Which rank holds which tokens.
  Layout layout() const { return layout_; }

  /// Returns the number of tokens that this rank holds of a sequence of `len` tokens.
  Index rows(Index len) const { return tokens(len).rows(); }
  /// Returns the token that a row of this rank holds, as an index in a sequence of `len` tokens.
  Index token(Index len, Index row) const { return tokens(len).token(row); }

  /// Returns this rank's rows of a tensor: (len, dim), (batch, heads, len) or (batch, heads, len, dim), of any type
  /// that attn::view() takes. Without a root, all ranks pass the whole tensor, and only its shape is compared. With a
  /// root, only the root's tensor is read; the other ranks pass any tensor of the same type and number of dimensions.
  template <class X>
  auto scatter(const X& tensor, int root = kAll) {
    const auto v = view(tensor);
    return own_rank<rank_of<decltype(v)>>(
        detail::scatter<scalar_of<decltype(v)>>(comm_, layout_, detail::tokens_view(v), rank_of<decltype(v)>, root));
  }

  /// Returns the whole tensor, gathered from the rows of all ranks. With a root, only the root gets it, and the others
  /// get an empty tensor.
  template <class X>
  auto gather(const X& own_rows, int root = kAll) {
    const auto v = view(own_rows);
    return own_rank<rank_of<decltype(v)>>(
        detail::gather<scalar_of<decltype(v)>>(comm_, layout_, detail::tokens_view(v), rank_of<decltype(v)>, root));
  }
  static constexpr int kAll = -1;  ///< in place of a root: all ranks

  /// Computes attention() of the whole sequence. This rank passes its rows of query, key and value, and gets its rows
  /// of out and lse, in the types that attention() returns. The numbers of queries and keys may differ; both are
  /// distributed by the layout.
  ///
  /// A rank processes its own keys first, then those of rank - 1, rank - 2, …; from each other rank, it receives only
  /// the keys that it needs according to the hints of the masks. Results depend on the number of ranks and the layout,
  /// but not on threads or timing: they are bit-identical from run to run. They differ from those of a single process
  /// only by rounding. With 16-bit tensors, sums are float and are rounded once.
  ///
  /// Memory: the keys and values of one rank, in two halves, of which one is processed while the other arrives; a float
  /// copy of out if it is 16-bit. Overhead: evaluating the hints of the masks for each rank, each part of its tokens
  /// and each head; an all-gather, an all-to-all and two reductions of a few hundred bytes.
  /// @throws std::invalid_argument as attention() does, on all ranks; RankError if another rank fails.
  template <class Q, class K, class V, class M = Options>
  auto attention(const Q& query, const K& key, const V& value, const M& mods = {}, const Options& options = {}) {
    const detail::ModsAndOptions with(mods, options);
    return forward(false, query, key, value, with.mods, with.options,
                   [&]<class Call, class T>(Call& call, const detail::ResultViews<T>& to) {
                     detail::ring_forward<Call, T>(call, layout_, to, with.options, traffic_);
                   });
  }

  /// Computes attention_backward() of the whole sequence. This rank passes its rows of grad_out (or {grad_out,
  /// grad_lse}), query, key and value, and its result of attention(), and gets the gradients of its rows.
  ///
  /// Keys and values are sent again, and their gradients are sent to the rank that owns them, which sums them in a
  /// fixed order, so that results are bit-identical from run to run. Gradients of 16-bit tensors are sent and summed as
  /// floats. Gradients of learned mods (see bias() with a second tensor) are sums over this rank's queries: for the
  /// whole sequence, sum them over all ranks with MPI_Allreduce.
  ///
  /// Memory: the keys and values of one rank in two halves, their gradients in two halves, and a receive buffer for
  /// half of the gradients.
  /// @throws std::invalid_argument as attention_backward() does, on all ranks; RankError if another rank fails.
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

  /// Computes attention() by heads, with the same arguments and results: ranks exchange their rows for all rows of some
  /// heads, process these, and exchange the results back. Each element of q, k, v and out is sent once, whereas a ring
  /// sends keys to all ranks. But nothing is computed during the exchange, and there must be at least one head per
  /// rank. The number of heads need not be divisible by the number of ranks, and several ranks may need the same key
  /// head. Results differ from those of the ring only by rounding. With Options::row_invariant they are, bit for bit,
  /// those of a single machine with that option, for any number of ranks and any layout. (The gradients of
  /// attention_by_heads_backward() do not have this property.)
  ///
  /// Memory: the whole sequence for this rank's heads, about as much as its rows of all heads take.
  /// @throws std::invalid_argument as attention() does, and if there are fewer heads than ranks.
  template <class Q, class K, class V, class M = Options>
  auto attention_by_heads(const Q& query, const K& key, const V& value, const M& mods = {},
                          const Options& options = {}) {
    const detail::ModsAndOptions with(mods, options);
    return forward(true, query, key, value, with.mods, with.options,
                   [&]<class Call, class T>(Call& call, const detail::ResultViews<T>& to) {
                     detail::attention_by_heads<Call, T>(call, layout_, to, with.options, traffic_);
                   });
  }

  /// Computes attention_backward() of the whole sequence by heads. Arguments and gradients are those of
  /// attention_backward(). `result` may come from attention() or attention_by_heads().
  ///
  /// Query, key, value, output and all gradients are sent once each. If ranks share a key head, its gradients are
  /// summed in the order of ranks, so that results are bit-identical from run to run. Gradients of learned mods are
  /// sums over this rank's heads: sum them over all ranks.
  ///
  /// Memory: every tensor that is sent, over the whole sequence, for this rank's heads. In total that is about twice
  /// the size of this rank's rows of query, key, value and output. For a key head that several ranks share, each rank
  /// also holds its own rows of the head's gradients, once for each of these ranks.
  /// @throws std::invalid_argument as attention_backward() does, and if there are fewer heads than ranks.
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

  /// Computes attention() of a few queries, which all ranks pass, over keys and values that are distributed over the
  /// ranks, as when a token is generated from a long sequence. All ranks get the whole result. With Layout::striped a
  /// sequence can grow without moving tokens, because token t goes to rank t mod P; for other layouts see
  /// attn::mpi::grown().
  ///
  /// No key is sent: ranks merge their results (see merge()) pairwise in the order of ranks, so that the result is
  /// bit-identical on all ranks. Each rank sends twice the size of the result.
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

  /// Computes decode() over a cache in which each rank has its tokens of each sequence: a KvCache, sequences of a
  /// PagedKvCache, or a KvView, of any element type, including 8-bit. Otherwise it works like attention(query, cache,
  /// mods, options), including ragged() queries. Each sequence has its own length and is distributed over the ranks by
  /// the layout.
  ///
  ///     if (t % ring.ranks() == ring.rank()) cache.append(k, v);   // token t of the sequence, Layout::striped
  ///     auto out = ring.decode(q, cache, attn::causal()).out;      // q of token t, on all ranks
  ///
  /// The cache must not have a Rope, which would rotate a key by its row in this rank's cache instead of its position
  /// in the sequence: rotate keys and queries beforehand, with Rope::rotate(k, positions).
  /// @throws std::invalid_argument on all ranks, if attention() would throw it, if a rank does not have the tokens that
  /// the layout gives it, or if the cache has a rope; RankError if another rank fails.
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

  /// Statistics of the last call on this rank: bytes sent and held, and time spent waiting.
  const Traffic& traffic() const { return traffic_; }

 private:
  template <class View>
  static constexpr int rank_of = std::remove_cvref_t<View>::kRank;
  template <class View>
  using scalar_of = typename std::remove_cvref_t<View>::Scalar;

  /// Runs a forward call: checks its arguments and allocates the result, which run(call, its views) fills in.
  template <class Q, class K, class V, class M, class Run>
  auto forward(bool by_heads, const Q& query, const K& key, const V& value, const M& mods, const Options& options,
               const Run& run) {
    traffic_ = {};
    const char* const operation = by_heads ? "attention_by_heads" : "attention";
    detail::RingCall call(comm_, detail::Sharing{.layout = layout_, .by_heads = by_heads}, operation, query, key, value,
                          mods, options, [&](const auto& c, auto&) {
                            if (by_heads) check_heads(c, operation, "attention()");
                          });
    auto result = detail::Answer<Q>::result(call.own);
    detail::with_result_views<typename decltype(call)::T>(call.own, result, options,
                                                          [&](const auto& to) { run(call, to); });
    return result;
  }
  /// Runs a backward call: checks its arguments and allocates the gradients, which run(call, arrays) fills in.
  template <class G, class Q, class K, class V, class R, class M, class Run>
  auto backward(bool by_heads, const G& grad_out, const Q& query, const K& key, const V& value, const R& result,
                const M& mods, const Options& options, const Run& run) {
    traffic_ = {};
    const char* const operation = by_heads ? "attention_by_heads_backward" : "attention_backward";
    using T = detail::computed_t<typename detail::Traits<Q>::Scalar>;
    decltype(auto) grad_held = detail::evaluated(detail::gradient_of_out(grad_out));
    decltype(auto) out_held = detail::evaluated(result.out);
    detail::RingGradients<T> arrays;
    detail::RingCall call(comm_, detail::Sharing{.layout = layout_, .by_heads = by_heads}, operation, query, key, value,
                          mods, options, [&](const auto& c, detail::Terms& terms) {
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
                            terms.add_opaque("the scalar type of out", arrays.out.dtype());
                            terms.add_opaque("the scalar type of grad_out", arrays.grad_out.dtype());
                            terms.add("the number of lse gradients", arrays.has_grad_lse ? 1 : 0);
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
  /// Checks that there is a head for each rank, as the exchange of heads requires.
  template <class Call>
  static void check_heads(const Call& call, const char* operation, const char* remedy) {
    detail::require(call.own.heads >= call.comm.ranks(), operation, ": there are ", call.own.heads, " heads for ",
                    call.comm.ranks(), " ranks, but each rank needs at least one; use ", remedy);
  }

  detail::RankTokens tokens(Index len) const { return {layout_, len, comm_.rank(), comm_.ranks()}; }

  /// Converts a rank-4 tensor to the rank of the caller's tensor. A tensor that only the root gets is empty on other
  /// ranks.
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

}  // namespace attn::mpi::inline ATTN_BUILT_FOR
