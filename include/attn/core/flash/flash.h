// The flash path (Dao et al. 2022, algorithm 1): plans the tasks of calls, runs them, and merges splits of keys.
#pragma once

#include <algorithm>
#include <atomic>
#include <cmath>
#include <iterator>
#include <limits>
#include <optional>
#include <span>

#include "attn/core/base/compiled_once.h"
#include "attn/core/base/fixed_vector.h"
#include "attn/core/base/ranges.h"
#include "attn/core/flash/decode_loop.h"
#include "attn/core/flash/pass.h"
#include "attn/core/flash/passes_of_call.h"
#include "attn/core/flash/prefill.h"
#include "attn/explanation.h"
#include "attn/options.h"

namespace attn::detail::inline ATTN_BUILT_FOR {

/// A pass over one query per head, seen as a pass over one query head per key head, whose queries are the heads of the
/// group. A tile computes whole vectors of queries, so it then serves several heads in the time of one. On a Zen 3 core
/// with AVX2, single queries whose keys are read from memory take 1.8 times as long as in DecodeLoop with four heads
/// per key head, and 0.7 times as long with sixteen.
template <class T>
class JoinedHeads {
 public:
  /// Whether the heads of a pass can be joined. Passes with sinks, additive scores or dropout cannot: each head has a
  /// separate sink and score, but a tile has only one, and dropout draws its numbers for several queries of a head at a
  /// time. Weight mods, too, are applied to several queries of a head at a time.
  static bool can_join(const Pass<T>& pass) {
    const Problem& p = pass.tensors.problem;
    if (p.q_len != 1 || p.heads == p.kv_heads || pass.tensors.score || pass.tensors.q_list.exists() ||
        p.changes_weights)
      return false;
    if (!pass.mods) return true;
    if (pass.mods->kept_factor() != 1) return false;
    for (Index h = 0; h < p.heads; ++h)
      if (pass.mods->sink(h) != -std::numeric_limits<double>::infinity()) return false;
    return true;
  }

  explicit JoinedHeads(const Pass<T>& of)
      : of_(of), problem_(of.tensors.problem), tensors_(joined(of.tensors, problem_)), mods_(of, tensors_) {}
  JoinedHeads(const JoinedHeads&) = delete;  // its members refer to each other

  Pass<T> pass() const { return {tensors_, of_.mods ? &mods_ : nullptr, of_.resumes, of_.whole}; }

 private:
  /// The mods of the heads. Query i of a joined head is the query of head i of the group.
  class Mods final : public TileMods<T> {
   public:
    Mods(const Pass<T>& of, const CallTensors<T>& joined) : mods_(of.mods), joined_(joined), of_(of.tensors.problem) {}

    Range kv_range(const Tile& tile) const override {
      Range all{0, 0};
      each(tile, [&](const Tile& one, Index) { all = hull(all, mods_->kv_range(one)); });
      return all;
    }
    Coverage coverage(VectorSet vectors, const Tile& tile) const override {
      Coverage all = Coverage::some;
      each(tile, [&](const Tile& one, Index i) {
        const Coverage own = mods_->coverage(vectors, one);
        all = i == 0 || all == own ? own : Coverage::some;
      });
      return all;
    }
    bool has_scores() const override { return mods_->has_scores(); }
    double sink(Index) const override { return -std::numeric_limits<double>::infinity(); }
    void apply(VectorSet vectors, T* scores, Index stride, const Tile& tile, bool masked) const override {
      each(tile, [&](const Tile& one, Index i) { mods_->apply(vectors, scores + i, stride, one, masked); });
    }
    void change_weights(VectorSet, const WeightsToChange<T>&) const override {}  // there are no weight mods
    long double kept_factor() const override { return 1; }
    void drop_weights(VectorSet, T*, WeightOrder, Index, const Tile&) const override {}  // there is no dropout

   private:
    /// Calls use(tile of a single query, its number in the tile).
    template <class Use>
    void each(const Tile& tile, const Use& use) const {
      const Index first = joined_.problem.first_query(tile.batch - joined_.first_batch);
      for (Index i = 0; i < tile.q.size(); ++i)
        use({tile.batch, of_.head_of(tile.head, tile.q.begin - first + i), {first, first + 1}, tile.kv}, i);
    }

