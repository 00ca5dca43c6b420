// Random operations on KvCaches, with and without a window, each compared with a plain model and with a PagedKvCache
// for each layer.
#include <algorithm>
#include <iostream>
#include <map>
#include <set>

#include "support/kv_caches.h"
#include "support/refused.h"
#include "support/sample.h"

namespace attn::test {
namespace {

KvCachesConfig drawn_config(Random& random) {
  KvCachesConfig c;
  c.layers = random.integer(1, 4);
  c.page_size = random.pick(std::vector<Index>{1, 2, 3, 4, 5, 8, 16, 64});
  c.pages = c.page_size > 8 ? random.integer(3, 6) : random.integer(12, 24);
  c.kv_heads = random.integer(1, 2);
  c.head_dim = 2 * random.integer(2, 4);
  c.v_dim = random.integer(4, 8);
  if (random.chance(0.5)) c.window = random.integer(1, 6);
  if (c.window > 0 && random.chance(0.5)) c.sinks = random.integer(1, 2);
  std::vector<std::optional<Rope>> ropes{Rope({.head_dim = c.head_dim}), Rope({.head_dim = c.head_dim, .base = 100})};
  if (c.sinks == 0) ropes.push_back(std::nullopt);  // with sinks, a layer's rope may decide how many pages are used
  const Index kind = random.integer(0, 3);
  if (kind == 1) c.rope = ropes[0];
  if (kind == 2)
    for (Index l = 0; l < c.layers; ++l) c.ropes.push_back(random.pick(ropes));
  return c;
}

/// Random operations on KvCaches and, for each layer, on a PagedKvCache and on lists of tokens.
template <class T>
class Trial {
 public:
  explicit Trial(std::uint64_t seed) : random_(seed), caches_(drawn_config(random_)) {
    const KvCachesConfig& c = caches_.config();
    for (Index l = 0; l < c.layers; ++l)
      apart_.emplace_back(PagedKvCacheConfig{.pages = c.pages,
                                             .page_size = c.page_size,
                                             .kv_heads = c.kv_heads,
                                             .head_dim = c.head_dim,
                                             .v_dim = c.v_dim,
                                             .rope = c.ropes.empty() ? c.rope : c.ropes[at(l)],
                                             .window = c.window,
                                             .sinks = c.sinks});
  }

  void run(int operations) {
    for (int i = 0; i < operations && !::testing::Test::HasFailure(); ++i) {
      SCOPED_TRACE("operation " + std::to_string(i));
      operate();
      expect_sound();
      if (i % 20 == 0) expect_contents();
      if (i % 100 == 50) replace_by_copy();
    }
    expect_contents();
    for (const Index id : ids()) caches_.release(id);
    EXPECT_EQ(caches_.free_pages(), caches_.pages());
  }

  Index committed = 0, abandoned = 0, out_of_pages = 0, slides = 0;

 private:
  using Ids = std::vector<Index>;

  void operate() {
    const Ids known = ids();
    const Index kind = random_.integer(0, 99);
    if (known.empty() || (kind < 8 && known.size() < 10)) {
      const Index id = caches_.add();
      for (auto& cache : apart_) ASSERT_EQ(cache.add(), id);
      ASSERT_TRUE(model_.emplace(id, std::vector<Tokens>(apart_.size(), Tokens(sizes()))).second);
    } else if (kind < 18) {
      if (known.size() < 10) fork(random_.pick(known));
    } else if (kind < 24) {
      const Index id = random_.pick(known);
      caches_.release(id);
      for (auto& cache : apart_) cache.release(id);
      model_.erase(id);
      EXPECT_FALSE(caches_.has(id));
    } else if (kind < 34) {
      const Index id = random_.pick(known), length = drawn_length(id);
      caches_.truncate(id, length);
      for (auto& cache : apart_) cache.truncate(id, length);
      for (Tokens& tokens : model_.at(id)) tokens.truncate(length);
    } else {
      step(some_of(known, kind < 60 ? 1 : 4));
    }
  }

  TokenSizes sizes() const {
    const KvCachesConfig& c = caches_.config();
    return {c.kv_heads, c.head_dim, c.v_dim};
  }
  Ids ids() const {
    Ids all;
    for (const auto& [id, tokens] : model_) all.push_back(id);
    return all;
  }
  template <class X>
  void shuffle(std::vector<X>& of) {
    for (std::size_t i = of.size(); i > 1; --i)
      std::swap(of[i - 1], of[at(random_.integer(0, static_cast<Index>(i) - 1))]);
  }
  Ids some_of(Ids from, Index most) {
    shuffle(from);
    from.resize(std::min(from.size(), at(random_.integer(1, most))));
    return from;
  }

