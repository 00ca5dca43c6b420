// Random appends, with and without positions and windows, and removals of rows, each compared with a plain model.
#include <algorithm>
#include <iostream>
#include <map>
#include <set>

#include "support/allocations.h"
#include "support/ragged_call.h"
#include "support/refused.h"
#include "support/sample.h"

namespace attn::test {
namespace {

constexpr int kSeeds = 20, kOperations = 1000;  // for each element type and kind of cache

/// A token with its unrotated key.
struct ModelRow {
  Tokens token;
  Index position;
  Index rotations = 0;         // of its key after the append
  bool moved_as_sink = false;  // whether the last one moved a sink: such rotations all start from the same key
};
using ModelRows = std::vector<ModelRow>;

/// The rows that remain if only those marked in `kept` are retained. Gaps between positions close, unless positions are
/// kept: the row after a gap goes to the position of the first row in the gap.
ModelRows remaining(const ModelRows& rows, const std::vector<bool>& kept, bool keep_positions) {
  ModelRows left;
  Index shift = 0, gap = -1;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (!kept[i]) {
      if (gap < 0) gap = static_cast<Index>(i);
      continue;
    }
    if (gap >= 0) shift += rows[i].position - rows[static_cast<std::size_t>(gap)].position;
    gap = -1;
    left.push_back(rows[i]);
    left.back().moved_as_sink = false;
    if (keep_positions || shift == 0) continue;
    left.back().position -= shift;
    ++left.back().rotations;
  }
  return left;
}

/// KvCaches of two layers that get the same tokens, with the functions of a PagedKvCache. Sometimes a step is abandoned
/// first.
template <class S>
class TwoLayers {
 public:
  explicit TwoLayers(const KvCachesConfig& config) : caches_(config) {}

  const KvCachesConfig& config() const { return caches_.config(); }
  Index add() { return caches_.add(); }
  Index fork(Index sequence, Index length) { return caches_.fork(sequence, length); }
  void release(Index sequence) { caches_.release(sequence); }
  void truncate(Index sequence, Index length) { caches_.truncate(sequence, length); }
  void drop(Index sequence, Index begin, Index end, const DropOptions& options) {
    caches_.drop(sequence, begin, end, options);
  }
  void retain(Index sequence, const Indices& rows, const DropOptions& options) {
    caches_.retain(sequence, rows, options);
  }
  void accept(Index sequence, const Indices& path) { caches_.accept(sequence, path); }
  Index length(Index sequence) const { return caches_.length(sequence); }
  Index position(Index sequence, Index row) const { return caches_.position(sequence, row); }
  Index offset(Index sequence) const { return caches_.offset(sequence); }
  Index pages_needed(Index sequence, Index tokens) const { return caches_.pages_needed(sequence, tokens); }
  auto table(Index sequence) const { return caches_.table(sequence); }
  Index pages() const { return caches_.pages(); }
  Index free_pages() const { return caches_.free_pages(); }
  auto view(const std::vector<Index>& sequences) const { return caches_.view(1, sequences); }

  template <class K, class V>
  void append(Index sequence, const K& k, const V& v, const AppendOptions& options) {
    append(std::vector<Index>{sequence}, k, v, options);
  }
  template <class K, class V>
  void append(const std::vector<Index>& sequences, const K& k, const V& v, const AppendOptions& options) {
    const Index count = attn::view(k).dim(2);
    if (++appends_ % 5 == 0) {
      const auto abandoned = caches_.step(sequences, count + 1);
    }
    append_to_layers(caches_.step(sequences, count, appends_ % 2 ? options : AppendOptions()),
                     [&](auto layer) { layer.append(k, v, options); });
  }
  template <class K, class V>
  void append(const std::vector<Index>& sequences, const K& k, const V& v, const std::vector<Index>& lens,
              const AppendOptions& options) {
    append_to_layers(caches_.step(sequences, lens, options), [&](auto layer) { layer.append(k, v, lens, options); });
  }

  friend Tokens tokens_of(const TwoLayers& cache, Index sequence) {
    return tokens_in_pages<S>(PagesOfLayer<S>{cache.caches_, sequence % 2}, sequence);
  }