    const TileMods<T>* mods_;
    const CallTensors<T>& joined_;
    const Problem& of_;
  };

  static CallTensors<T> joined(const CallTensors<T>& t, Problem& problem) {
    const Index group = problem.heads / problem.kv_heads, step = problem.head_step();
    problem.q_len = group;
    problem.heads = problem.kv_heads;
    const auto of = [&]<class View>(const View& view) {
      if (view.data() == nullptr) return view;
      auto shape = view.shape(), strides = view.strides();
      shape[1] = problem.heads, shape[2] = group;
      strides[2] = strides[1] * step;
      if (problem.heads > 1 && step == 1) strides[1] *= group;  // with one head, the product could overflow
      return view.part(0, shape, strides);
    };
    CallTensors<T> all{
        .out = of(t.out), .lse = of(t.lse), .q = of(t.q), .k = t.k, .v = t.v, .problem = problem, .kernels = t.kernels};
    all.lse_rests = t.lse_rests;
    all.first_batch = t.first_batch;
    all.rotation = t.rotation;
    all.rows_are_heads = true;
    return all;
  }

  const Pass<T>& of_;
  Problem problem_;
  CallTensors<T> tensors_;
  Mods mods_;
};

/// Cost of a hyperbolic tangent, in multiply-adds of a product.
constexpr Index kFlopsOfTanh = 16;

/// Splits a pass into tasks, and runs them.
template <class T>
class PassTasks {
 public:
  /// `kv_bytes`: the size of all keys and values that the call reads, in this pass and in those that run with it.
  PassTasks(const Pass<T>& pass, const ChosenKernels<T>& kernels, double kv_bytes)
      : pass_{joined(pass, kernels), kernels},
        problem_(pass_.tensors.problem),
        tiles_(kernels.family, problem_.q_len, problem_.q_len <= kernels.few_queries(problem_),
               pass_.tensors.most_queries),
        prefill_loop_(pass_, tiles_),
        decode_loop_(pass_, tiles_, are_far(kv_bytes)) {
    if (joined_ && !problem_.row_invariant) tile_splits_.emplace(problem_, query_tiles(), tiles_.most_queries());
  }
  PassTasks(const PassTasks&) = delete;  // its members refer to each other

  /// Floating-point operations of the scores, whether products or not, and of the value product.
  double flops() const {
    const double pairs = static_cast<double>(problem_.batch * problem_.heads) * static_cast<double>(problem_.q_len) *
                         static_cast<double>(problem_.kv_len);
    const Index sweeps = visits_keys_twice() ? 2 : 1;
    const Index of_score = sweeps * problem_.head_dim * (pass_.tensors.score ? kFlopsOfTanh : 1);
    return 2 * pairs * static_cast<double>(of_score + problem_.v_dim);
  }

  /// How the pass is split into tasks for a number of workers.
  struct Partition {
    QueryBlocks<T> blocks;
    Index per_task;  ///< neighbouring blocks
    Index splits;    ///< of the keys of a block; each is a task
    Index tasks;     ///< 0: there is nothing to do
    Index bytes;     ///< of memory per worker
    Index partials;  ///< bytes that the tasks leave for merge()

    /// Number of blocks whose splits must be merged after all tasks.
    Index merges() const { return splits > 1 ? blocks.count() : 0; }
  };
  Partition partition(Index workers) const {
    const QueryBlocks<T> blocks = blocks_for(workers);
    if (query_tiles() == 0) return {blocks, 1, 1, 0, 0, 0};
    const bool single = tiles_.are_single();
    const Index splits = single         ? decode_loop_.splits().count()
                         : tile_splits_ ? tile_splits_->count()
                                        : 1,
                per_task = blocks_per_task(blocks, splits, workers);
    return {blocks,
            per_task,
            splits,
            ceil_div(blocks.count(), per_task) * splits,
            single ? decode_loop_.bytes(std::min(per_task, decode_loop_.most_together()))
                   : prefill_loop_.bytes(blocks.most_tiles()),
            splits == 1 ? 0
            : single    ? blocks.count() * decode_loop_.splits().bytes()
                        : blocks.count() * bytes_of_tiles(blocks)};
  }