  /// A length to which truncate() and fork() may shorten a sequence.
  Index drawn_length(Index id) {
    return random_.integer(caches_.offset(id) > 0 ? caches_.config().window : 0, caches_.length(id));
  }
  void fork(Index from) {
    std::optional<Index> length;
    if (random_.chance(0.5)) length = drawn_length(from);
    const Index id = caches_.fork(from, length);
    for (auto& cache : apart_) ASSERT_EQ(cache.fork(from, length), id);
    std::vector<Tokens> copy = model_.at(from);
    for (Tokens& tokens : copy) tokens.truncate(length.value_or(tokens.size()));
    ASSERT_TRUE(model_.emplace(id, std::move(copy)).second);
  }

  void replace_by_copy() {
    const KvCaches<T> copy(caches_);
    caches_ = KvCaches<T>({.layers = 1, .head_dim = 1, .pages = 1});
    caches_ = copy;
    expect_sound();
    expect_contents();
  }

  /// Begins a step and finishes it, abandons it, or lets a mod throw in one of the layers.
  void step(const Ids& to) {
    const Index size = caches_.config().page_size;
    const auto draw = [&] { return random_.chance(0.1) ? random_.integer(0, 3 * size) : random_.integer(0, 4); };
    const bool packed = random_.chance(0.5);
    Ids lens(to.size(), draw());
    if (packed)
      for (Index& len : lens) len = draw();

    const auto before_apart = apart_;
    const auto tables_before = tables();
    auto slid = tables_without_leaving(to);
    const Index free = caches_.free_pages(), needed = caches_.pages_needed(to[0], lens[0]);
    EXPECT_EQ(needed, apart_[0].pages_needed(to[0], lens[0]));
    try {
      KvStep<T> step = packed ? caches_.step(to, lens) : caches_.step(to, lens[0]);
      if (to.size() == 1) {
        EXPECT_EQ(std::max<Index>(free - caches_.free_pages(), 0), needed);
      }
      slide(to);
      if (fill(step, to, lens, packed)) return;
      ++abandoned;
      slide_apart(before_apart, to);
    } catch (const ModError&) {
      ++abandoned;
      slide_apart(before_apart, to);
    } catch (const OutOfPages& e) {
      ++out_of_pages;
      if (to.size() == 1) slid = tables_before;  // refused before the window slides
      expect_out_of_pages_too(e, to, lens);
      slide(to);
    }
    if (!has_sinks()) {
      EXPECT_EQ(tables(), slid);
    }
    if (random_.chance(0.1)) expect_contents();
  }

  bool has_sinks() const { return caches_.config().sinks > 0; }
  /// The tables after the windows of these sequences, without sinks, have slid.
  std::map<Index, Ids> tables_without_leaving(const Ids& to) const {
    std::map<Index, Ids> slid = tables();
    for (const Index id : to) {
      const Index left = tokens_leaving(caches_.config(), caches_.length(id)) / caches_.config().page_size;
      if (!has_sinks()) slid[id].erase(slid[id].begin(), slid[id].begin() + left);
    }
    return slid;
  }
  /// Windows slide before a step, and stay there if it fails. With sinks, not all have slid if there are too few pages.
  void slide(const Ids& to) {
    const KvCachesConfig& c = caches_.config();
    for (const Index id : to) {
      const Index length = model_.at(id)[0].size(), left = tokens_leaving(c, length);
      if (left == 0 || caches_.length(id) == length) continue;
      for (Tokens& tokens : model_.at(id)) {
        Tokens kept = tokens.part(0, c.sinks);
        kept.add(tokens.part(c.sinks + left, length));
        tokens = std::move(kept);
      }
      ++slides;
    }
  }
  /// A failed step leaves the layers' own caches as before, except that windows have slid, as they do before any
  /// append.
  void slide_apart(const std::vector<PagedKvCache<T>>& before, const Ids& to) {
    apart_ = before;
    for (auto& cache : apart_) append(cache, to, {Tokens(sizes())}, Ids(to.size(), 0));
  }

