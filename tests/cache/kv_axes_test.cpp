// Caches whose rope is a RopeAxes: tokens with several positions, compared with a plain list of tokens that are rotated
// by hand.
#include <array>

#include "support/compare.h"
#include "support/random.h"
#include "support/refused.h"

namespace attn::test {
namespace {

constexpr Index kAxes = 3, kDim = 16, kHeads = 2;
using Place = std::array<Index, kAxes>;
std::size_t at(Index i) { return static_cast<std::size_t>(i); }

RopeAxes mrope(RopePairs pairs = RopePairs::halves, double base = 100) {
  return RopeAxes({.head_dim = kDim,
                   .sections = {2, 2, 3},
                   .pairs = pairs,
                   .base = base,
                   .own_frequencies = false,
                   .interleaved = pairs == RopePairs::interleaved});
}

/// A token: the seed of its key and value, and its positions.
struct Token {
  std::uint64_t seed;
  Place place;
};
struct List {
  std::vector<Token> tokens;

  Index size() const { return static_cast<Index>(tokens.size()); }
  /// The positions of the next token by default.
  Place next() const {
    Index largest = -1;
    if (!tokens.empty()) largest = *std::max_element(tokens.back().place.begin(), tokens.back().place.end());
    return {largest + 1, largest + 1, largest + 1};
  }
  /// The tokens from `first` on as keys (part 0) or values (part 1), and their positions (axes, len).
  Tensor<double, 4> rows(Index first, int part) const {
    Tensor<double, 4> all({1, kHeads, size() - first, kDim});
    for (Index i = first; i < size(); ++i) {
      Random random(tokens[at(i)].seed * 2 + static_cast<std::uint64_t>(part));
      for (Index h = 0; h < kHeads; ++h)
        for (Index d = 0; d < kDim; ++d) all(0, h, i - first, d) = random.uniform(-1, 1);
    }
    return all;
  }
  Tensor<Index, 2> places(Index first) const {
    Tensor<Index, 2> all({kAxes, size() - first});
    for (Index i = first; i < size(); ++i)
      for (Index a = 0; a < kAxes; ++a) all(a, i - first) = tokens[at(i)].place[at(a)];
    return all;
  }
  void add(Index count) {
    for (Index i = 0; i < count; ++i) tokens.push_back({seed++, next()});
  }
  /// An image: the same time for all tokens, and the row and column of each.
  void add_image(Index rows, Index columns) {
    const Place first = next();
    for (Index r = 0; r < rows; ++r)
      for (Index c = 0; c < columns; ++c) tokens.push_back({seed++, {first[0], first[1] + r, first[2] + c}});
  }
  /// A video of one row: the time and the column of each token.
  void add_video(Index frames, Index columns) {
    const Place first = next();
    for (Index t = 0; t < frames; ++t)
      for (Index c = 0; c < columns; ++c) tokens.push_back({seed++, {first[0] + t, first[1], first[2] + c}});
  }
  /// Removes tokens [begin, end), and moves later ones by `shift` positions.
  void drop(Index begin, Index end, Index shift) {
    tokens.erase(tokens.begin() + begin, tokens.begin() + end);
    for (Index i = begin; i < size(); ++i)
      for (Index& p : tokens[at(i)].place) p += shift;
  }