  /// Runs a task in partition.bytes of memory. With several splits, it stores its result in `partials`.
  void run(const Partition& partition, Index task, std::byte* memory, std::byte* partials) const {
    // The tasks of a head begin with its last queries (see QueryBlocks::at()), so the longest tasks of each head come
    // first in a causal call. With the order of tasks reversed, one or two heads of 4096 tokens took sixteen workers
    // 1.1 to 1.2 times as long.
    const auto blocks_of = [&](Index number) {
      const Index first = divide(number, partition.splits).quotient * partition.per_task;
      return Range{first, std::min(first + partition.per_task, partition.blocks.count())};
    };
    // A worker takes neighbouring tasks, one after another.
    const Index next = std::min(task + 1, partition.tasks - 1);
    const Range range = blocks_of(task), next_range = blocks_of(next);
    const Index step = tiles_.are_single() ? decode_loop_.most_together() : 1;
    for (Index block = range.begin; block < range.end; block += step) {
      const bool more = block + step < range.end;
      const Index split = divide(task, partition.splits).remainder;
      if (tiles_.are_single()) {
        decode_loop_.run(partition.blocks, {{block, std::min(block + step, range.end)}, split},
                         more ? typename DecodeLoop<T>::Task{{block + step, range.end}, split}
                              : typename DecodeLoop<T>::Task{next_range, divide(next, partition.splits).remainder},
                         memory, partials);
      } else {
        typename PrefillLoop<T>::Split of_tiles{};
        if (partition.splits > 1)
          of_tiles = {&*tile_splits_, split, partials + block * bytes_of_tiles(partition.blocks)};
        prefill_loop_.run(partition.blocks, block, partition.blocks.at(more ? block + 1 : next_range.begin, 0),
                          of_tiles, memory);
      }
    }
  }

  /// Merges the results of a block's splits.
  void merge(const Partition& partition, Index block, std::byte* partials) const {
    if (tiles_.are_single()) return decode_loop_.merge(partition.blocks, block, partials);
    prefill_loop_.merge(partition.blocks, block, *tile_splits_, partials + block * bytes_of_tiles(partition.blocks));
  }

  /// Adds this pass to an explanation that may already cover other passes.
  void explain(const Partition& partition, Explanation& e) const {
    const bool single = tiles_.are_single();
    const bool amx_unused = pass_.kernels.on_matrix_unit() && single && !decode_loop_.on_matrix_unit();
    e.amx = amx_unused ? Amx::not_for_single_queries : pass_.kernels.amx;
    const bool amx = e.amx == Amx::used, integers = single && decode_loop_.multiplies_integers();
    const bool in_bf16 = amx || (!single && pass_.kernels.in_bf16());
    e.in_bf16 |= in_bf16;
    e.isa = isa_with({pass_.kernels.vectors,
                      in_bf16    ? DotProducts::vnni_bf16
                      : integers ? DotProducts::vnni
                                 : DotProducts::none,
                      amx ? MatrixUnit::amx : MatrixUnit::none});
    e.queries_per_tile = std::max(e.queries_per_tile, tiles_.most_queries());
    e.keys_per_tile = kKeyTile;
    e.query_tiles += query_tiles();
    e.few_queries = pass_.kernels.few_queries(problem_);
    e.row_invariant = problem_.row_invariant;
    e.visits_keys_twice = visits_keys_twice();
    e.packs_keys |= single ? decode_loop_.packs_keys() : prefill_loop_.packs_keys();
    e.packs_values |= single ? decode_loop_.packs_values() : prefill_loop_.packs_values();
    for (Index block = 0; query_tiles() > 0 && block < partition.blocks.count(); ++block)
      for (Index i = 0; i < partition.blocks.size(block); ++i) explain(partition.blocks.at(block, i), e);
    if (single) e.single_queries += query_tiles();
  }