  /// Appends a step's tokens to its layers in any order. Returns whether all layers got theirs and the step was
  /// committed.
  bool fill(KvStep<T>& step, const Ids& to, const Ids& lens, bool packed) {
    const Index layers = caches_.layers();
    Ids order;
    for (Index l = 0; l < layers; ++l) order.push_back(l);
    shuffle(order);
    const Index end = random_.chance(0.3) ? random_.integer(0, layers - 1) : layers;  // layers that succeed
    const bool throws = random_.chance(0.5);
    std::vector<std::vector<Tokens>> more(apart_.size());
    for (Index i = 0; i < std::min(layers, end + throws); ++i) {
      const Index layer = order[at(i)];
      expect_lengths(step, layer, to, Ids(to.size(), 0));
      for (const Index len : lens) more[at(layer)].push_back(Tokens::exact(sizes(), len, random_));
      append(step, layer, more[at(layer)], packed ? lens : Ids());
      append(apart_[at(layer)], to, more[at(layer)], lens);
      expect_lengths(step, layer, to, lens);
      const auto got = step.layer(layer);
      const auto want = apart_[at(layer)].view(to);
      if (i == end) attend(got, want, lens, failing() | causal());
      attend(got, want, lens, causal() | thirds());
      if (i + 1 < layers) {
        expect_refused("commit", {"layer", "of " + std::to_string(layers), "has not appended"}, [&] { step.commit(); });
      }
    }
    if (end < layers) return false;
    expect_lengths_outside();
    step.commit();
    ++committed;
    for (std::size_t l = 0; l < apart_.size(); ++l)
      for (std::size_t i = 0; i < to.size(); ++i) model_.at(to[i])[l].add(more[l][i]);
    return true;
  }

  void expect_out_of_pages_too(const OutOfPages& e, const Ids& to, const Ids& lens) {
    std::vector<Tokens> zeros;
    for (const Index len : lens) zeros.push_back(Tokens::filled(sizes(), len, 0));
    for (auto& cache : apart_) {
      try {
        append(cache, to, zeros, lens);
        ADD_FAILURE() << "there were enough pages";
      } catch (const OutOfPages& apart) {
        EXPECT_EQ(e.needed(), apart.needed());
        EXPECT_EQ(e.free(), apart.free());
      }
    }
  }

  /// Packed back to back if there are lens; otherwise the sequences have the same number of tokens.
  void append(const KvStep<T>& step, Index layer, const std::vector<Tokens>& more, const Ids& lens) {
    const Layout layouts[] = {Layout::bhsd, Layout::bshd, Layout::dim_major, Layout::gaps, Layout::reversed};
    const Layout layout = random_.pick(layouts);
    KvLayer<T> to = step.layer(layer);
    if (!lens.empty()) {
      Appended<Given<T>> given(concatenated(more), layout);
      to.append(given.k(), given.v(), lens);
    } else {
      Appended<Given<T>> given(more, layout);
      to.append(given.k(), given.v());
    }
  }
  static void append(PagedKvCache<T>& cache, const Ids& to, const std::vector<Tokens>& more, const Ids& lens) {
    Appended<Given<T>> given(concatenated(more));
    cache.append(to, given.k(), given.v(), lens);
  }

  /// A score mod that depends on the positions of keys, which a window without sinks must not change.
  static auto thirds() {
    return score_mod([](auto x, const Position& p) { return x + (p.kv % 3 == 0); });
  }
  /// Attention over a layer equals attention over the layer's own cache, bit for bit. (With a mod that throws, it
  /// throws if a query keeps a key.)
  template <class M>
  void attend(const auto& layer, const auto& apart, const Ids& lens, const M& mods) {
    using C = Given<T>;
    Index sum = 0;
    for (const Index len : lens) sum += len;
    const Index heads = 2 * sizes().kv_heads;
    const auto numbers = random_.values(heads * sum * sizes().head_dim);
    Tensor<C, 4> q({1, heads, sum, sizes().head_dim});
    for (Index i = 0; i < q.size(); ++i) q.data()[i] = static_cast<C>(static_cast<float>(numbers[at(i)]));
    const Options options{.executor = serial()};
    const auto got = attention(ragged(q, lens), layer, mods, options);
    const auto want = attention(ragged(q, lens), apart, mods, options);
    ASSERT_EQ(got.out.shape(), want.out.shape());
    EXPECT_TRUE(std::equal(got.out.data(), got.out.data() + got.out.size(), want.out.data()));
  }

