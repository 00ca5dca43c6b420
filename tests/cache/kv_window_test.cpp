// Caches with a window, against caches that keep all tokens and against plain lists of tokens.
#include <algorithm>
#include <stdexcept>
#include <vector>

#include "support/multi_head_model.h"
#include "support/refused.h"

namespace attn::test {
namespace {

constexpr Index kHeads = 4, kKvHeads = 2, kDim = 8, kVDim = 5;

/// The keys, values and queries of `tokens` tokens of a sequence, from token `first` on.
struct Part {
  Tensor<float, 4> k, v, q;
  Part(const Tensor<float, 4>& keys, const Tensor<float, 4>& values, const Tensor<float, 4>& queries, Index first,
       Index tokens)
      : k(keys.view().slice(2, first, first + tokens)),
        v(values.view().slice(2, first, first + tokens)),
        q(queries.view().slice(2, first, first + tokens)) {}
};

struct Sequence {
  Tensor<float, 4> k, v, q;
  Sequence(Index tokens, std::uint64_t seed)
      : k(drawn<float>({1, kKvHeads, tokens, kDim}, seed, 1)),
        v(drawn<float>({1, kKvHeads, tokens, kVDim}, seed + 1, 1)),
        q(drawn<float>({1, kHeads, tokens, kDim}, seed + 2, 1)) {}
  Part part(Index first, Index tokens) const { return {k, v, q, first, tokens}; }
};

PagedKvCacheConfig config(Index page_size, Index window, Index sinks, const std::optional<Rope>& rope,
                          Index pages = 200) {
  return {.pages = pages,
          .page_size = page_size,
          .kv_heads = kKvHeads,
          .head_dim = kDim,
          .v_dim = kVDim,
          .rope = rope,
          .window = window,
          .sinks = sinks};
}

const Rope kRope({.head_dim = kDim, .scaling = RopeScaling::yarn, .factor = 4, .trained_length = 32});

KvCachesConfig one_layer(Index pages, Index window) {
  return {.layers = 1,
          .kv_heads = kKvHeads,
          .head_dim = kDim,
          .v_dim = kVDim,
          .pages = pages,
          .page_size = 4,
          .rope = kRope,
          .window = window};
}

void expect_near(const Tensor<float, 4>& got, const Tensor<float, 4>& want, float tolerance) {
  ASSERT_EQ(got.shape(), want.shape());
  for (Index i = 0; i < want.size(); ++i) ASSERT_NEAR(got.data()[i], want.data()[i], tolerance);
}

// Masks and scores see the positions of the whole sequence, however many tokens have left.
TEST(KvWindow, MatchesACacheOfAllTokensUnderTheMask) {
  const Index tokens = 300;
  const Sequence s(tokens, 1);
  for (const Index page_size : {1, 4, 16})
    for (const Index window : {1, 7, 40}) {
      SCOPED_TRACE(::testing::Message() << "page_size " << page_size << ", window " << window);
      const auto mods = causal() | sliding_window(window - 1) | alibi({0.5, 0.25, 0.125, 0.0625}) |
                        score_mod([](auto x, const Position& p) { return x + (p.kv % 3 == 0 ? 1 : 0); });
      PagedKvCache<float> cache(config(page_size, window, 0, kRope));
      KvCache<float> all({.kv_heads = kKvHeads, .head_dim = kDim, .v_dim = kVDim, .rope = kRope});
      const Index a = cache.add();
      Random random(5);
      for (Index first = 0; first < tokens;) {
        const Index count = std::min(random.integer(1, random.integer(0, 9) < 7 ? 1 : 23), tokens - first);
        const Part p = s.part(first, count);
        cache.append(a, p.k, p.v);
        all.append(p.k, p.v);
        first += count;
        EXPECT_LE(cache.length(a), window + page_size - 1 + count);
        EXPECT_GE(cache.length(a), std::min(first, window + count));
        EXPECT_EQ(cache.offset(a) + cache.length(a), first);
        EXPECT_EQ(cache.position(a, 0), cache.offset(a));
        EXPECT_EQ(cache.pages() - cache.free_pages(), (cache.length(a) + page_size - 1) / page_size);
        const auto got = attention(p.q, cache.view({a}), mods), want = attention(p.q, all, mods);
        expect_near(got.out, want.out, 2e-6f);
        if (page_size != 16) continue;
        const Options same{.row_invariant = true};
        const auto bits = attention(p.q, cache.view({a}), mods, same).out, of_all = attention(p.q, all, mods, same).out;
        ASSERT_TRUE(std::equal(bits.data(), bits.data() + bits.size(), of_all.data()));
      }
      // Drafts may be truncated, but not tokens whose predecessors have left the window.
      const Index held = cache.length(a);
      cache.truncate(a, window);
      const Index last = tokens - held + window - 1;
      expect_near(attention(s.part(last, 1).q, cache.view({a}), mods).out,
                  attention(s.part(last, 1).q, all, mods, {.q_offset = last}).out, 2e-6f);
      const Said said{"length must be in " + std::to_string(window), "left its window", std::to_string(window - 1)};
      expect_refused("truncate", said, [&] { cache.truncate(a, window - 1); });
      expect_refused("fork", said, [&] { cache.fork(a, window - 1); });
      expect_refused("drop", {"drop", "left its window"}, [&] { cache.drop(a, 0, 1); });
      expect_refused("retain", {"retain", "left its window"}, [&] { cache.retain(a, {0}); });
    }
}

// With sinks, positions count the remaining tokens, as if the others had never been appended.
TEST(KvWindow, WithSinksAttendsToTheRemainingTokens) {
  const Index tokens = 260;
  const Sequence s(tokens, 4);
  for (const Index page_size : {1, 4, 16})
    for (const Index sinks : {1, 4, 19})
      for (const auto& rope : {std::optional<Rope>(), std::optional<Rope>(kRope)}) {
        SCOPED_TRACE(::testing::Message() << "page_size " << page_size << ", sinks " << sinks);
        const Index window = 24;
        PagedKvCache<float> cache(config(page_size, window, sinks, rope));
        const Index a = cache.add();
        Random random(6);
        std::vector<Index> held;  // the tokens that stay
        for (Index first = 0; first < tokens;) {
          const Index count = std::min(random.integer(1, 9), tokens - first);
          const Part p = s.part(first, count);
          const Index over = static_cast<Index>(held.size()) - sinks - window;
          if (over >= page_size) held.erase(held.begin() + sinks, held.begin() + sinks + over / page_size * page_size);
          cache.append(a, p.k, p.v);
          for (Index i = 0; i < count; ++i) held.push_back(first++);
          ASSERT_EQ(cache.length(a), static_cast<Index>(held.size()));
          ASSERT_LE(cache.length(a), sinks + window + page_size - 1 + count);
          EXPECT_EQ(cache.offset(a), 0);
          Tensor<float, 4> k({1, kKvHeads, cache.length(a), kDim}), v({1, kKvHeads, cache.length(a), kVDim});
          for (Index h = 0; h < kKvHeads; ++h)
            for (std::size_t j = 0; j < held.size(); ++j) {
              const Index row = static_cast<Index>(j);
              for (Index d = 0; d < kDim; ++d) k(0, h, row, d) = s.k(0, h, held[j], d);
              for (Index d = 0; d < kVDim; ++d) v(0, h, row, d) = s.v(0, h, held[j], d);
            }
          Tensor<float, 4> q = p.q;
          if (rope) rope->rotate(k, 0), rope->rotate(q, cache.length(a) - count);
          expect_near(attention(p.q, cache.view({a}), causal()).out, naive_attention(q, k, v, causal()).out, 3e-6f);
        }
      }
}

// Keys are rounded once, and those of sinks twice, however many pages were dropped.
template <class T>
void expect_few_roundings(Index page_size, Index sinks, double relative) {
  const Index tokens = 1500, window = 40;
  const Sequence s(tokens, 12);
  PagedKvCache<T> cache(config(page_size, window, sinks, kRope, 80));
  KvCache<T> all({.kv_heads = kKvHeads, .head_dim = kDim, .v_dim = kVDim, .rope = kRope});
  const Index a = cache.add();
  for (Index i = 0; i < tokens; ++i) {
    const Part p = s.part(i, 1);
    cache.append(a, p.k, p.v);
    all.append(p.k, p.v);
  }
  const auto key = [&](Index row, Index h, Index d) {
    const Index page = cache.table(a)[static_cast<std::size_t>(row / page_size)], at = row % page_size;
    const double scale = std::is_same_v<T, std::int8_t> ? double(cache.key_scales()(page, h, at)) : 1;
    return scale * static_cast<double>(cache.key_pages()(page, h, at, d));
  };
  const Index length = cache.length(a), left = tokens - length;
  Tensor<float, 4> first(s.k.view().slice(2, 0, sinks));
  kRope.rotate(first, left);
  for (Index h = 0; h < kKvHeads; ++h)
    for (Index d = 0; d < kDim; ++d) {
      for (Index row = sinks; row < length; ++row) {
        const double scale = std::is_same_v<T, std::int8_t> ? double(all.key_scales()(0, h, row + left)) : 1;
        ASSERT_EQ(key(row, h, d), scale * static_cast<double>(all.keys(0)(0, h, row + left, d))) << row;
      }
      for (Index row = 0; row < sinks; ++row) {
        EXPECT_EQ(cache.position(a, row), left + row);
        ASSERT_NEAR(key(row, h, d), first(0, h, row, d), relative * 2.5) << row;
      }
    }
  EXPECT_EQ(cache.position(a, sinks), left + sinks);
}

TEST(KvWindow, RotatesOnlySinksAndNotTwice) {
  for (const Index page_size : {1, 4, 16})
    for (const Index sinks : {1, 4, 7, 16}) {
      SCOPED_TRACE(::testing::Message() << "page_size " << page_size << ", sinks " << sinks);
      expect_few_roundings<float>(page_size, sinks, 3e-7);
      expect_few_roundings<Eigen::bfloat16>(page_size, sinks, 1. / 128);
      expect_few_roundings<std::int8_t>(page_size, sinks, 1. / 127);
    }
}

// If sinks are truncated, the tokens appended after the remaining ones become sinks, in all forks.
TEST(KvWindow, SinksMayBeTruncated) {
  const Sequence s(200, 7);
  const Index window = 20;
  for (const Index page_size : {1, 4, 16})
    for (const Index sinks : {3, 4, 9}) {
      SCOPED_TRACE(::testing::Message() << "page_size " << page_size << ", sinks " << sinks);
      PagedKvCache<float> cache(config(page_size, window, sinks, kRope));
      std::vector<Index> held;  // the tokens of `a`, and of its forks
      const auto feed = [&](Index sequence, Index first, Index tokens) {
        for (Index i = first; i < first + tokens; ++i) {
          const Index over = static_cast<Index>(held.size()) - sinks - window;
          if (over >= page_size) held.erase(held.begin() + sinks, held.begin() + sinks + over / page_size * page_size);
          cache.append(sequence, s.part(i, 1).k, s.part(i, 1).v);
          held.push_back(i);
        }
      };
      const auto expect_held = [&](Index sequence, Index token) {
        const Index length = cache.length(sequence);
        ASSERT_EQ(length, static_cast<Index>(held.size()));
        Tensor<float, 4> k({1, kKvHeads, length, kDim}), v({1, kKvHeads, length, kVDim});
        for (Index h = 0; h < kKvHeads; ++h)
          for (Index row = 0; row < length; ++row) {
            const Index from = held[static_cast<std::size_t>(row)];
            for (Index d = 0; d < kDim; ++d) k(0, h, row, d) = s.k(0, h, from, d);
            for (Index d = 0; d < kVDim; ++d) v(0, h, row, d) = s.v(0, h, from, d);
          }
        Tensor<float, 4> q = s.part(token, 1).q;
        kRope.rotate(k, 0);
        kRope.rotate(q, length - 1);
        expect_near(attention(s.part(token, 1).q, cache.view({sequence}), causal()).out, naive_attention(q, k, v).out,
                    3e-6f);
      };
      const Index a = cache.add();
      feed(a, 0, 90);
      const Index fork = cache.fork(a, 2);
      const auto of_a = held;
      held.resize(2);
      for (const Index sequence : {fork, a}) {
        if (sequence == a) {
          held = of_a;
          expect_held(a, 89);
          cache.truncate(a, 2);
          held.resize(2);
        }
        for (Index i = 0; i < 10; ++i) {
          feed(sequence, 95 + 10 * i, 10);
          expect_held(sequence, 95 + 10 * i + 9);
        }
      }
      cache.release(a);
      cache.release(fork);
      EXPECT_EQ(cache.free_pages(), cache.pages());
    }
}

TEST(KvWindow, HoldsAnyNumberOfTokensInItsPages) {
  const Index window = 32, page_size = 16;
  PagedKvCache<float> cache(config(page_size, window, 0, kRope, 3)), with_sinks(config(page_size, window, 4, kRope, 5));
  const Index a = cache.add(), b = with_sinks.add();
  const Sequence s(64, 9);
  for (Index i = 0; i < 20000; ++i) {
    const Part p = s.part(i % 64, 1);
    cache.append(a, p.k, p.v);
    with_sinks.append(b, p.k, p.v);
  }
  EXPECT_LE(cache.length(a), window + page_size);
  EXPECT_EQ(cache.position(a, cache.length(a)), 20000);
  EXPECT_LE(with_sinks.length(b), 4 + window + page_size);
  EXPECT_EQ(with_sinks.position(b, with_sinks.length(b)), 20000);
}

TEST(KvWindow, WorksInALayerAndInAllLayers) {
  const Index embed = 24, window = 20, tokens = 150;
  const MultiHeadAttention<float> mha({.embed_dim = embed, .heads = 4, .kv_heads = 2, .rope = Rope({.head_dim = 6})});
  const auto x = tensor<float>(Random(2).values(tokens * embed, 1), 1, tokens, embed);
  const auto mods = causal() | sliding_window(window - 1);
  const auto want = mha(x, x, x, mods).out;
  auto pages = mha.make_paged_cache({.pages = 8, .page_size = 8, .window = window});
  auto caches = mha.make_caches({.layers = 2, .pages = 8, .page_size = 8, .window = window});
  const Index a = pages.add(), b = caches.add();
  for (Index first = 0; first < tokens;) {
    const Index count = std::min<Index>(first % 7 == 3 ? 11 : 1, tokens - first);
    const Tensor<float, 3> part(x.view().slice(1, first, first + count));
    const auto got = mha(part, pages.select({a}), mods, {.heads = true});
    auto step = caches.step({b}, count);
    for (Index l = 0; l < 2; ++l) {
      const auto of_layer = mha(part, step.layer(l), mods).out;
      for (Index i = 0; i < of_layer.size(); ++i) ASSERT_EQ(of_layer.data()[i], got.out.data()[i]);
    }
    step.commit();
    EXPECT_EQ(caches.offset(b), pages.offset(a));
    for (Index r = 0; r < count; ++r)
      for (Index f = 0; f < embed; ++f) ASSERT_NEAR(got.out(0, r, f), want(0, first + r, f), 3e-6);
    first += count;
  }
  EXPECT_GT(pages.offset(a), 100);
}

TEST(KvWindow, ACallThatThrowsKeepsTheTokensOfTheWindow) {
  for (const Index sinks : {0, 3}) {
    const Index embed = 24, window = 10;
    const MultiHeadAttention<float> mha({.embed_dim = embed, .heads = 4, .kv_heads = 2, .rope = Rope({.head_dim = 6})});
    const auto x = tensor<float>(Random(2).values(60 * embed, 1), 1, 60, embed);
    const auto token = [&](Index i) { return Tensor<float, 3>(x.view().slice(1, i, i + 1)); };
    const PagedKvCacheConfig sizes{.pages = 12, .page_size = 4, .window = window, .sinks = sinks};
    auto cache = mha.make_paged_cache(sizes), same = mha.make_paged_cache(sizes);
    const Index a = cache.add(), b = same.add();
    const Index fork = [&] {
      for (Index i = 0; i < 9; ++i)
        mha(token(i), cache.select({a}), causal()), mha(token(i), same.select({b}), causal());
      return cache.fork(a);
    }();
    const auto throws = score_mod([](auto s, const Position&) {
      if constexpr (std::is_arithmetic_v<decltype(s)>) throw std::runtime_error("no");
      return s;
    });
    for (Index i = 9; i < 60; ++i) {
      EXPECT_THROW(mha(token(i), cache.select({a}), throws, {.executor = serial()}), std::runtime_error);
      const auto got = mha(token(i), cache.select({a}), causal()).out,
                 want = mha(token(i), same.select({b}), causal()).out;
      ASSERT_TRUE(std::equal(got.data(), got.data() + got.size(), want.data())) << i;
      ASSERT_EQ(cache.length(a), same.length(b));
    }
    EXPECT_EQ(cache.length(fork), 9);
    cache.release(a);
    cache.release(fork);
    EXPECT_EQ(cache.free_pages(), 12);
  }
}

TEST(KvWindow, KeepsTheTokensOfForks) {
  for (const Index sinks : {0, 3}) {
    PagedKvCache<float> cache(config(4, 6, sinks, kRope, 60)), alone(config(4, 6, sinks, kRope, 60));
    const Sequence s(80, 3);
    const Index a = cache.add();
    std::vector<std::pair<Index, Index>> forks;  // of `a`, and the same tokens in a separate cache
    const auto check = [&] {
      for (const auto& [fork, want] : forks) {
        const auto q = s.part(5, 1).q;
        expect_near(attention(q, cache.view({fork}), causal()).out, attention(q, alone.view({want}), causal()).out, 0);
      }
    };
    for (Index i = 0; i < 70; ++i) {
      const Part p = s.part(i, 1);
      cache.append(a, p.k, p.v);
      if (i % 17 == 9) {
        forks.emplace_back(cache.fork(a), alone.add());
        for (Index j = 0; j <= i; ++j) alone.append(forks.back().second, s.part(j, 1).k, s.part(j, 1).v);
      }
      if (i % 17 == 12)
        for (const auto& [fork, want] : forks) cache.append(fork, p.k, p.v), alone.append(want, p.k, p.v);
      check();
    }
    cache.release(a);
    cache.release(forks.front().first);
    forks.erase(forks.begin());
    cache.append(cache.add(), s.k, s.v);  // into pages that no sequence uses any more
    for (Index i = 0; i < 20; ++i) {
      for (const auto& [fork, want] : forks)
        cache.append(fork, s.part(i, 1).k, s.part(i, 1).v), alone.append(want, s.part(i, 1).k, s.part(i, 1).v);
      check();
    }
  }
}

// A refused call, or an abandoned step, changes no result under the window's mask.
TEST(KvWindow, DroppedTokensAreSeenByNoQuery) {
  KvCaches<float> caches(one_layer(6, 9));
  const Index a = caches.add();
  const Sequence s(40, 8);
  for (Index i = 0; i < 40; ++i) {
    const auto last = [&] { return attention(s.part(i, 1).q, caches.view(0, {a}), causal() | sliding_window(8)).out; };
    {
      auto step = caches.step({a}, 1);
      step.layer(0).append(s.part(i, 1).k, s.part(i, 1).v);
      step.commit();
    }
    const auto before = last();
    EXPECT_THROW((void)caches.step({a}, 50), OutOfPages);
    expect_near(last(), before, 2e-6f);
    expect_refused("twice", {"twice"}, [&] { (void)caches.step({a, a}, 1); });
    { const auto step = caches.step({a}, 2); }
    expect_near(last(), before, 2e-6f);
  }
}

// An abandoned step slides the window, although drafts could still be accepted.
TEST(KvWindow, AcceptKeepsAWindow) {
  KvCaches<float> caches(one_layer(20, 9));
  const Sequence s(40, 8);
  const auto feed = [&](Index a, Index first, Index count) {
    auto step = caches.step({a}, count);
    step.layer(0).append(s.part(first, count).k, s.part(first, count).v);
    step.commit();
  };
  const Index a = caches.add(), b = caches.add();
  feed(a, 0, 30);
  feed(b, 0, 22);
  feed(b, 22, 8);
  { const auto step = caches.step({a, b}, 1); }
  ASSERT_EQ(caches.length(a), 10);
  expect_refused("nodes that have left", {"node 0", "0 nodes"}, [&] { caches.accept(a, {0}); });
  expect_refused("too few tokens", {"accept", "9..10", "left its window", "is 3"}, [&] { caches.accept(b, {0}); });
  caches.accept(b, {0, 1, 2, 3, 4, 5, 6});
  EXPECT_EQ(caches.length(b), 9);
}

// Sinks are not nodes of the last append, even if that append was longer than the part of it that remains.
TEST(KvWindow, AcceptRefusesDroppedNodesAndSinks) {
  PagedKvCache<float> cache(config(4, 4, 2, kRope, 20));
  const Sequence s(40, 8);
  const Index a = cache.add();
  cache.append(a, s.part(0, 12).k, s.part(0, 12).v);
  cache.append(a, s.part(12, 8).k, s.part(12, 8).v);
  cache.append(a, s.part(20, 0).k, s.part(20, 0).v);
  ASSERT_EQ(cache.length(a), 8);
  expect_refused("nodes that have left", {"node 0", "0 nodes"}, [&] { cache.accept(a, {0, 1}); });
}

// Errors that can be detected before a window slides are thrown before it slides.
TEST(KvWindow, RefusedAppendsLeaveSequencesWithSinksUnchanged) {
  PagedKvCache<float> cache(config(4, 4, 2, kRope, 6));
  const Sequence s(80, 8);
  const Index a = cache.add();
  cache.append(a, s.part(0, 12).k, s.part(0, 12).v);
  const auto last = [&] { return attention(s.part(11, 1).q, cache.view({a}), causal()).out; };
  const auto before = last();
  const Index needed = cache.pages_needed(a, 40), free = cache.free_pages();
  try {
    cache.append(a, s.part(12, 40).k, s.part(12, 40).v);
    ADD_FAILURE();
  } catch (const OutOfPages& e) {
    EXPECT_EQ(e.needed(), needed);
    EXPECT_EQ(e.free(), free);
  }
  const Tensor<float, 4> k({2, kKvHeads, 1, kDim}), v({2, kKvHeads, 1, kVDim});
  expect_refused("an unknown sequence", {"sequence 99"}, [&] { cache.append({a, 99}, k, v); });
  expect_refused("twice", {"twice"}, [&] { cache.append({a, a}, k, v); });
  expect_near(last(), before, 0);
}

TEST(KvWindow, PagesNeededCountsDroppedTokens) {
  for (const Index sinks : {0, 2})
    for (const bool shared : {false, true}) {
      PagedKvCache<float> cache(config(4, 9, sinks, kRope, 30));
      const Index a = cache.add();
      const Sequence s(60, 2);
      Index fork = -1;
      for (Index first = 0; first < 50;) {
        if (shared && first % 3 == 0) {
          if (fork >= 0) cache.release(fork);
          fork = cache.fork(a);
        }
        const Index count = 1 + first % 5, free = cache.free_pages(), needed = cache.pages_needed(a, count);
        cache.append(a, s.part(first, count).k, s.part(first, count).v);
        ASSERT_EQ(std::max<Index>(free - cache.free_pages(), 0), needed) << "first " << first << ", sinks " << sinks;
        first += count;
      }
    }
}

// A tree of drafts at positions far beyond the rows.
TEST(KvWindow, TakesTreesOfDrafts) {
  KvCaches<float> caches(one_layer(12, 12));
  const Index a = caches.add();
  const Sequence s(80, 8);
  const auto feed = [&](Index first, Index count, const AppendOptions& options = {}) {
    auto step = caches.step({a}, count, options);
    step.layer(0).append(s.part(first, count).k, s.part(first, count).v);
    step.commit();
  };
  for (Index i = 0; i < 50; ++i) feed(i, 1);
  const std::vector<Index> parents{-1, 0, 0, 2};
  {  // the first layer may give the positions, and another one if that failed
    auto step = caches.step({a}, 4);
    const Part p = s.part(50, 4);
    step.layer(0).append(p.k, p.v, {.positions = tree_positions(parents, 50)});
    EXPECT_EQ(caches.position(a, caches.length(a) + 2), 51);
  }
  EXPECT_EQ(caches.position(a, caches.length(a) + 2), 52);
  feed(50, 4, {.positions = tree_positions(parents, 50)});
  const auto drafts = attention(s.part(50, 4).q, caches.view(0, {a}), tree(parents) | sliding_window(11)).out;
  EXPECT_EQ(caches.position(a, caches.length(a) - 1), 52);
  caches.accept(a, {0, 2, 3});
  EXPECT_EQ(caches.position(a, caches.length(a)), 53);
  const auto last = attention(s.part(53, 1).q, caches.view(0, {a}), causal() | sliding_window(10)).out;
  const auto row = Tensor<float, 4>(drafts.view().slice(2, 3, 4));
  expect_near(last, row, 2e-6f);  // node 1 is among the 11 rows before node 3
}

TEST(KvWindow, RefusesWrongSizes) {
  const auto refused = [](Index pages, Index page_size, Index window, Index sinks, const Said& said) {
    expect_refused("window", said, [&] { PagedKvCache<float> cache(config(page_size, window, sinks, {}, pages)); });
  };
  refused(9, 4, -1, 0, {"window -1"});
  refused(9, 4, 8, -2, {"sinks -2"});
  refused(9, 4, 0, 3, {"3 sinks", "no window"});
  refused(2, 4, 8, 0, {"window of 8 tokens", "takes 3 pages of 4", "only 2"});
  refused(3, 4, 8, 2, {"after 2 sinks", "takes 4 pages of 4", "only 3"});
  expect_refused("keys of sinks that are rotated", {"after 2 sinks", "takes 5 pages of 4", "only 4"},
                 [] { PagedKvCache<float> cache(config(4, 8, 2, kRope, 4)); });
  expect_refused("all layers", {"KvCaches", "takes 3 pages of 4", "only 2"},
                 [] { KvCaches<float> caches({.layers = 1, .head_dim = 4, .pages = 2, .page_size = 4, .window = 8}); });
}

}  // namespace
}  // namespace attn::test