 private:
  /// Joins heads for row_invariant, and if so many share their keys that products and not memory take the time. Tiles
  /// reach 0.92 of a core's multiply-adds then, blocks of single queries 0.68: on a Xeon with AVX-512, groups of 32 to
  /// 128 heads over 16 to 8192 keys of 64 to 576 floats took 0.5 to 0.9 times as long, with AVX2 0.7 to 0.96 times.
  /// Groups of 16 took up to 1.15 times as long. Gathering the listed keys of select() takes time as well, and single
  /// queries prefetch them: over 2048 of 65536 keys of 64 floats, tiles took 0.75 times as long with 64 heads, over 576
  /// floats 0.55 times with 128 heads, but 1.5 times with 16 heads.
  ///
  /// On the matrix unit, groups that fill tiles of 32 took 0.3 to 1.0 times as long over 16 to 32768 keys of 64 to 576
  /// bf16, and groups of 16 0.8 to 1.4 times. (Other groups would need a merge() that knows in which kernels' width a
  /// tile was stored.) With vectors of bf16, groups of 32 to 128 took 0.9 to 1.2 times as long.
  Pass<T> joined(const Pass<T>& pass, const ChosenKernels<T>& kernels) {
    const Problem& problem = pass.tensors.problem;
    const Index group = problem.heads / std::max<Index>(problem.kv_heads, 1),
                least_group = pass.tensors.k.is_gathered() ? 64 : 32;
    const bool suits = !kernels.in_bf16() || (DecodeTiles<T>::suit_matrix_unit({pass, kernels}) &&
                                              group % kernels.family.by_vectors[0].queries == 0);
    const bool gains = group >= least_group && suits && !kernels.dots && !pass.resumes && !problem.sigmoid_bias;
    if (!(problem.row_invariant || gains) || !JoinedHeads<T>::can_join(pass)) return pass;
    joined_.emplace(pass);
    return joined_->pass();
  }

  /// Adds the tiles of keys that some queries visit.
  void explain(const QueryTile& queries, Explanation& e) const {
    Index full = 0, masked = 0;
    const auto count = [&](const Range&, Coverage coverage) {
      full += coverage == Coverage::all;
      masked += coverage == Coverage::some;
    };
    if (tiles_.are_single()) {
      decode_loop_.for_each_key_tile(queries, count);
      const bool direct = decode_loop_.is_direct(queries);
      e.direct_queries += direct;
      e.fetches_ahead |= !direct && full + masked > 0 && decode_loop_.fetches_ahead();
    } else {
      prefill_loop_.for_each_key_tile(queries, count);
    }
    e.full_tiles += full;
    e.masked_tiles += masked;
    // The first visited key may be inside a tile, so there may be one tile more than `all`.
    const Index all = ceil_div(problem_.kv_len, kKeyTile);
    e.skipped_tiles += std::max<Index>(all - full - masked, 0);
  }

  /// Whether the first sweep over the keys only computes the sums that weight mods need.
  bool visits_keys_twice() const { return problem_.changes_weights && !problem_.sigmoid_bias; }

  Index query_tiles() const { return problem_.batch * problem_.heads * tiles_.count(); }
  /// Bytes of the results of all splits of a block of joined heads.
  Index bytes_of_tiles(const QueryBlocks<T>& blocks) const { return blocks.most_tiles() * tile_splits_->bytes(); }

  /// Blocks are made smaller if there would be too few to keep all workers busy, although each block packs the keys
  /// again. One block is enough for one worker.
  QueryBlocks<T> blocks_for(Index workers) const {
    constexpr Index kBlocksPerWorker = 4;
    if (tiles_.are_single()) return {problem_, tiles_, DecodeLoop<T>::kMostQueries};
    const Index wanted = workers > 1 ? kBlocksPerWorker * workers : 1;
    const Index splits = tile_splits_ ? tile_splits_->count() : 1;
    return {problem_, tiles_, std::min(prefill_loop_.most_tiles(), query_tiles() * splits / wanted)};
  }

