// KvCaches: steps, what is refused, decoders over them, and their state after failures.
#include <algorithm>
#include <limits>

#include "support/allocations.h"
#include "support/kv_caches.h"
#include "support/refused.h"

namespace attn::test {
namespace {

constexpr Index kLargest = std::numeric_limits<Index>::max();
constexpr TokenSizes kSizes{2, 4, 3};
const KvCachesConfig kSmall{.layers = 3, .kv_heads = 2, .head_dim = 4, .v_dim = 3, .pages = 6, .page_size = 4};

/// Sequence 0 has 6 tokens, sequence 1 the first 5 of them, in three layers.
class SmallCaches : public ::testing::Test {
 protected:
  SmallCaches() {
    auto step = caches_.step({caches_.add()}, 6);
    for (Index l = 0; l < 3; ++l) tokens_[0].push_back(append(step, l, 6));
    step.commit();
    caches_.fork(0, 5);
    tokens_[1] = tokens_[0];
    for (Tokens& tokens : tokens_[1]) tokens.truncate(5);
  }

  /// Appends tokens to one layer, packed back to back, and returns them.
  Tokens append(const KvStep<float>& step, Index layer, Index count) {
    return append(step, layer, std::vector<Index>{count});
  }
  Tokens append(const KvStep<float>& step, Index layer, const std::vector<Index>& lens) {
    Index sum = 0;
    for (const Index len : lens) sum += len;
    Tokens tokens = Tokens::exact(kSizes, sum, random_);
    Appended<float> given(tokens);
    step.layer(layer).append(given.k(), given.v(), lens);
    return tokens;
  }

  void expect_unchanged(const KvCaches<float>& caches) const {
    EXPECT_EQ(caches.free_pages(), 4);
    EXPECT_EQ(caches.sequences(), 2);
    EXPECT_TRUE(std::equal(caches.table(1).begin(), caches.table(1).end(), caches.table(0).begin()));
    for (Index s = 0; s < 2; ++s)
      for (Index l = 0; l < 3; ++l) {
        EXPECT_TRUE(holds(caches, l, s, tokens_[at(s)][at(l)])) << "layer " << l;
      }
  }
  void expect_unchanged() const { expect_unchanged(caches_); }