  void expect_lengths(const KvStep<T>& step, Index layer, const Ids& to, const Ids& more) const {
    const auto view = step.layer(layer).view();
    ASSERT_EQ(view.size(), static_cast<Index>(to.size()));
    for (Index i = 0; i < view.size(); ++i)
      EXPECT_EQ(view.length(i), model_.at(to[at(i)])[0].size() + more[at(i)]) << "layer " << layer;
  }
  void expect_lengths_outside() const {
    for (const auto& [id, tokens] : model_) {
      EXPECT_EQ(caches_.length(id), tokens[0].size());
      EXPECT_EQ(caches_.view(0, {id}).length(0), tokens[0].size());
    }
  }

  std::map<Index, Ids> tables() const {
    std::map<Index, Ids> all;
    for (const Index id : ids()) all[id] = {caches_.table(id).begin(), caches_.table(id).end()};
    return all;
  }
  void expect_sound() const {
    ASSERT_EQ(caches_.sequences(), static_cast<Index>(model_.size()));
    ASSERT_EQ(caches_.free_pages(), apart_[0].free_pages());
    std::set<Index> used;
    const Index size = caches_.config().page_size;
    for (const auto& [id, table] : tables()) {
      ASSERT_TRUE(caches_.has(id));
      const Index length = model_.at(id)[0].size();
      ASSERT_EQ(caches_.length(id), length);
      for (const auto& cache : apart_) {
        ASSERT_EQ(cache.length(id), length);
        ASSERT_EQ(cache.offset(id), caches_.offset(id));
      }
      if (has_sinks()) continue;
      ASSERT_EQ(static_cast<Index>(table.size()), (length + size - 1) / size) << "sequence " << id;
      used.insert(table.begin(), table.end());
    }
    if (!has_sinks()) {
      ASSERT_EQ(caches_.free_pages() + static_cast<Index>(used.size()), caches_.pages());
    }
  }
  void expect_contents() {
    for (const auto& [id, tokens] : model_)
      for (Index l = 0; l < caches_.layers(); ++l) {
        SCOPED_TRACE("sequence " + std::to_string(id) + ", layer " + std::to_string(l));
        if (has_sinks()) {
          attend(caches_.view(l, {id}), apart_[at(l)].view({id}), {1}, thirds());
          continue;
        }
        const auto& config = apart_[at(l)].config();
        const Tokens& want = config.rope ? tokens_of(apart_[at(l)], id) : tokens[at(l)];
        ASSERT_TRUE(holds(caches_, l, id, want));
      }
  }

  Random random_;
  KvCaches<T> caches_;
  std::vector<PagedKvCache<T>> apart_;          // for each layer
  std::map<Index, std::vector<Tokens>> model_;  // for each sequence, the tokens of each layer
};

template <class T>
void run_trials() {
  constexpr int kSeeds = 60, kOperations = 400;
  Sample sample;
  std::cout << "seeds 1 to " << kSeeds << ", " << kOperations << " operations each" << sample.text() << "\n";
  Index committed = 0, abandoned = 0, out_of_pages = 0, slides = 0;
  bool all = true;
  for (std::uint64_t seed = 1; seed <= kSeeds && !::testing::Test::HasFailure(); ++seed) {
    if (!sample.takes_next()) {
      all = false;
      continue;
    }
    SCOPED_TRACE("seed " + std::to_string(seed));
    Trial<T> trial(seed);
    trial.run(kOperations);
    committed += trial.committed, abandoned += trial.abandoned, out_of_pages += trial.out_of_pages;
    slides += trial.slides;
  }
  if (!all) return;
  EXPECT_GT(committed, kSeeds * kOperations / 5);
  EXPECT_GT(abandoned, kSeeds * kOperations / 20);
  EXPECT_GT(out_of_pages, kSeeds * kOperations / 50);
  EXPECT_GT(slides, kSeeds * kOperations / 20);
}

TEST(KvCachesOperations, Float) { run_trials<float>(); }
TEST(KvCachesOperations, BFloat16) { run_trials<Eigen::bfloat16>(); }
TEST(KvCachesOperations, EightBits) { run_trials<std::int8_t>(); }

}  // namespace
}  // namespace attn::test