  /// Number of neighbouring blocks per task. Neighbours share keys, or their keys are adjacent in memory. Small tasks
  /// let the workers finish together.
  Index blocks_per_task(const QueryBlocks<T>& blocks, Index splits, Index workers) const {
    constexpr Index kMost = 8;
    const Index together = tiles_.are_single() ? decode_loop_.most_together() : 1;
    const Index tasks_per_worker = together > 1 ? 4 : 64;
    if (splits > 1 && together == 1) return 1;
    if (workers == 1 && tiles_.are_single() && together == 1) return kMost;  // a single worker never waits for others
    const Index wanted =
        std::clamp<Index>(blocks.count() * splits / (tasks_per_worker * std::max<Index>(workers, 1)), 1, kMost);
    const Index per_head = std::max<Index>(blocks.blocks_per_kv_head(), 1);
    return wanted < per_head ? wanted : wanted / per_head * per_head;  // heads with fewer blocks are not split
  }

  /// Whether reading this many bytes may be slow without prefetching, because no near cache holds them. 8 MiB is a
  /// core's share of the last-level cache on servers. With 1 MiB of L2 and 32 MiB of L3, omitting the prefetches made
  /// single queries take 0.85 times as long over 8 MiB that had been read before, and 1.05 times as long over 32 MiB.
  /// Queries that share keys multiply each vector several times, which hides the cost of prefetching. They also read
  /// four keys at a time, which hardware prefetchers do not predict. Adding the prefetches made four to thirty-two
  /// queries take 0.4 to 0.7 times as long over 8 MiB in L3, 0.93 times over 4 MiB, and 1.02 to 1.08 times over 2 MiB.
  /// Pages that split tiles begin too often for prefetching from L3 to help: over 4 to 8 MiB in pages of 16 tokens,
  /// four queries took 0.7 times as long without prefetching.
  bool are_far(double kv_bytes) const {
    constexpr double kMiB = 1024 * 1024;
    const KvRows<T>& keys = pass_.tensors.k;
    const bool pages_cut_tiles = keys.splits_tiles_of(kKeyTile) && !keys.is_gathered(),
               share_keys = problem_.heads > problem_.kv_heads || problem_.q_len > 1;
    return kv_bytes > (share_keys && !pages_cut_tiles ? 3 * kMiB : 8 * kMiB);
  }

  std::optional<JoinedHeads<T>> joined_;  ///< empty if the heads are not joined
  PassContext<T> pass_;
  const Problem& problem_;
  QueryTiles<T> tiles_;
  PrefillLoop<T> prefill_loop_;
  DecodeLoop<T> decode_loop_;
  std::optional<KvSplits<T>> tile_splits_;  ///< of the keys of joined heads
};

/// Memory on the stack for calls that need little: 16 queries and 16 keys of 64 column-major floats take 22 KiB. An
/// allocation takes as long as the checks of such a call.
struct SmallMemory {
  static constexpr Index kBytes = kMostOnStack;
  SmallMemory() {}  // NOLINT: left uninitialised
  alignas(kAlignment) std::byte bytes[kBytes];
};

/// Independent passes, split into tasks for an executor: the pass of a call, or those of several sequences. Neither the
/// splits of a pass's keys nor its result depends on the other passes.
template <class T>
class Plan {
 public:
  Plan(std::span<const Pass<T>> passes, const Options& options)
      : passes_(static_cast<Index>(passes.size())), cuts_(static_cast<Index>(passes.size())) {
    double flops = 0, kv_bytes = 0;
    for (const Pass<T>& pass : passes) kv_bytes += pass.whole.kv_bytes();
    for (const Pass<T>& pass : passes) flops += passes_.add(pass, kernels_for(pass.whole, options), kv_bytes).flops();
    workers_.emplace(Work{flops, kv_bytes}, options.executor);
    // A pass is split for twice as many workers as its share of the work keeps busy, not for all workers: larger tasks
    // read memory in longer runs.
    const double workers = workers_->count();
    for (const PassTasks<T>& pass : passes_.all()) {
      double wanted = workers;
      if (passes.size() > 1 && flops > 0) wanted = std::min(std::ceil(2 * pass.flops() / flops * workers), workers);
      cuts_.add(pass, static_cast<Index>(std::max(wanted, 1.0)));
    }
    // The longest tasks come first, so that no worker finishes long after the others; see run().
    if (passes.size() > 1)
      std::sort(cuts().begin(), cuts().end(), [](const Cut& a, const Cut& b) {
        const double of_a = a.flops_of_task(), of_b = b.flops_of_task();
        return of_a != of_b ? of_a > of_b : a.pass < b.pass;
      });
    for (Cut& cut : cuts()) {
      cut.first_task = tasks_;
      cut.first_merge = merges_;
      cut.partials = partials_;
      tasks_ += cut.partition.tasks;
      merges_ += cut.partition.merges();
      partials_ += cut.partition.partials;
      bytes_ = std::max(bytes_, cut.partition.bytes);
    }
  }