 private:
  template <class Append>
  static void append_to_layers(KvStep<S> step, const Append& append) {
    append(step.layer(1));
    append(step.layer(0));
    step.commit();
  }

  KvCaches<S> caches_;
  Index appends_ = 0;
};

template <class S, int kKind>
struct CacheOf {
  using Cache = KvCache<S>;
  static KvCache<S> make(const PagedKvCacheConfig& c) {
    return KvCache<S>(
        {.batch = 4, .kv_heads = c.kv_heads, .capacity = 3, .head_dim = c.head_dim, .v_dim = c.v_dim, .rope = c.rope});
  }
};
template <class S>
struct CacheOf<S, 1> {
  using Cache = PagedKvCache<S>;
  static PagedKvCache<S> make(const PagedKvCacheConfig& c) { return PagedKvCache<S>(c); }
};
template <class S>
struct CacheOf<S, 2> {
  using Cache = TwoLayers<S>;
  static TwoLayers<S> make(const PagedKvCacheConfig& c) {
    return TwoLayers<S>({.layers = 2,
                         .kv_heads = c.kv_heads,
                         .head_dim = c.head_dim,
                         .v_dim = c.v_dim,
                         .pages = c.pages,
                         .page_size = c.page_size,
                         .rope = c.rope,
                         .window = c.window,
                         .sinks = c.sinks});
  }
};

/// kKind: 0 for a KvCache, 1 for a PagedKvCache, 2 for KvCaches.
template <class S, int kKind>
class Trial {
  static constexpr bool kPaged = kKind > 0;

 public:
  explicit Trial(std::uint64_t seed)
      : random_(seed),
        sizes_{random_.integer(1, 2), 2 * random_.integer(2, 21), random_.integer(1, 9)},
        config_(drawn_config()),
        cache_(CacheOf<S, kKind>::make(config_)) {
    for (Index s = 0; s < 4; ++s) offset_[kPaged ? add() : s] = 0;
    for (const auto& [id, offset] : offset_) model_[id];
  }

  void run() {
    for (int i = 0; i < kOperations && !::testing::Test::HasFailure(); ++i) {
      SCOPED_TRACE("operation " + std::to_string(i));
      operate();
      expect_same();
      if (random_.chance(0.15)) attend();
    }
    if constexpr (kPaged) {
      for (const Index id : ids()) cache_.release(id);
      EXPECT_EQ(cache_.free_pages(), cache_.pages());
    }
  }

  Index refusals = 0, failed_allocations = 0, slides = 0;

 private:
  PagedKvCacheConfig drawn_config() {
    PagedKvCacheConfig c{.kv_heads = sizes_.kv_heads, .head_dim = sizes_.head_dim, .v_dim = sizes_.v_dim};
    c.page_size = random_.pick(std::vector<Index>{1, 3, 4, 16, 64});
    c.pages = 110 / c.page_size + 4;
    if (kPaged && random_.chance(0.6)) c.window = random_.integer(1, 20);
    if (c.window > 0 && random_.chance(0.5)) c.sinks = random_.integer(1, 5);
    if (!kPaged || random_.chance(0.8)) c.rope = drawn_rope();
    return c;
  }
  Rope drawn_rope() {
    RopeConfig c{.head_dim = sizes_.head_dim};
    c.rotary_dim = random_.chance(0.5) ? 0 : 2 * random_.integer(1, sizes_.head_dim / 2);
    c.pairs = random_.chance(0.5) ? RopePairs::halves : RopePairs::interleaved;
    c.base = 100;
    if (random_.chance(0.3)) c.scaling = RopeScaling::yarn, c.factor = 4, c.trained_length = 64;
    return Rope(c);
  }
  Index add() {
    if constexpr (kPaged) return cache_.add();
    return 0;
  }

  Index free_pages() const {
    if constexpr (kPaged) return cache_.free_pages();
    return 0;
  }
  Index pages_needed(Index id, Index tokens) const {
    if constexpr (kPaged) return cache_.pages_needed(id, tokens);
    return 0;
  }