  inline static std::uint64_t seed = 1;
};

/// Expects that a sequence has the positions of the list, and that attention over it equals attention over rows that
/// are rotated by hand.
template <class Cache, class View>
void expect_same(const Cache& cache, Index sequence, const View& view, const List& list, const RopeAxes& axes,
                 const char* after) {
  SCOPED_TRACE(after);
  ASSERT_EQ(cache.length(sequence), list.size());
  for (Index i = 0; i < list.size(); ++i)
    for (Index a = 0; a < kAxes; ++a)
      ASSERT_EQ(cache.position(sequence, i, a), list.tokens[at(i)].place[at(a)]) << "row " << i << ", axis " << a;
  for (Index a = 0; a < kAxes; ++a) ASSERT_EQ(cache.position(sequence, list.size(), a), list.next()[at(a)]);
  const Index queries = std::min<Index>(list.size(), 7), first = list.size() - queries;
  Tensor<double, 4> q({1, 2 * kHeads, queries, kDim}), k = list.rows(0, 0);
  Random random(list.tokens.back().seed);
  for (Index i = 0; i < q.size(); ++i) q.data()[i] = random.uniform(-2, 2);
  const Tensor<double, 4> got = attention(q, view, causal()).out;
  axes.rotate(q, list.places(first));
  axes.rotate(k, list.places(0));
  const Tensor<double, 4> want = attention(q, k, list.rows(0, 1), causal(), {.q_offset = first}).out;
  for (Index i = 0; i < got.size(); ++i) ASSERT_NEAR(got.data()[i], want.data()[i], 1e-12) << "element " << i;
}

/// The last `count` tokens of a list, as append() takes them. Positions are left out where they are the default ones.
template <class Append>
void append_last(const List& list, Index count, bool with_positions, const Append& append) {
  const Index first = list.size() - count;
  const Tensor<double, 4> k = list.rows(first, 0), v = list.rows(first, 1);
  AppendOptions options;
  if (with_positions) options.positions = list.places(first);
  append(k, v, options);
}

class KvAxes : public ::testing::TestWithParam<RopePairs> {
 protected:
  RopeAxes axes() const { return mrope(GetParam()); }
  KvCache<double> cache() const {
    return KvCache<double>({.batch = 1, .kv_heads = kHeads, .capacity = 4, .head_dim = kDim, .rope = axes()});
  }
  static void append(KvCache<double>& to, const List& list, Index count, bool with_positions) {
    append_last(list, count, with_positions,
                [&](const auto& k, const auto& v, const AppendOptions& options) { to.append(k, v, options); });
  }
};
INSTANTIATE_TEST_SUITE_P(, KvAxes, ::testing::Values(RopePairs::halves, RopePairs::interleaved));

TEST_P(KvAxes, TextAfterAnImageFollowsItsLargestPosition) {
  KvCache<double> cache = this->cache();
  List list;
  const auto add = [&](Index count, bool with_positions, const char* what) {
    append(cache, list, count, with_positions);
    expect_same(cache, 0, cache, list, axes(), what);
  };
  list.add(5), add(5, false, "text");
  list.add_image(3, 4), add(12, true, "an image");
  list.add(1), add(1, false, "a token");
  list.add(6), add(6, true, "tokens at the positions that follow");
  list.add_image(2, 2), add(4, true, "a second image");
  // One position for each token applies to all axes.
  for (int i = 0; i < 2; ++i) list.tokens.push_back({List::seed++, {50 + i, 50 + i, 50 + i}});
  append_last(list, 2, false, [&](const auto& k, const auto& v, const AppendOptions&) {
    cache.append(k, v, {.positions = {50, 51}});
  });
  expect_same(cache, 0, cache, list, axes(), "one position for all axes");
}

TEST_P(KvAxes, RowsAreRemoved) {
  KvCache<double> cache = this->cache();
  List list;
  list.add(5), append(cache, list, 5, false);
  list.add_image(3, 4), append(cache, list, 12, true);
  list.add(6), append(cache, list, 6, false);
  const KvCache<double> whole = cache;
  const List all = list;
  cache.drop(0, 5, 17), list.drop(5, 17, -4);
  expect_same(cache, 0, cache, list, axes(), "a dropped image");
  cache = whole, list = all;
  cache.drop(0, 1, 4), list.drop(1, 4, -3);
  expect_same(cache, 0, cache, list, axes(), "text dropped before an image");
  list.add(2), append(cache, list, 2, false);
  expect_same(cache, 0, cache, list, axes(), "text after a drop");
  cache = whole, list = all;
  cache.drop(0, 7, 12, {.keep_positions = true}), list.drop(7, 12, 0);
  expect_same(cache, 0, cache, list, axes(), "a part of an image, without moving rows");
  cache = whole, list = all;
  cache.truncate(0, 9), list.tokens.resize(9);
  expect_same(cache, 0, cache, list, axes(), "truncation within an image");
  list.add(3), append(cache, list, 3, false);
  expect_same(cache, 0, cache, list, axes(), "text after half an image");
  // Row 9 is at (5, 6, 5) and row 6 at (5, 5, 6): no shift that is the same on all axes brings one to the other.
  cache = whole;
  expect_refused("a part of an image", {"row 9", "row 6", "axis 0", "axis 1", "keep_positions"},
                 [&] { cache.drop(0, 6, 9); });
  expect_refused("a part of an image", {"row 6", "row 2", "axis 2", "keep_positions"}, [&] {
    cache.retain(0, {0, 1, 6, 12});
  });
  expect_same(cache, 0, cache, all, axes(), "a refusal");
}

TEST_P(KvAxes, StoredKeysTakeTheAnglesOfAnotherRope) {
  KvCache<double> cache = this->cache();
  List list;
  list.add(5), append(cache, list, 5, false);
  list.add_image(3, 4), append(cache, list, 12, true);
  list.add(3), append(cache, list, 3, false);
  const RopeAxes other = mrope(GetParam(), 1000);
  cache.change_rope(other);
  expect_same(cache, 0, cache, list, other, "change_rope()");
  list.add(3), append(cache, list, 3, false);
  expect_same(cache, 0, cache, list, other, "more text");
  const RopeConfig plain{.head_dim = kDim, .rotary_dim = 14, .pairs = GetParam()};
  expect_refused("one axis", {"change_rope", "axis 1", "axis 0"}, [&] { cache.change_rope(Rope(plain)); });
}

TEST_P(KvAxes, OfSeveralSequences) {
  // Positions of one sequence apply to all; those of all are listed by axis, then by sequence.
  KvCache<double> both({.batch = 2, .kv_heads = kHeads, .head_dim = kDim, .rope = axes()});
  List lists[2];
  const auto rows = [&](Index first, int part) {
    Tensor<double, 4> all({2, kHeads, lists[0].size() - first, kDim});
    for (Index s = 0; s < 2; ++s) {
      const Tensor<double, 4> some = lists[s].rows(first, part);
      std::copy_n(some.data(), some.size(), all.data() + s * some.size());
    }
    return all;
  };
  for (List& list : lists) list.add_image(2, 3);
  both.append(rows(0, 0), rows(0, 1), {.positions = lists[0].places(0)});
  lists[0].add_image(1, 2), lists[1].add(2);
  std::vector<Index> places;
  for (Index a = 0; a < kAxes; ++a)
    for (const List& list : lists)
      for (Index i = 6; i < 8; ++i) places.push_back(list.tokens[at(i)].place[at(a)]);
  both.append(rows(6, 0), rows(6, 1), {.positions = places});
  for (Index s = 0; s < 2; ++s)
    for (Index a = 0; a < kAxes; ++a)
      for (Index i = 0; i < 9; ++i)
        ASSERT_EQ(both.position(s, i, a), i < 8 ? lists[s].tokens[at(i)].place[at(a)] : lists[s].next()[at(a)]);
  Tensor<double, 4> q({2, kHeads, 2, kDim}), k = rows(0, 0);
  Random random(3);
  for (Index i = 0; i < q.size(); ++i) q.data()[i] = random.uniform(-2, 2);
  const auto got = attention(q, both, causal()).out;
  Tensor<Index, 3> of_q({kAxes, 2, 2}), of_k({kAxes, 2, 8});
  for (Index a = 0; a < kAxes; ++a)
    for (Index s = 0; s < 2; ++s)
      for (Index i = 0; i < 8; ++i) {
        of_k(a, s, i) = both.position(s, i, a);
        if (i >= 6) of_q(a, s, i - 6) = of_k(a, s, i);
      }
  axes().rotate(q, of_q);
  axes().rotate(k, of_k);
  const auto want = attention(q, k, rows(0, 1), causal(), {.q_offset = 6}).out;
  for (Index i = 0; i < got.size(); ++i) ASSERT_NEAR(got.data()[i], want.data()[i], 1e-12);
  expect_refused("a list too short", {"7 positions", "2 sequences of 2 tokens", "give 3"}, [&] {
    both.append(rows(6, 0), rows(6, 1), {.positions = {1, 2, 3, 4, 5, 6, 7}});
  });
}

TEST_P(KvAxes, PagesAreForkedAndShared) {
  PagedKvCache<double> pages({.pages = 40, .page_size = 4, .kv_heads = kHeads, .head_dim = kDim, .rope = axes()});
  const Index a = pages.add();
  const auto append = [&](Index s, const List& list, Index count, bool with_positions) {
    append_last(list, count, with_positions,
                [&](const auto& k, const auto& v, const AppendOptions& options) { pages.append(s, k, v, options); });
  };
  List first;
  first.add(6), append(a, first, 6, false);
  first.add_image(3, 3), append(a, first, 9, true);
  const Index b = pages.fork(a, 10);
  List second = first;
  second.tokens.resize(10);
  first.add(4), append(a, first, 4, false);
  second.add_image(2, 2), append(b, second, 4, true);
  second.add(1), append(b, second, 1, false);
  expect_same(pages, a, pages.view({a}), first, axes(), "the first");
  expect_same(pages, b, pages.view({b}), second, axes(), "its fork");
  pages.drop(a, 6, 15), first.drop(6, 15, -3);
  pages.change_rope(mrope(GetParam(), 1000));
  expect_same(pages, a, pages.view({a}), first, mrope(GetParam(), 1000), "a drop and another rope");
  expect_same(pages, b, pages.view({b}), second, mrope(GetParam(), 1000), "the fork with another rope");
}

/// Tokens leave a window in whole pages, also from the middle of an image. The sinks stay just before the smallest
/// position of the first row after them, however tokens were appended.
TEST_P(KvAxes, SinksComeBeforeAllPositionsOfAWindow) {
  PagedKvCache<double> pages(
      {.pages = 40, .page_size = 4, .kv_heads = kHeads, .head_dim = kDim, .rope = axes(), .window = 12, .sinks = 2});
  const Index s = pages.add();
  List list;
  const auto append = [&](Index count, bool with_positions) {
    append_last(list, count, with_positions,
                [&](const auto& k, const auto& v, const AppendOptions& options) { pages.append(s, k, v, options); });
  };
  list.add(4), append(4, false);
  list.add_image(2, 6), append(12, true);
  const RopeAxes other = mrope(GetParam(), 1000);
  for (int i = 0; i < 48; ++i) {
    if (i == 24) pages.change_rope(other);  // from then on, sinks move from originals that were rotated once more
    if (const Index beyond = (list.size() - 2 - 12) / 4 * 4; beyond > 0) {
      const Place to = list.tokens[at(2 + beyond)].place;
      const Index shift = *std::min_element(to.begin(), to.end()) - 1 - list.tokens[1].place[0];
      list.tokens.erase(list.tokens.begin() + 2, list.tokens.begin() + 2 + beyond);
      for (std::size_t sink = 0; sink < 2; ++sink)
        for (Index& p : list.tokens[sink].place) p += shift;
    }
    if (i % 6 == 2)
      list.add_video(3, 2), append(6, true);
    else
      list.add(1), append(1, false);
    expect_same(pages, s, pages.view({s}), list, i < 24 ? axes() : other, "a window");
  }
}

TEST_P(KvAxes, AllLayersShareThePositionsOfAStep) {
  KvCaches<double> caches(
      {.layers = 2, .kv_heads = kHeads, .head_dim = kDim, .pages = 20, .page_size = 4, .rope = axes()});
  const Index s = caches.add();
  List list;
  list.add_image(2, 3);
  append_last(list, 6, true, [&](const auto& k, const auto& v, const AppendOptions& options) {
    auto step = caches.step({s}, 6, options);
    step.layer(0).append(k, v);
    AppendOptions other = options;
    other.positions.values[13] += 1;  // axis 2 of the second token
    expect_refused("other positions", {"layer 1", "token 1", "position 2"}, [&] { step.layer(1).append(k, v, other); });
    step.layer(1).append(k, v, options);
    step.commit();
  });
  expect_same(caches, s, caches.view(1, {s}), list, axes(), "a step");
  expect_refused("ropes of different axes", {"layer 1", "1 axes", "3"}, [&] {
    KvCaches<double>(
        {.layers = 2, .kv_heads = kHeads, .head_dim = kDim, .pages = 20, .ropes = {axes(), Rope({.head_dim = kDim})}});
  });
}

/// Drafts after an image: each node follows the largest position of the image by its depth, on all axes.
TEST_P(KvAxes, TreesAfterAnImage) {
  const std::vector<Index> parents{-1, 0, 0, 2};
  KvCache<double> cache = this->cache();
  List list;
  list.add_image(3, 4), append(cache, list, 12, true);
  const Index first = list.next()[0];
  for (const Index depth : {0, 1, 1, 2})
    list.tokens.push_back({List::seed++, {first + depth, first + depth, first + depth}});
  KvCache<double> wrong = cache;
  append_last(list, 4, false, [&](const auto& k, const auto& v, const AppendOptions&) {
    cache.append(k, v, {.positions = tree_positions(parents, cache.position(0, 12))});
    std::vector<Index> places;
    for (Index a = 0; a < kAxes; ++a)
      for (const Index depth : {0, 1, 1, 2}) places.push_back(first + depth + (a == 2 && depth == 2));
    wrong.append(k, v, {.positions = places});
  });
  Tensor<double, 4> q({1, kHeads, 4, kDim});
  Random random(5);
  for (Index i = 0; i < q.size(); ++i) q.data()[i] = random.uniform(-2, 2);
  const auto got = attention(q, cache, tree(parents)).out;
  expect_refused("a node at other positions", {"node 3", std::to_string(first + 2)},
                 [&] { attention(q, wrong, tree(parents)); });
  Tensor<double, 4> k = list.rows(0, 0);
  axes().rotate(q, list.places(12));
  axes().rotate(k, list.places(0));
  const auto want = attention(q, k, list.rows(0, 1), tree(parents)).out;
  for (Index i = 0; i < got.size(); ++i) ASSERT_NEAR(got.data()[i], want.data()[i], 1e-12);
  expect_refused("a path at other positions", {"path[2]", "node 3", "an axis"}, [&] { wrong.accept(0, {0, 2, 3}); });
  cache.accept(0, {0, 2, 3});
  list.tokens.erase(list.tokens.begin() + 13);
  expect_same(cache, 0, cache, list, axes(), "accept()");
}

TEST(RopeOfAxes, RotatesAsTheAxes) {
  const RopeAxes axes = mrope();
  const Rope rope = axes;
  EXPECT_EQ(rope.axes(), kAxes);
  EXPECT_FALSE(rope == Rope({.head_dim = kDim, .rotary_dim = 14, .base = 100}));
  EXPECT_TRUE(rope == static_cast<Rope>(mrope()));
  List list;
  list.add(2), list.add_image(2, 3);
  Tensor<double, 4> x = list.rows(0, 0), y = x, z = x;
  axes.rotate(x, list.places(0));
  rope.rotate(y, Indices(list.places(0)).values);
  for (Index i = 0; i < x.size(); ++i) ASSERT_EQ(x.data()[i], y.data()[i]);
  EXPECT_TRUE(static_cast<Rope>(RopeAxes({.head_dim = 16, .sections = {8}, .base = 100})) ==
              Rope({.head_dim = 16, .base = 100}));
  // Equal positions on all axes are those of a rope with one axis.
  rope.rotate(z, 3);
  Tensor<double, 4> plain = list.rows(0, 0);
  Rope({.head_dim = kDim, .rotary_dim = 14, .base = 100}).rotate(plain, 3);
  for (Index i = 0; i < z.size(); ++i) ASSERT_EQ(z.data()[i], plain.data()[i]);
  const std::vector<Index> few(17);
  expect_refused("positions", {"17 positions", "8 tokens", "give 3"}, [&] { rope.rotate(z, few); });
}

}  // namespace
}  // namespace attn::test
