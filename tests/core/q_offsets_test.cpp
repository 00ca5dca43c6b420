// Different positions for each batch element (Options::q_offsets): each element's result equals that of a call with its
// q_offset.
#include <gtest/gtest.h>

#include <numeric>
#include <optional>

#include "attn/attn.h"
#include "support/erased_rows.h"
#include "support/executors.h"
#include "support/paths.h"
#include "support/weights.h"

namespace attn::test {
namespace {

template <class T>
struct Case {
  Arguments<T> arguments;
  TensorView<const T, 4> q, k, v;

  Case(const Sizes& s, Random& random)
      : arguments(drawn(s, random)), q(arguments.q.cview()), k(arguments.k.cview()), v(arguments.v.cview()) {}

  static Arguments<T> drawn(const Sizes& s, Random& random) {
    Inputs in(s, random);
    in.round_to<T>();
    return Arguments<T>(in, Layout::bshd, Layout::bhsd, Layout::dim_major);
  }
};

/// The elements of a row-major array that belong to batch element `b`.
template <class T>
std::vector<T> element(const std::vector<T>& all, Index batch, Index b) {
  const auto each = static_cast<Index>(all.size()) / batch;
  return {all.begin() + b * each, all.begin() + (b + 1) * each};
}
template <class T>
Computed<T> element(const Computed<T>& all, Index batch, Index b) {
  return {element(all.out, batch, b), element(all.lse, batch, b)};
}

std::vector<Index> draw_offsets(const Sizes& s, Range range, Random& random) {
  std::vector<Index> offsets;
  for (Index b = 0; b < s.batch; ++b) offsets.push_back(random.integer(range.begin, range.end));
  return offsets;
}

/// Mods are the same in all calls, because they are drawn for the whole batch.
template <class M>
void expect_as_with_one_offset(Case<float>& c, const Row<M>& row, const std::vector<Index>& offsets) {
  SCOPED_TRACE(row.name);
  const AnyMods<float> mods(row.mod);
  const Index batch = c.q.dim(0);
  const auto naive_of_list = naive(c.arguments, mods, {.q_offsets = offsets});
  for (const Isa isa : instruction_sets()) {
    const auto list = flash(c.arguments, mods, {.q_offsets = offsets, .executor = eager_threads(2), .isa = isa});
    for (Index b = 0; b < batch; ++b) {
      const Index q_offset = offsets[static_cast<std::size_t>(b)];
      const auto one = flash(c.arguments, mods, {.q_offset = q_offset, .isa = isa});
      ASSERT_TRUE(same_bits(element(list, batch, b), element(one, batch, b))) << "batch element " << b;
      if (isa != Isa::generic) continue;
      const auto naive_of_one = naive(c.arguments, mods, {.q_offset = q_offset});
      ASSERT_TRUE(same_bits(element(naive_of_list, batch, b), element(naive_of_one, batch, b)))
          << "batch element " << b;
    }
  }
}

bool starts_with(const std::string& text, const char* word) { return text.rfind(word, 0) == 0; }

TEST(QOffsets, EveryModMatchesCallsWithOneOffset) {
  Random random(1);
  for (const Index q_len : {1, 20, 50}) {
    const Sizes s{3, 4, 2, q_len, 130, 16, 8};
    Case<float> c(s, random);
    const auto near = draw_offsets(s, {0, s.kv_len - q_len}, random), far = draw_offsets(s, {-40, 170}, random);
    each_erased_row({s, {}, random}, [&](const auto& row) {
      if (HasFatalFailure() || starts_with(row.name, "block_mask")) return;  // those are built for one offset
      expect_as_with_one_offset(c, row, near);
      if (!starts_with(row.name, "documents") && !starts_with(row.name, "neighbourhood"))
        expect_as_with_one_offset(c, row, far);  // these have ids, or grid positions, only for the keys
    });
  }
}

// Calls over a single batch element, including a mask with two kinds of passes: for groups, and for near tokens.
TEST(QOffsets, MatchSeparateCalls) {
  Random random(2);
  const Sizes s{3, 4, 2, 300, 400, 16, 8};
  const Case<float> c(s, random);
  const std::vector<Index> offsets{0, 177, 100};
  auto grouped = strided_sparse(16);
  grouped.grouping.always = true;
  const auto check = [&](const char* name, const auto& mods) {
    SCOPED_TRACE(name);
    const auto all = attention(c.q, c.k, c.v, mods, {.q_offsets = offsets});
    for (Index b = 0; b < s.batch; ++b) {
      const auto of = [b](const auto& t) { return t.slice(0, b, b + 1); };
      const auto one = attention(of(c.q), of(c.k), of(c.v), mods, {.q_offset = offsets[static_cast<std::size_t>(b)]});
      const auto of_all = all.out.select(0, b), of_one = one.out.select(0, 0);
      EXPECT_TRUE(std::equal(of_all.data(), of_all.data() + of_all.size(), of_one.data())) << b;
      const auto lse = all.lse.select(0, b);
      EXPECT_TRUE(std::equal(lse.data(), lse.data() + lse.size(), one.lse.data())) << b;
    }
  };
  check("causal | alibi", causal() | alibi(alibi_slopes(4)));
  check("strided_sparse", grouped);
  Tensor<Index, 2> lists({300, 9});  // gathered, combined with a mask that depends on their positions
  for (Index i = 0; i < lists.size(); ++i) lists.data()[i] = i * 37 % 400;
  check("select | causal", select(lists) | causal());
  check("strided_sparse | bias", grouped | sinks(std::vector<double>(4, 0.5)) | bias(Tensor<float, 2>({300, 400})));
}

TEST(QOffsets, ApplyToTheirBatchElements) {
  EXPECT_EQ(kept_keys(2, causal(), {.q_offsets = {0, 2}}), "1000 1100 1110 1111 ");
  EXPECT_EQ(kept_keys(2, causal(), {.q_offsets = {2, 0}}), "1110 1111 1000 1100 ");
  EXPECT_EQ(kept_keys(2, causal(), {.q_offsets = {-1, 9}}), "0000 1000 1111 1111 ");
  EXPECT_EQ(kept_keys(2, causal(), {.q_offsets = std::vector<int>{0, 2}}), "1000 1100 1110 1111 ");
  EXPECT_EQ(kept_keys(2, sliding_window(0), {.q_offsets = {1, 2}}), "0100 0010 0010 0001 ");
  EXPECT_EQ(kept_keys(2, query_lengths({1, 2}), {.q_offsets = {7, -7}}), "1111 0000 1111 1111 ");
  EXPECT_EQ(kept_keys(2, causal(), {.q_offsets = {}}), kept_keys(2, causal(), {}));
}

// A mod is bound for each batch element, and receives its index.
TEST(QOffsets, ModsAreToldTheOffsets) {
  std::vector<Index> seen;
  const auto spy = bind_mod([&](const Problem& p) {
    EXPECT_TRUE(p.q_offsets.empty());
    EXPECT_EQ(p.batch, 2);
    seen.push_back(p.sequence.value_or(-1));
    seen.push_back(p.q_offset);
    return mask_mod([last = p.q_offset + p.q_len](const Position& at) { return at.kv < last; });
  });
  EXPECT_EQ(kept_keys(2, spy, {.q_offsets = {1, -1}}), "1110 1110 1000 1000 ");
  EXPECT_EQ(seen, (std::vector<Index>{0, 1, 1, -1}));
}

TEST(QOffsets, ApplyToWeights) {
  Random random(3);
  const Sizes s{2, 4, 2, 70, 150, 16, 8};
  const Case<float> c(s, random);
  const Options options{.q_offsets = {3, 66}};
  const auto mods = causal() | alibi(alibi_slopes(4));
  const auto expected = naive_attention(c.q, c.k, c.v, mods, options).weights;
  const auto lse = attention(c.q, c.k, c.v, mods, options).lse;
  const auto got = weights_by_tiles(c.q, c.k, lse, mods, options);
  for (Index i = 0; i < got.size(); ++i) ASSERT_NEAR(got.data()[i], expected.data()[i], 1e-5);
}

TEST(QOffsets, AreCountedByExplain) {
  const Tensor<float, 4> x({2, 1, 500, 8});
  const auto tiles = [&](const Options& options) { return explain(x, x, x, causal(), options); };
  const Explanation low = tiles({.q_offset = -400}), high = tiles({.q_offset = 0}),
                    both = tiles({.q_offsets = {-400, 0}});
  EXPECT_EQ(2 * both.full_tiles, low.full_tiles + high.full_tiles);
  EXPECT_EQ(2 * both.skipped_tiles, low.skipped_tiles + high.skipped_tiles);
  EXPECT_GT(high.full_tiles, low.full_tiles);
}

TEST(QOffsets, WithAWorkspace) {
  Random random(4);
  const Case<float> c({2, 4, 2, 60, 130, 16, 8}, random);
  Options options{.q_offsets = {5, 40}, .executor = eager_threads(2)};
  const auto expected = attention(c.q, c.k, c.v, causal(), options).out;
  std::vector<std::byte> memory(workspace_bytes(c.q, c.k, c.v, causal(), options));
  options.workspace = memory;
  Tensor<float, 4> out(expected.shape());
  attention_into(out, c.q, c.k, c.v, causal(), options);
  EXPECT_TRUE(std::equal(out.data(), out.data() + out.size(), expected.data()));
}

TEST(QOffsets, ApplyToBlockMasks) {
  Random random(5);
  Case<float> c({2, 4, 2, 60, 130, 16, 8}, random);
  const auto by_pairs = mask_mod([](auto p) { return p.kv <= p.q; });
  const std::vector<Index> offsets{5, 50};
  const auto blocks = block_mask(by_pairs, 60, 130, {.q_offsets = offsets}, 2);
  expect_as_with_one_offset(c, Row<decltype(causal())>{"causal", causal(), {}}, offsets);
  EXPECT_TRUE(same_bits(flash(c.arguments, blocks, {.q_offsets = offsets}),
                        flash(c.arguments, causal(), {.q_offsets = offsets})));
  const auto refused = [&](const auto& mask, const Options& options) {
    EXPECT_THROW(attention(c.q, c.k, c.v, mask, options), std::invalid_argument);
  };
  refused(blocks, {.q_offsets = {5, 51}});
  refused(blocks, {.q_offset = 5});
  const auto of_all = block_mask(by_pairs, 60, 130, {.q_offset = 5});
  refused(of_all, {.q_offsets = {5, 50}});
  EXPECT_NO_THROW(attention(c.q, c.k, c.v, of_all, {.q_offsets = {5, 5}}));
}

TEST(QOffsets, ApplyToCaches) {
  Random random(6);
  const Sizes s{3, 4, 2, 5, 90, 16, 8};
  const Case<float> c(s, random);
  const Rope rope({.head_dim = 16});
  KvCache<float> cache({.batch = 3, .kv_heads = 2, .capacity = 90, .head_dim = 16, .v_dim = 8, .rope = rope});
  cache.append(c.k, c.v);
  const std::vector<Index> offsets{0, 80, 33};
  const auto mods = causal() | alibi(alibi_slopes(4));
  const auto all = attention(c.q, cache, mods, {.q_offsets = offsets}).out;
  // The same queries as a ragged batch, packed back to back.
  const Tensor<float, 4> packed(c.q.permute(1, 0, 2, 3));
  const auto ragged_out =
      attention(ragged(packed.reshape(1, 4, 15, 16), {5, 5, 5}), cache, mods, {.q_offsets = offsets}).out;
  for (Index b = 0; b < 3; ++b) {
    // Each offset applied to all sequences; only sequence b is compared.
    const auto one = attention(c.q, cache, mods, {.q_offset = offsets[static_cast<std::size_t>(b)]}).out;
    for (Index h = 0; h < 4; ++h) {
      EXPECT_TRUE((all.matrix(b, h).array() == one.matrix(b, h).array()).all()) << b;
      EXPECT_TRUE((ragged_out.matrix(0, h).middleRows(5 * b, 5).array() == one.matrix(b, h).array()).all()) << b;
    }
  }
}

TEST(QOffsets, ApplyToMultiHeadAttention) {
  const MultiHeadAttention<float> layer({.embed_dim = 16, .heads = 4, .rope = Rope({.head_dim = 4})});
  Random random(7);
  Tensor<float, 3> x({2, 9, 16});
  for (Index i = 0; i < x.size(); ++i) x.data()[i] = static_cast<float>(random.uniform(-1, 1));
  const std::vector<Index> offsets{0, -5};
  for (const Path path : {Path::flash, Path::naive}) {
    const Tensor<float, 3> both =
        layer(x, x, x, causal(), MultiHeadOptions{.path = path, .attention = {.q_offsets = offsets}});
    for (Index b = 0; b < 2; ++b) {
      const Options own{.q_offset = offsets[static_cast<std::size_t>(b)]};
      const Tensor<float, 3> one = layer(x, x, x, causal(), MultiHeadOptions{.path = path, .attention = own});
      const auto got = both.select(0, b), expected = one.select(0, b);
      EXPECT_TRUE(std::equal(got.data(), got.data() + got.size(), expected.data()));
    }
  }
  // Queries rotated on request, over a cache and without one.
  auto cache = layer.make_cache({.batch = 2});
  layer.append(x, cache);
  const auto kept_in_cache = layer.attend(x, cache, causal(), {.heads = true, .attention = {.q_offsets = offsets}});
  const auto both = layer(x, x, x, causal(), {.heads = true, .attention = {.q_offsets = offsets}});
  for (Index b = 0; b < 2; ++b) {
    const Options own{.q_offset = offsets[static_cast<std::size_t>(b)]};
    const auto one = layer(x, x, x, causal(), {.heads = true, .attention = own});
    const auto expected = one.query.select(0, b);
    const auto query = both.query.select(0, b), of_cache = kept_in_cache.query.select(0, b);
    EXPECT_TRUE(std::equal(query.data(), query.data() + query.size(), expected.data()));
    for (Index i = 0; i < of_cache.size(); ++i) EXPECT_NEAR(of_cache.data()[i], expected.data()[i], 1e-6);
    for (Index i = 0; i < 9 * 16; ++i)
      EXPECT_NEAR(kept_in_cache.out.select(0, b).data()[i], both.out.select(0, b).data()[i], 1e-5);
  }
}

}  // namespace
}  // namespace attn::test