  std::vector<Index> ids() const {
    std::vector<Index> all;
    for (const auto& [id, rows] : model_) all.push_back(id);
    return all;
  }
  Index length(Index id) const { return static_cast<Index>(model_.at(id).size()); }
  /// The position of a row, or of one that would follow.
  Index position(Index id, Index row) const {
    const ModelRows& rows = model_.at(id);
    if (rows.empty()) return row;
    if (row < 0) return rows[0].position + row;
    const Index last = length(id) - 1;
    return rows[static_cast<std::size_t>(std::min(row, last))].position + std::max<Index>(row - last, 0);
  }

  /// The tokens that truncate() and fork() must keep.
  Index least(Index id) const { return offset_.at(id) > 0 ? config_.window : 0; }
  /// Drops tokens after the sinks. The others keep their positions, and sinks move up to them.
  void slide(Index id) {
    const Index left = tokens_leaving(config_, length(id)),
                turn = position(id, config_.sinks + left) - position(id, config_.sinks);
    if (left == 0) return;
    ModelRows& rows = model_[id];
    rows.erase(rows.begin() + config_.sinks, rows.begin() + config_.sinks + left);
    for (Index i = 0; i < config_.sinks; ++i) {
      ModelRow& sink = rows[static_cast<std::size_t>(i)];
      sink.position += turn;
      if (!std::exchange(sink.moved_as_sink, true)) ++sink.rotations;
    }
    if (config_.sinks == 0) offset_[id] += left;
    ++slides;
  }
  /// A window may have slid before a call failed.
  void slide_as_the_cache_did(const std::vector<Index>& to) {
    for (const Index id : to)
      if (cache_.length(id) != length(id)) slide(id);
  }

  /// Makes a call that may run out of pages or of memory, and must then change nothing. Returns whether it succeeded.
  template <class Call>
  bool make(const Call& call) {
    try {
      if (memory_can_run_out() && random_.chance(0.1)) {
        const bool failed = runs_out(random_.integer(0, 6), call);
        failed_allocations += failed;
        return !failed;
      }
      call();
    } catch (const OutOfPages& e) {
      EXPECT_GT(e.needed(), e.free());
      ++refusals;
      return false;
    }
    return true;
  }

  void operate() {
    const std::vector<Index> known = ids();
    const Index id = random_.pick(known), kind = random_.integer(0, 99), n = length(id);
    if (kind < 40 || n == 0) {
      append();
    } else if (kind < 60) {
      drop(id, n);
    } else if (kind < 70) {
      retain(id, n);
    } else if (kind < 80) {
      draft(id);
    } else if (kind < 88) {
      const Index left = random_.integer(std::max(n / 2, least(id)), n);
      cache_.truncate(id, left);
      model_[id].resize(static_cast<std::size_t>(left), model_[id][0]);
    } else if (kind < 96) {
      rearrange(id);
    } else {
      auto copy = cache_;
      cache_ = std::move(copy);
    }
  }

  void rearrange(Index id) {
    if constexpr (kPaged) {
      const std::vector<Index> known = ids();
      if (known.size() < 7) {
        const Index left = random_.integer(least(id), length(id)), fork = cache_.fork(id, left);
        offset_[fork] = offset_[id];
        model_[fork] = model_[id];
        model_[fork].resize(static_cast<std::size_t>(left), {Tokens(sizes_), 0});
      } else {
        cache_.release(id);
        model_.erase(id);
        offset_.erase(id);
      }
    } else {
      std::vector<Index> from;
      for (Index s = 0; s < 4; ++s) from.push_back(random_.integer(0, 3));
      if (!make([&] { cache_.reorder(from); })) return;
      const auto old = model_;
      for (Index s = 0; s < 4; ++s) model_[s] = old.at(from[static_cast<std::size_t>(s)]);
    }
  }