  /// Bytes of workspace that run() needs.
  Index workspace_bytes() const { return tasks_ == 0 ? 0 : Workspace::needed(bytes_, workers_->count(), partials_); }

  void run(std::span<std::byte> given) const {
    if (tasks_ == 0) return;
    const int workers = workers_->count();
    SmallMemory own;
    if (given.data() == nullptr && Workspace::needed(bytes_, workers, partials_) <= own.kBytes) given = own.bytes;
    const Workspace workspace(bytes_, workers, given, partials_);
    // Workers begin with shares of neighbouring tasks. If tasks differ much, one share would have all the long ones, so
    // workers then take tasks in order instead.
    const bool in_order = cuts().size() > 1 && cuts().front().flops_of_task() > 2 * cuts().back().flops_of_task();
    std::atomic<Index> next{0};
    workers_->run(tasks_, [&](Index number, int worker) {
      const Index task = in_order ? next++ : number;
      const Cut& cut = of(task, &Cut::first_task);
      cut.pass->run(cut.partition, task - cut.first_task, workspace.of(worker), workspace.shared() + cut.partials);
    });
    if (merges_ == 0) return;
    workers_->run(merges_, Work{0, static_cast<double>(partials_)}.microseconds(), [&](Index merge, int) {
      const Cut& cut = of(merge, &Cut::first_merge);
      cut.pass->merge(cut.partition, merge - cut.first_merge, workspace.shared() + cut.partials);
    });
  }

  /// Adds these passes to an explanation that may already cover others.
  void explain(Explanation& e) const {
    for (const Cut& cut : cuts()) cut.pass->explain(cut.partition, e);
    e.passes += !cuts().empty();
    e.tasks += tasks_;
    e.threads = std::max(e.threads, static_cast<int>(std::min<Index>(workers_->count(), tasks_)));
    e.microseconds += workers_->microseconds();
  }

 private:
  /// A pass split into tasks, and the indices of its first task and first merge among those of all passes.
  struct Cut {
    Cut(const PassTasks<T>& p, Index workers) : pass(&p), partition(p.partition(workers)) {}

    double flops_of_task() const { return pass->flops() / static_cast<double>(std::max<Index>(partition.tasks, 1)); }

    const PassTasks<T>* pass;
    typename PassTasks<T>::Partition partition;
    Index first_task = 0, first_merge = 0, partials = 0;
  };

  std::span<Cut> cuts() { return cuts_.all(); }
  std::span<const Cut> cuts() const { return cuts_.all(); }

  /// The pass that a task or a merge belongs to: the last one whose first number is at most `number`. A pass without
  /// tasks or merges has the same first number as the next pass.
  const Cut& of(Index number, Index Cut::*first) const {
    const auto begins_after = [&](Index n, const Cut& cut) { return n < cut.*first; };
    return *std::prev(std::upper_bound(cuts().begin(), cuts().end(), number, begins_after));
  }