  Random random_{1};
  KvCaches<float> caches_{kSmall};
  std::vector<Tokens> tokens_[2];  // of each sequence, by layer
};

TEST_F(SmallCaches, HaveOnePoolForAllLayers) {
  EXPECT_EQ(caches_.layers(), 3);
  EXPECT_EQ(caches_.pages(), 6);
  EXPECT_EQ(caches_.bytes(), 3 * 6 * 2 * 4 * (4 + 3) * 4);
  EXPECT_EQ(caches_.key_pages(2).shape(), (Shape<4>{6, 2, 4, 4}));
  EXPECT_EQ(caches_.value_pages(0).shape(), (Shape<4>{6, 2, 4, 3}));
  EXPECT_EQ(KvCaches<std::int8_t>(kSmall).bytes(), 3 * 6 * 2 * 4 * (4 + 3 + 2 * 4));
  EXPECT_EQ(KvCaches<std::int8_t>(kSmall).key_scales(1).shape(), (Shape<3>{6, 2, 4}));
  EXPECT_EQ(KvCaches<float>({.layers = 1, .head_dim = 7, .pages = 2}).config().v_dim, 7);
  EXPECT_EQ(caches_.pages_needed(0, 3), 2);  // a copy of the shared page, and another
  expect_unchanged();
}

TEST_F(SmallCaches, CopyASharedPageInAllLayers) {
  {
    auto step = caches_.step({1, 0}, {1, 4});
    EXPECT_EQ(caches_.free_pages(), 2);  // of three pages, the shared one is written by the second sequence
    std::vector<Tokens> more;
    for (Index l = 0; l < 3; ++l) more.push_back(append(step, l, {1, 4}));
    step.commit();
    for (std::size_t l = 0; l < 3; ++l) {
      tokens_[1][l].add(more[l].part(0, 1));
      tokens_[0][l].add(more[l].part(1, 5));
    }
  }
  for (Index s = 0; s < 2; ++s)
    for (Index l = 0; l < 3; ++l) EXPECT_TRUE(holds(caches_, l, s, tokens_[at(s)][at(l)])) << s << ", layer " << l;
}

TEST_F(SmallCaches, GiveSharedPagesBack) {
  for (const std::vector<Index>& both : {std::vector<Index>{0, 1}, {1, 0}}) {
    {
      auto step = caches_.step(both, 2);
      for (Index l = 0; l < 3; ++l) append(step, l, {2, 2});
    }
    expect_unchanged();
  }
}

TEST_F(SmallCaches, ShowTokensOfAStepOnlyToLayersThatHaveThem) {
  std::optional<KvStep<float>> step(caches_.step({1, 0}, 2));
  append(*step, 1, {2, 2});
  EXPECT_EQ(step->layer(0).view().length(0), 5);
  EXPECT_EQ(step->layer(1).view().length(0), 7);
  EXPECT_EQ(step->layer(1).view().length(1), 8);
  EXPECT_EQ(caches_.view(1, {0}).length(0), 6);
  EXPECT_EQ(caches_.length(0), 6);
  EXPECT_EQ(caches_.table(1).size(), 2u);
  expect_unchanged(KvCaches<float>(caches_));  // a copy has the committed tokens
  KvStep<float> moved(std::move(*step));
  step.reset();
  EXPECT_EQ(moved.layer(1).view().length(1), 8);
  { const KvStep<float> ends(std::move(moved)); }
  expect_unchanged();
}

TEST_F(SmallCaches, RefuseTokensThatDoNotFitTheStep) {
  auto step = caches_.step({1, 0}, {1, 2});
  append(step, 1, {1, 2});
  Appended<float> two(std::vector<Tokens>(2, Tokens::exact(kSizes, 2, random_))),
      three(Tokens::exact(kSizes, 3, random_));
  KvLayer<float> layer = step.layer(2);
  const auto refused = [&](const char* what, const Said& said, const auto& call) {
    expect_refused(what, said, call);
    EXPECT_EQ(layer.view().length(0), 5) << what;
    EXPECT_EQ(step.layer(1).view().length(1), 8) << what;
  };
  refused("two tokens each", {"1 tokens for sequence 1", "layer 2 got 2"}, [&] { layer.append(two.k(), two.v()); });
  refused("other lengths", {"1 tokens for sequence 1", "layer 2 got 2"}, [&] {
    layer.append(three.k(), three.v(), {2, 1});
  });
  refused("three lengths", {"3 lengths for 2 sequences"}, [&] { layer.append(three.k(), three.v(), {1, 1, 1}); });
  refused("lengths of fewer tokens", {"add up to 2", "3 tokens"}, [&] { layer.append(three.k(), three.v(), {1, 1}); });
  refused("packed without lengths", {"(1, 2, 3, 4)", "(2, 2, 3, 4)", "pass their lengths after the values"},
          [&] { layer.append(three.k(), three.v()); });
  refused("twice", {"layer 1 has appended"}, [&] { append(step, 1, {1, 2}); });
  refused("commit", {"layer 0 of 3 has not appended"}, [&] { step.commit(); });
  refused("layer 3", {"layer 3", "3 layers"}, [&] { step.layer(3); });
  refused("layer -1", {"layer -1"}, [&] { step.layer(-1); });
  refused("view of layer 3", {"layer 3", "3 layers"}, [&] { caches_.view(3, {0}); });
  refused("pages of layer 3", {"layer 3", "3 layers"}, [&] { caches_.key_pages(3); });
}

TEST_F(SmallCaches, RefuseChangesWhileAStepIsOpen) {
  {
    auto step = caches_.step({1, 0}, 2);
    append(step, 1, {2, 2});
    const auto refused = [&](const std::string& what, const auto& call) {
      expect_refused(what.c_str(), {what + ": a step of 2 sequences is open", "1 of 3 layers", "commit()"}, call);
    };
    refused("add", [&] { caches_.add(); });
    refused("fork", [&] { caches_.fork(0); });
    refused("release", [&] { caches_.release(0); });
    refused("truncate", [&] { caches_.truncate(0, 1); });
    refused("step", [&] { (void)caches_.step({0}, 1); });
  }
  expect_unchanged();
  EXPECT_EQ(caches_.add(), 2);
}

TEST_F(SmallCaches, RefuseFinishedSteps) {
  Appended<float> given(Tokens::exact(kSizes, 1, random_));
  const auto over = [&](const char* what, KvLayer<float> layer) {
    expect_refused(what, {"was committed or destroyed"}, [&] { layer.view(); });
    expect_refused(what, {"was committed or destroyed"}, [&] { layer.append(given.k(), given.v()); });
    expect_refused(what, {"was committed or destroyed"}, [&] { layer.append(given.k(), given.v(), {1}); });
  };
  std::optional<KvStep<float>> step(caches_.step({0}, 1));
  const KvLayer<float> first = step->layer(0);
  step.reset();
  over("destroyed", first);
  step.emplace(caches_.step({0}, 1));
  over("another step is open", first);
  const KvLayer<float> second = step->layer(0);
  for (Index l = 0; l < 3; ++l) append(*step, l, 1);
  step->commit();
  over("committed", second);
  expect_refused("layer of a committed step", {"committed"}, [&] { step->layer(0); });
  expect_refused("committed twice", {"committed"}, [&] { step->commit(); });
  step.reset();
  EXPECT_EQ(caches_.length(0), 7);
}

TEST_F(SmallCaches, RefuseSteps) {
  const auto refused = [&](const char* what, const Said& said, const auto& call) {
    expect_refused(what, said, call);
    expect_unchanged();
  };
  refused("never added", {"sequence 2 does not exist"}, [&] { (void)caches_.step({0, 2}, 1); });
  refused("twice", {"sequence 0 appears twice"}, [&] { (void)caches_.step({0, 1, 0}, 1); });
  refused("lengths", {"1 lengths for 2 sequences"}, [&] { (void)caches_.step({0, 1}, {1}); });
  refused("negative", {"sequence 1", "-1"}, [&] { (void)caches_.step({0, 1}, {1, -1}); });
  refused("negative number", {"sequence 0", "-3"}, [&] { (void)caches_.step({0, 1}, -3); });
  refused("too many to count", {"sequence 1", "2^"}, [&] { (void)caches_.step({0, 1}, {1, kLargest}); });
  refused("truncate", {"0..5", "is 6"}, [&] { caches_.truncate(1, 6); });
  refused("fork", {"0..5", "is 6"}, [&] { caches_.fork(1, 6); });
  refused("pages needed", {"0..2^", "-1"}, [&] { caches_.pages_needed(0, -1); });
  try {
    (void)caches_.step({0, 1}, {7, 15});
    FAIL() << "nothing was thrown";
  } catch (const OutOfPages& e) {
    EXPECT_STREQ(e.what(),
                 "attn: 6 more pages are needed, but only 4 of 6 are free; release() or truncate() a sequence");
  }
  expect_unchanged();
}

TEST(KvCaches, RefuseConfigurations) {
  const auto refused = [](KvCachesConfig c, const Said& said) {
    expect_refused("KvCaches", said, [&] { const KvCaches<float> caches(c); });
  };
  const Rope rope({.head_dim = 4}), wide({.head_dim = 8});
  refused({.head_dim = 4, .pages = 2}, {"layers 0", "layers, head_dim and pages have no default"});
  refused({.layers = 2, .pages = 2}, {"head_dim 0", "no default"});
  refused({.layers = 2, .head_dim = 4}, {"pages 0", "no default"});
  refused({.layers = 2, .head_dim = 4, .pages = 2, .page_size = -1}, {"page_size -1"});
  refused({.layers = 2, .kv_heads = 0, .head_dim = 4, .pages = 2}, {"kv_heads 0"});
  refused({.layers = 2, .head_dim = 4, .v_dim = -2, .pages = 2}, {"v_dim -2"});
  refused({.layers = 2, .head_dim = 4, .pages = 2, .rope = wide}, {"head_dim is 4", "layer 0 is 8"});
  refused({.layers = 2, .head_dim = 4, .pages = 2, .ropes = {rope, wide}}, {"head_dim is 4", "layer 1 is 8"});
  refused({.layers = 3, .head_dim = 4, .pages = 2, .ropes = {rope, rope}}, {"2 ropes for 3 layers"});
  refused({.layers = 2, .head_dim = 4, .pages = 2, .rope = rope, .ropes = {rope, rope}},
          {"2 ropes for 2 layers, and a rope for all"});
}

TEST(KvCaches, WithAPagePerSequenceEqualContiguousCaches) {
  const Rope rope({.head_dim = 4});
  KvCaches<float> caches({.layers = 2, .kv_heads = 2, .head_dim = 4, .pages = 3, .page_size = 50, .rope = rope});
  KvCache<float> contiguous({.batch = 3, .kv_heads = 2, .capacity = 50, .head_dim = 4, .rope = rope});
  const std::vector<Index> all{caches.add(), caches.add(), caches.add()};
  Random random(5);
  const auto numbers = random.values(3 * 2 * 50 * 4);
  const TensorView<const double, 4> drawn(numbers.data(), {3, 2, 50, 4});
  Tensor<float, 4> k({3, 2, 50, 4}), q({3, 4, 50, 4});
  for (Index i = 0; i < k.size(); ++i) k.data()[i] = static_cast<float>(numbers[at(i)]);
  for (Index i = 0; i < q.size(); ++i) q.data()[i] = static_cast<float>(numbers[at(i % k.size())]);
  auto step = caches.step(all, 50);
  for (Index l = 0; l < 2; ++l) step.layer(l).append(k, k);
  step.commit();
  contiguous.append(k, k);
  for (Index l = 0; l < 2; ++l)
    for (Index s = 0; s < 3; ++s) {
      EXPECT_EQ(caches.table(s).size(), 1u);
      const auto keys = contiguous.keys(s);
      for (Index h = 0; h < 2; ++h)
        EXPECT_TRUE(
            std::equal(&keys(0, h, 0, 0), &keys(0, h, 0, 0) + 200, &caches.key_pages(l)(caches.table(s)[0], h, 0, 0)));
    }
  const auto got = attention(q, caches.view(1, all), causal()), want = attention(q, contiguous, causal());
  EXPECT_TRUE(std::equal(got.out.data(), got.out.data() + got.out.size(), want.out.data()));
}

/// A decoder without norms: x + layer(x), three times. The second layer has a different rope, the third none.
class Decoder {
 public:
  static constexpr Index kEmbed = 24;