  /// Appends to one sequence, to several the same number of tokens, or to several any numbers of them.
  void append() {
    const std::vector<Index> known = ids();
    const Index overload = random_.integer(0, 2);
    std::vector<Index> to = kPaged ? std::vector<Index>{} : known;
    if (overload == 0) to = {random_.pick(known)};
    if (to.empty())
      for (Index id : known)
        if (random_.chance(0.5)) to.push_back(id);
    if (to.empty()) return;
    const Index same = drawn_count();
    std::vector<Tokens> more;
    std::vector<Index> lens, positions;
    const bool said = config_.rope && random_.chance(0.4), said_once = overload == 1 && random_.chance(0.5);
    for (Index id : to) {
      lens.push_back(overload == 2 ? drawn_count() : same);
      more.push_back(Tokens::exact<S>(sizes_, lens.back(), random_));
      Index next = position(id, length(id));
      for (Index i = 0; said && i < lens.back(); ++i) {
        if (random_.chance(0.3)) next += random_.integer(-4, 9);
        positions.push_back(next++);
      }
    }
    if (said && said_once) positions.resize(static_cast<std::size_t>(same));
    const AppendOptions options{.positions = positions};
    const Index free = free_pages(), needed = overload == 0 ? pages_needed(to[0], lens[0]) : 0, refused = refusals;
    const bool done = make([&] {
      if (overload == 0) {
        Appended<Given<S>> given(more);
        cache_.append(to[0], given.k(), given.v(), options);
      } else if (overload == 1) {
        Appended<Given<S>> given(more);
        if constexpr (kPaged)
          cache_.append(to, given.k(), given.v(), options);
        else
          cache_.append(given.k(), given.v(), options);
      } else {
        Appended<Given<S>> given(concatenated(more));
        if constexpr (kPaged)
          cache_.append(to, given.k(), given.v(), lens, options);
        else
          cache_.append(given.k(), given.v(), lens, options);
      }
    });
    if (overload == 0 && done) {
      EXPECT_EQ(std::max<Index>(free - free_pages(), 0), needed);
    } else if (overload == 0 && kKind == 1 && refusals > refused) {
      EXPECT_GT(needed, free);
    }
    if (!done) return slide_as_the_cache_did(to);
    std::size_t next = 0;
    for (std::size_t s = 0; s < to.size(); ++s) {
      slide(to[s]);
      if (said && said_once) next = 0;
      for (Index i = 0; i < lens[s]; ++i) {
        const Index follows = position(to[s], length(to[s]));
        model_[to[s]].push_back({more[s].part(i, i + 1), positions.empty() ? follows : positions[next++]});
      }
    }
  }
  Index drawn_count() { return random_.chance(0.1) ? random_.integer(0, 30) : random_.integer(0, 3); }

  void drop(Index id, Index n) {
    Index begin = random_.chance(0.4) ? 0 : random_.integer(0, n), end = random_.integer(begin, n);
    if (random_.chance(0.4)) begin -= begin % config_.page_size, end = std::max(begin, end - end % config_.page_size);
    const bool keeps = random_.chance(0.3);
    const auto call = [&] { cache_.drop(id, begin, end, {.keep_positions = keeps}); };
    if (offset_.at(id) > 0) return expect_refused("drop", {"left its window"}, call);
    if (!make(call)) return;
    std::vector<bool> kept(static_cast<std::size_t>(n), true);
    std::fill(kept.begin() + begin, kept.begin() + end, false);
    model_[id] = remaining(model_[id], kept, keeps);
  }

  void retain(Index id, Index n) {
    std::vector<Index> rows;
    std::vector<bool> kept;
    const double share = random_.uniform(0.3, 1);
    for (Index i = 0; i < n; ++i) {
      kept.push_back(random_.chance(share));
      if (kept.back()) rows.push_back(i);
    }
    const bool keeps = random_.chance(0.3);
    const auto call = [&] { cache_.retain(id, rows, {.keep_positions = keeps}); };
    if (offset_.at(id) > 0) return expect_refused("retain", {"left its window"}, call);
    if (make(call)) model_[id] = remaining(model_[id], kept, keeps);
  }