  FixedVector<PassTasks<T>> passes_;
  FixedVector<Cut> cuts_;
  std::optional<Workers> workers_;
  Index tasks_ = 0, merges_ = 0, partials_ = 0, bytes_ = 0;
};

// The following are compiled once per scalar type, regardless of the types of the mods.

/// Runs independent passes.
template <class T, class = include_attn_instantiate_h_in_one_unit>
void run_passes(std::span<const Pass<T>> passes, const Options& options, std::span<std::byte> workspace) {
  Plan<T>(passes, options).run(workspace);
}
ATTN_COMPILED_ONCE(run_passes)

/// Bytes of workspace that run_passes() needs.
template <class T, class = include_attn_instantiate_h_in_one_unit>
Index bytes_of_passes(std::span<const Pass<T>> passes, const Options& options) {
  return Plan<T>(passes, options).workspace_bytes();
}
ATTN_COMPILED_ONCE(bytes_of_passes)

/// Adds the passes of run_passes() to an explanation that may already cover others.
template <class T, class = include_attn_instantiate_h_in_one_unit>
void explain_passes(std::span<const Pass<T>> passes, const Options& options, Explanation& e) {
  const Plan<T> plan(passes, options);
  plan.explain(e);
  e.workspace_bytes = std::max(e.workspace_bytes, plan.workspace_bytes());
  e.ignored_isa = ignored_isa(options);
}
ATTN_COMPILED_ONCE(explain_passes)

/// Bytes of PassResults in a workspace, including those that alignment may take.
template <class T, class Mods>
Index bytes_between_passes([[maybe_unused]] const CallTensors<T>& tensors, [[maybe_unused]] const Mods& mods) {
  if constexpr (has_near_part<Mods>())
    if (passes_resume(mods, tensors.problem)) return PassResults<T>(tensors).bytes() + kAlignment - 1;
  return 0;
}

/// Bytes of workspace that flash() needs.
template <class T, class Mods>
Index flash_workspace_bytes(const CallTensors<T>& tensors, const Mods& mods, const Options& options) {
  Index most = 0;
  for_each_pass(tensors, mods, options.accumulate, [&](const Pass<T>& pass) {
    most = std::max(most, bytes_of_passes<T>({&pass, 1}, options));
  });
  return most + bytes_between_passes(tensors, mods);
}

/// Explains what flash() would do.
template <class T, class Mods>
Explanation flash_explanation(const CallTensors<T>& tensors, const Mods& mods, const Options& options) {
  Explanation e;
  e.ignored_isa = ignored_isa(options);
  for_each_pass(tensors, mods, options.accumulate, [&](const Pass<T>& pass) {
    explain_passes<T>({&pass, 1}, options, e);
  });
  e.workspace_bytes += bytes_between_passes(tensors, mods);
  return e;
}

/// The flash path. A call proceeds as follows; single queries take DecodeLoop and DecodeState instead of PrefillLoop
/// and PrefillState.
///
///     for each Pass of the call                            for_each_pass(); most calls have one
///       split it into tasks                                Plan, PassTasks::partition()
///       for each task, on any worker                       Plan::run(), PassTasks::run()
///         for each block of tiles of queries               PrefillLoop::run()
///           for each chunk of tiles of keys                PrefillLoop::sweep()
///             for each tile of queries, for each tile of keys it visits
///               score -> mods -> softmax -> value          PrefillState::add_keys()
///           out / sum, lse                                 PrefillState::store_result()
template <class T, class Mods>
void flash(const CallTensors<T>& tensors, const Mods& mods, const Options& options) {
  const auto run = [&](const CallTensors<T>& of_passes, std::span<std::byte> workspace) {
    for_each_pass(of_passes, mods, options.accumulate, [&](const Pass<T>& pass) {
      run_passes<T>({&pass, 1}, options, workspace);
    });
  };
  if constexpr (has_near_part<Mods>()) {
    if (passes_resume(mods, tensors.problem)) {
      std::span<std::byte> workspace = options.workspace;
      PassResults<T> results(tensors);
      const CallTensors<T> of_passes =
          results.begin(workspace, workspace.data() ? flash_workspace_bytes(tensors, mods, options) : 0);
      const KernelFamily<T>& family = kernels_for(tensors, options).full_precision;
      if (options.accumulate) results.load(family);
      run(of_passes, workspace);
      return results.end(family);
    }
  }
  run(tensors, options.workspace);
}

}  // namespace attn::detail::inline ATTN_BUILT_FOR