  explicit Decoder(bool of_one_kind = false) {
    const Rope rope({.head_dim = 6}), other({.head_dim = 6, .base = 100});
    const std::optional<Rope> second = of_one_kind ? rope : other,
                              third = of_one_kind ? std::optional(rope) : std::nullopt;
    std::uint64_t seed = 1;
    for (const auto& each : {std::optional(rope), second, third}) {
      layers_.emplace_back(
          MultiHeadConfig{.embed_dim = kEmbed, .heads = 4, .kv_heads = 2, .seed = ++seed, .rope = each});
      ropes_.push_back(each);
    }
  }

  template <class S = float>
  KvCaches<S> make_caches(Index pages, Index page_size) const {
    return layers_[0].make_caches<S>({.layers = 3, .pages = pages, .page_size = page_size, .ropes = ropes_});
  }
  const MultiHeadAttention<float>& layer(Index l) const { return layers_[at(l)]; }

  Tensor<float, 3> whole(Tensor<float, 3> x, const MultiHeadOptions& options) const {
    for (const auto& layer : layers_) add(x, layer(x, x, x, causal(), options).out);
    return x;
  }
  template <class S, class M = decltype(causal())>
  Tensor<float, 3> next(Tensor<float, 3> x, const KvStep<S>& step, const std::vector<Index>& lens,
                        const MultiHeadOptions& options, const M& mods = causal()) const {
    for (Index l = 0; l < 3; ++l) add(x, layer(l)(ragged(x, lens), step.layer(l), mods, options).out);
    return x;
  }
  static Tensor<float, 3> tokens(Index count, std::uint64_t seed) {
    Tensor<float, 3> x({1, count, kEmbed});
    const auto numbers = Random(seed).values(x.size());
    std::copy(numbers.begin(), numbers.end(), x.data());
    return x;
  }
  static Tensor<float, 3> rows(const Tensor<float, 3>& x, Index begin, Index end) {
    return Tensor<float, 3>(TensorView<const float, 3>(x.data() + begin * kEmbed, {1, end - begin, kEmbed}));
  }