  /// Appends a tree, and accepts one of its paths.
  void draft(Index id) {
    std::vector<Index> parents, depths;
    for (Index i = random_.integer(1, 9); i > 0; --i) {
      const Index node = static_cast<Index>(parents.size());
      parents.push_back(random_.integer(std::max<Index>(-1, node - 4), node - 1));
      depths.push_back(parents.back() < 0 ? 0 : depths[static_cast<std::size_t>(parents.back())] + 1);
    }
    const Index nodes = static_cast<Index>(parents.size()), first = position(id, length(id));
    const Tokens drafts = Tokens::exact<S>(sizes_, nodes, random_);
    AppendOptions options;
    if (config_.rope) options.positions = tree_positions(parents, first);
    if (!make([&] {
          Appended<Given<S>> given(drafts);
          cache_.append(id, given.k(), given.v(), options);
        }))
      return slide_as_the_cache_did({id});
    slide(id);
    const Index context = length(id);
    for (Index i = 0; i < nodes; ++i)
      model_[id].push_back({drafts.part(i, i + 1), first + depths[static_cast<std::size_t>(i)]});
    std::vector<Index> path;
    for (Index node = random_.integer(-1, nodes - 1); node >= 0; node = parents[static_cast<std::size_t>(node)])
      path.insert(path.begin(), node);
    if (!make([&] { cache_.accept(id, path); })) return;
    std::vector<bool> kept(static_cast<std::size_t>(context + nodes), false);
    std::fill(kept.begin(), kept.begin() + context, true);
    for (Index node : path) kept[static_cast<std::size_t>(context + node)] = true;
    model_[id] = remaining(model_[id], kept, true);
  }

  Tokens stored(Index id) const { return tokens_of(cache_, id); }
  /// The keys of a row, rotated.
  std::vector<double> keys_of(const ModelRow& row) const {
    std::vector<double> keys = row.token.keys();
    if (config_.rope) config_.rope->rotate(bhsd(keys.data(), 1, sizes_.kv_heads, 1, sizes_.head_dim), row.position);
    return keys;
  }
  double factor() const { return config_.rope ? config_.rope->attention_factor() : 1; }

  /// Compares lengths, positions, keys and values, and the use of pages.
  void expect_same() const {
    std::set<Index> used;
    for (const auto& [id, rows] : model_) {
      SCOPED_TRACE("sequence " + std::to_string(id));
      ASSERT_EQ(cache_.length(id), static_cast<Index>(rows.size()));
      if constexpr (kPaged) {
        ASSERT_EQ(cache_.offset(id), offset_.at(id));
      }
      for (Index row = 0; config_.rope && row < cache_.length(id) + 2; ++row)
        ASSERT_EQ(cache_.position(id, row), position(id, row)) << "row " << row;
      const Tokens kept = stored(id);
      for (Index row = 0; row < cache_.length(id); ++row) expect_row(kept, row, rows[static_cast<std::size_t>(row)]);
      if constexpr (kPaged) {
        const auto table = cache_.table(id);
        ASSERT_EQ(static_cast<Index>(table.size()), (cache_.length(id) + config_.page_size - 1) / config_.page_size);
        ASSERT_EQ(std::set<Index>(table.begin(), table.end()).size(), table.size());
        used.insert(table.begin(), table.end());
      }
    }
    if constexpr (kPaged) {
      if (config_.sinks > 0 && config_.rope) return;  // other pages have the keys of sinks before they were rotated
      ASSERT_EQ(cache_.free_pages() + static_cast<Index>(used.size()), cache_.pages());
    }
  }

  void expect_row(const Tokens& kept, Index row, const ModelRow& wanted) const {
    const std::vector<double> key = keys_of(wanted);
    // The error of an element each time that it is rotated, relative to the largest: of two products and of rounding to
    // S, which may be sqrt(2) times as large then. A further rotation may move all of a pair's error to one of the two.
    const double step = kElements<S> > 1                 ? 0.19
                        : std::is_same_v<S, Float8E4M3>  ? 0.09
                        : std::is_same_v<S, std::int8_t> ? 1.0 / 127
                        : std::is_same_v<S, Eigen::half> ? 0x1p-10
                                                         : 8 * static_cast<double>(epsilon<float>());
    for (Index h = 0; h < sizes_.kv_heads; ++h) {
      double largest = 0;
      for (Index d = 0; d < sizes_.head_dim; ++d) largest = std::max(largest, std::abs(wanted.token.k(0, h, d)));
      const double error = static_cast<double>(1 + wanted.rotations) * step * largest * factor();
      for (Index d = 0; d < sizes_.head_dim; ++d)
        ASSERT_NEAR(kept.k(row, h, d), key[static_cast<std::size_t>(h * sizes_.head_dim + d)], error)
            << "row " << row << ", head " << h << ", feature " << d;
      for (Index d = 0; d < sizes_.v_dim; ++d) ASSERT_EQ(kept.v(row, h, d), wanted.token.v(0, h, d)) << "row " << row;
    }
  }

  /// Attention over all sequences, compared with the oracle over the stored keys, with queries rotated by the model's
  /// positions.
  void attend() {
    std::vector<Tokens> kept;
    std::vector<Index> q_lens;
    const std::vector<Index> all = ids();
    for (Index id : all) {
      kept.push_back(stored(id));
      q_lens.push_back(random_.integer(0, 5));
    }
    const RaggedCall call(2 * sizes_.kv_heads, kept, q_lens, random_);
    Numbers numbers;
    if (random_.chance(0.3)) numbers.q_offset = random_.integer(-2, 60);
    RaggedCall of_turned = call;
    for (std::size_t s = 0; s < all.size(); ++s) {
      std::vector<Index> positions;
      const Index first = numbers.q_offset.value_or(length(all[s]) - q_lens[s]);
      for (Index i = 0; i < q_lens[s]; ++i) positions.push_back(position(all[s], first + i));
      if (q_lens[s] > 0 && config_.rope)
        config_.rope->rotate(bhsd(of_turned.q[s].data(), 1, call.heads, q_lens[s], sizes_.head_dim), positions);
    }
    RaggedMemory<float> memory(call);
    const auto q = memory.q.cview();
    std::vector<Index> firsts;
    if (numbers.q_offset)
      for (Index id : all) firsts.push_back(*numbers.q_offset + offset_.at(id));
    const Options options{.q_offsets = firsts, .executor = serial()};
    const auto view = [&] {
      if constexpr (kPaged)
        return cache_.view(all);
      else
        return cache_.view();
    }();
    attention_into(memory.out.view(), memory.lse3(), ragged(q, q_lens), view, causal(), options);
    Meaning meaning;
    meaning.keep = [](const Pair& p) { return p.kv <= p.q; };
    Expected<float>(of_turned, meaning, numbers).expect(memory);
  }

  Random random_;
  TokenSizes sizes_;
  PagedKvCacheConfig config_;
  typename CacheOf<S, kKind>::Cache cache_;
  std::map<Index, ModelRows> model_;
  std::map<Index, Index> offset_;  // for each sequence, how many of its tokens were dropped
};

template <class S, int kKind>
void run_trials() {
  Sample sample;
  std::cout << "seeds 1 to " << kSeeds << ", " << kOperations << " operations each" << sample.text() << "\n";
  Index refusals = 0, failed_allocations = 0, slides = 0, trials = 0;
  for (std::uint64_t seed = 1; seed <= kSeeds && !::testing::Test::HasFailure(); ++seed) {
    if (!sample.takes_next()) continue;
    SCOPED_TRACE("seed " + std::to_string(seed));
    Trial<S, kKind> trial(seed);
    trial.run();
    refusals += trial.refusals;
    failed_allocations += trial.failed_allocations;
    slides += trial.slides;
    ++trials;
  }
  if (trials < kSeeds) return;
  EXPECT_GT(failed_allocations, memory_can_run_out() ? 100 : -1);
  if (kKind > 0) {
    EXPECT_GT(refusals, 100);
    EXPECT_GT(slides, 1000);
  }
  EXPECT_LT(refusals, trials * kOperations / 4);
}

TEST(KvRowOperations, Float) { run_trials<float, 0>(); }
TEST(KvRowOperations, Half) { run_trials<Eigen::half, 0>(); }
TEST(KvRowOperations, EightBits) { run_trials<std::int8_t, 0>(); }
TEST(KvRowOperations, PagesOfFloat) { run_trials<float, 1>(); }
TEST(KvRowOperations, PagesOfHalf) { run_trials<Eigen::half, 1>(); }
TEST(KvRowOperations, PagesOfEightBits) { run_trials<std::int8_t, 1>(); }
TEST(KvRowOperations, LayersOfFloat) { run_trials<float, 2>(); }
TEST(KvRowOperations, LayersOfEightBits) { run_trials<std::int8_t, 2>(); }
TEST(KvRowOperations, EightBitFloats) { run_trials<Float8E4M3, 0>(); }
TEST(KvRowOperations, FourBits) { run_trials<Int4, 0>(); }
TEST(KvRowOperations, PagesOfFourBits) { run_trials<Int4, 1>(); }

}  // namespace
}  // namespace attn::test