 private:
  static void add(Tensor<float, 3>& x, const Tensor<float, 3>& y) {
    for (Index i = 0; i < x.size(); ++i) x.data()[i] += y.data()[i];
  }

  std::vector<MultiHeadAttention<float>> layers_;
  std::vector<std::optional<Rope>> ropes_;
};

/// The results of decoding two texts together, a prompt of 5 tokens and then single ones, each appended to `texts`.
template <class S>
void expect_decodes(double tolerance, Index page_size, const MultiHeadOptions& options) {
  const Decoder decoder;
  const Tensor<float, 3> x[2] = {Decoder::tokens(21, 1), Decoder::tokens(17, 2)};
  KvCaches<S> caches = decoder.make_caches<S>(24, page_size);
  const std::vector<Index> both{caches.add(), caches.add()};
  double largest = 0;
  const Tensor<float, 3> want[2] = {decoder.whole(x[0], options), decoder.whole(x[1], options)};
  for (Index begin = 0, end; begin < 17; begin = end) {
    end = begin == 0 ? 5 : begin + 1;
    // The first text is 4 tokens ahead of the second.
    const Index first = begin == 0 ? 0 : begin + 4, count = end + 4 - first;
    std::vector<float> packed(x[0].data() + first * Decoder::kEmbed, x[0].data() + (first + count) * Decoder::kEmbed);
    packed.insert(packed.end(), x[1].data() + begin * Decoder::kEmbed, x[1].data() + end * Decoder::kEmbed);
    const std::vector<Index> lens{count, end - begin};
    const Tensor<float, 3> both_x(TensorView<const float, 3>(packed.data(), {1, count + end - begin, Decoder::kEmbed}));
    auto step = caches.step(both, lens);
    const Tensor<float, 3> y = decoder.next(both_x, step, lens, options);
    step.commit();
    for (Index i = 0; i < y.size(); ++i) {
      const Index token = i / Decoder::kEmbed, feature = i % Decoder::kEmbed;
      const float expected =
          token < count ? want[0](0, first + token, feature) : want[1](0, begin + token - count, feature);
      largest = std::max(largest, static_cast<double>(std::abs(y.data()[i] - expected)));
    }
  }
  EXPECT_EQ(caches.length(0), 21);
  EXPECT_LE(largest, tolerance);
}

TEST(KvCachesOfADecoder, GiveTheResultsOfTheWholeText) {
  for (const Index page_size : {3, 16}) {
    expect_decodes<float>(0, page_size, {.attention = {.row_invariant = true}});
    expect_decodes<float>(32 * 0x1p-24, page_size, {});
    expect_decodes<Eigen::half>(0x1p-8, page_size, {});
    expect_decodes<std::int8_t>(0x1p-4, page_size, {});
  }
}

TEST(KvCachesOfADecoder, AreUnchangedIfALayerThrows) {
  const Decoder decoder;
  KvCaches<float> caches = decoder.make_caches(8, 4);
  const Index a = caches.add();
  const MultiHeadOptions options{.attention = {.executor = serial()}};
  const auto prompt = Decoder::tokens(6, 1), next = Decoder::tokens(3, 2);
  auto first = caches.step({a}, 6);
  decoder.next(prompt, first, {6}, options);
  first.commit();
  const Index b = caches.fork(a);
  KvCaches<float> untroubled = caches;
  const auto feed = [&](KvCaches<float>& to, bool is_troubled) {
    auto step = to.step({b}, 3);
    const auto y = decoder.layer(0)(next, step.layer(0), causal(), options).out;
    if (is_troubled) {
      // The layer's own append is undone, so that it can be tried again within the step.
      EXPECT_THROW(decoder.layer(1)(y, step.layer(1), failing(), options), ModError);
      EXPECT_EQ(step.layer(1).view().length(0), 6);
      EXPECT_EQ(step.layer(0).view().length(0), 9);
    }
    const auto z = decoder.layer(1)(y, step.layer(1), causal(), options).out;
    const auto last = decoder.layer(2)(z, step.layer(2), causal(), options).out;
    step.commit();
    return last;
  };
  const auto unfinished = [&] {
    auto step = caches.step({b, a}, {3, 4});
    decoder.layer(0)(attn::ragged(Decoder::tokens(7, 3), {3, 4}), step.layer(0), causal(), options);
    decoder.layer(1)(attn::ragged(Decoder::tokens(7, 3), {3, 4}), step.layer(1), failing(), options);
    step.commit();
  };
  EXPECT_THROW(unfinished(), ModError);
  EXPECT_EQ(caches.free_pages(), untroubled.free_pages());
  EXPECT_EQ(caches.length(b), 6);
  const auto got = feed(caches, true), want = feed(untroubled, false);
  EXPECT_TRUE(std::equal(got.data(), got.data() + got.size(), want.data()));
}

TEST(KvCachesOfADecoder, HaveTheRopesOfTheirLayers) {
  const Decoder decoder;
  KvCaches<float> caches = decoder.make_caches(4, 4);
  EXPECT_EQ(caches.config().kv_heads, 2);
  EXPECT_EQ(caches.config().head_dim, 6);
  const Index a = caches.add();
  auto step = caches.step({a}, 1);
  const auto x = Decoder::tokens(1, 1);
  expect_refused("the rope of layer 0", {"ropes", "base", "10000 and 100"},
                 [&] { decoder.layer(0)(x, step.layer(1)); });
  expect_refused("no rope", {"the cache has none"}, [&] { decoder.layer(0)(x, step.layer(2)); });
  expect_refused("too many tokens", {"1 tokens for sequence 0", "layer 1 got 2"},
                 [&] { decoder.layer(1)(Decoder::tokens(2, 1), step.layer(1)); });
  EXPECT_EQ(decoder.layer(0).make_caches({.layers = 2, .head_dim = 9, .pages = 1}).config().rope,
            decoder.layer(0).config().rope);
}

/// A layer may attend to the keys of another one.
TEST(KvCachesOfADecoder, LetALayerReadAnotherLayersKeys) {
  const Decoder decoder;
  KvCaches<float> caches = decoder.make_caches(4, 4);
  const Index a = caches.add();
  auto step = caches.step({a}, 5);
  const auto x = Decoder::tokens(5, 1);
  const auto want = decoder.layer(0)(x, step.layer(0), causal()).out;
  for (Index l = 1; l < 3; ++l) decoder.layer(l).append(x, step.layer(l));
  const auto got = decoder.layer(0).attend(x, step.layer(0), causal()).out;
  EXPECT_TRUE(std::equal(got.data(), got.data() + got.size(), want.data()));
  step.commit();
  const auto later = decoder.layer(0).attend(x, caches.view(0, {a}), causal()).out;
  EXPECT_TRUE(std::equal(later.data(), later.data() + later.size(), want.data()));
}

/// Calls `call` with no allocation available, then one, two, …, until it succeeds, and `check` after each failure.
template <class Call, class Check>
std::ptrdiff_t until_enough(const Call& call, const Check& check) {
  for (std::ptrdiff_t count = 0;; ++count) {
    if (!runs_out(count, call)) return count;
    check();
    if (::testing::Test::HasFailure()) return count;
  }
}

TEST_F(SmallCaches, AreUnchangedWhenMemoryRunsOut) {
  if (!memory_can_run_out()) GTEST_SKIP() << "a sanitizer replaces the heap";
  std::optional<KvStep<float>> step;
  const auto unchanged = [&] { expect_unchanged(); };
  EXPECT_GT(until_enough([&] { step.emplace(caches_.step({1, 0}, {1, 4})); }, unchanged), 0);
  Appended<float> given(Tokens::exact(kSizes, 5, random_));
  for (Index l = 0; l < 3; ++l) {
    KvLayer<float> layer = step->layer(l);
    const std::vector<Index> lens{1, 4};
    EXPECT_GT(
        until_enough([&] { layer.append(given.k(), given.v(), lens); }, [&] { EXPECT_EQ(layer.view().length(1), 6); }),
        0);
    EXPECT_EQ(layer.view().length(1), 10);
  }
  EXPECT_FALSE(runs_out(0, [&] { step.reset(); }));
  expect_unchanged();
  step.emplace(caches_.step({1, 0}, {1, 4}));
  EXPECT_GT(until_enough([&] { KvCaches<float> copy(caches_); }, [] {}), 3);
  for (Index l = 0; l < 3; ++l) append(*step, l, {1, 4});
  EXPECT_FALSE(runs_out(0, [&] { step->commit(); }));
  step.reset();
  EXPECT_EQ(caches_.length(0), 10);
  EXPECT_FALSE(runs_out(0, [&] { caches_.release(0), caches_.truncate(1, 2); }));
  EXPECT_EQ(caches_.free_pages(), 5);
}

/// The layers give the nodes of a tree their positions, and accept() keeps one path in all of them.
TEST(KvCachesOfADecoder, VerifiesTrees) {
  const Decoder decoder;
  for (const Index window : {0, 8}) {
    KvCachesConfig sizes = decoder.make_caches(30, 4).config();
    sizes.window = window;
    sizes.sinks = window > 0 ? 2 : 0;
    KvCaches<float> caches(sizes), plain(sizes);
    const Index a = caches.add(), b = plain.add();
    const auto feed = [&](KvCaches<float>& to, Index sequence, const Tensor<float, 3>& x) {
      auto step = to.step({sequence}, x.dim(1));
      const auto y = decoder.next(x, step, {x.dim(1)}, {});
      step.commit();
      return y;
    };
    const auto expect_same = [](const Tensor<float, 3>& got, Index row, const Tensor<float, 3>& want) {
      for (Index f = 0; f < Decoder::kEmbed; ++f) ASSERT_NEAR(got(0, row, f), want(0, 0, f), 2e-5) << "row " << row;
    };
    for (Index round = 0; round < 6; ++round) {
      const auto seed = static_cast<std::uint64_t>(round);
      const auto token = Decoder::tokens(1, 50 + seed), drafts = Decoder::tokens(4, 70 + seed);
      expect_same(feed(caches, a, token), 0, feed(plain, b, token));
      auto step = caches.step({a}, 4);
      const auto y = decoder.next(drafts, step, {4}, {}, tree({-1, 0, 0, 2}));
      step.commit();
      caches.accept(a, {0, 2, 3});
      if (window > 0) {  // windows slide when tokens are appended, so three appends may drop others than one does
        plain.truncate(b, 0);
        caches.truncate(a, 0);
        continue;
      }
      for (const Index node : {0, 2, 3}) expect_same(y, node, feed(plain, b, Decoder::rows(drafts, node, node + 1)));
    }
  }
}

}  // namespace
}  // namespace attn::test
