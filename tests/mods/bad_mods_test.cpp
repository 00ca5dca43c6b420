// Every invalid mod throws std::invalid_argument, on construction or in a call that it does not fit, with the values in
// the message.
#include <limits>

#include "support/refused.h"

namespace attn::test {
namespace {

TEST(BadMods, KeyLengths) {
  expect_all_refuse("too few", {"1", "2"}, kQ, kK, kV, key_lengths({3}));
  expect_all_refuse("too many", {"3", "2"}, kQ, kK, kV, key_lengths({3, 3, 3}));
  expect_all_refuse("none", {"0", "2"}, kQ, kK, kV, key_lengths(std::vector<int>{}));
  expect_all_refuse("negative", {"-1", "17"}, kQ, kK, kV, key_lengths({3, -1}));
  expect_all_refuse("too long", {"18", "17"}, kQ, kK, kV, key_lengths({18, 3}));
  expect_all_refuse("after another mod", {"18", "17"}, kQ, kK, kV, causal() | softcap(3) | key_lengths({18, 3}));
}

TEST(BadMods, TensorsThatDoNotBroadcast) {
  const char* want = "(2, 6, 11, 17)";
  const auto refuse = [&](const auto& shape) {
    constexpr int Rank = static_cast<int>(std::tuple_size_v<std::remove_cvref_t<decltype(shape)>>);
    const Tensor<bool, Rank> mask(shape);
    const Tensor<float, Rank> added(shape);
    const Said numbers{shown(shape), want};
    expect_all_refuse("keep", numbers, kQ, kK, kV, keep(mask));
    expect_all_refuse("drop", numbers, kQ, kK, kV, drop(mask));
    expect_all_refuse("bias", numbers, kQ, kK, kV, bias(added));
  };
  refuse(Shape<1>{11});
  refuse(Shape<2>{17, 11});
  refuse(Shape<2>{2, 17});
  refuse(Shape<3>{2, 11, 17});
  refuse(Shape<3>{3, 11, 17});
  refuse(Shape<4>{6, 2, 11, 17});
  refuse(Shape<4>{2, 3, 11, 17});
  refuse(Shape<4>{2, 6, 11, 0});
  refuse(Shape<4>{2, 6, 11, 16});
}

TEST(BadMods, KeyTensors) {
  const auto refuse = [&](const auto& shape) {
    constexpr int Rank = static_cast<int>(std::tuple_size_v<std::remove_cvref_t<decltype(shape)>>);
    const Tensor<bool, Rank> mask(shape);
    const std::string given = shown(shape);
    expect_all_refuse("padding", {"padding", given, "(2, 17)"}, kQ, kK, kV, padding(mask));
    expect_all_refuse("keep_keys", {"keep_keys", given, "(2, 17)"}, kQ, kK, kV, keep_keys(mask));
  };
  refuse(Shape<1>{2});
  refuse(Shape<1>{1});
  refuse(Shape<2>{17, 2});
  refuse(Shape<2>{11, 17});  // a key tensor does not have the shape (q_len, kv_len)
  refuse(Shape<2>{2, 1});
  refuse(Shape<2>{3, 17});
  refuse(Shape<2>{0, 17});
  refuse(Shape<4>{2, 1, 1, 17});
}

// A key mask passed as PyTorch's key_padding_mask: the message names the mod for it.
TEST(BadMods, KeyMasksPassedAsPairMasks) {
  const Tensor<bool, 2> keys({2, 17}), other({3, 17});
  expect_all_refuse("drop", {"(2, 17)", "attn::padding(tensor)"}, kQ, kK, kV, drop(keys));
  expect_all_refuse("keep", {"(2, 17)", "attn::keep_keys(tensor)"}, kQ, kK, kV, keep(keys));
  const auto q = tensor(kQ), k = tensor(kK), v = tensor(kV);
  try {
    attention(q, k, v, drop(other));
    FAIL();
  } catch (const std::invalid_argument& e) {
    EXPECT_EQ(std::string(e.what()).find("padding"), std::string::npos) << e.what();
  }
}

TEST(BadMods, KeyRanges) {
  expect_all_refuse("too few", {"1 lengths", "2"}, kQ, kK, kV, key_ranges({3}, {5, 6}));
  expect_all_refuse("too many", {"3 lengths", "2"}, kQ, kK, kV, key_ranges({3, 4}, {5, 6, 7}));
  expect_all_refuse("negative", {"begin", "-1", "17"}, kQ, kK, kV, key_ranges({3, -1}, {5, 6}));
  expect_all_refuse("too long", {"end", "18", "17"}, kQ, kK, kV, key_ranges({3, 4}, {5, 18}));
  expect_all_refuse("backwards", {"begin[1] = 9", "end[1] = 8"}, kQ, kK, kV, key_ranges({3, 9}, {5, 8}));
}

TEST(BadMods, ParametersOfMods) {
  expect_refused("window", {"-1", "5"}, [] { sliding_window(-1, 5); });
  expect_refused("window", {"5", "-2"}, [] { sliding_window(5, -2); });
  expect_refused("softcap 0", {"0"}, [] { softcap(0); });
  expect_refused("softcap -3", {"-3"}, [] { softcap(-3); });
  expect_refused("softcap -1e-9", {"-1e-09"}, [] { softcap(-1e-9); });
  expect_refused("softcap inf", {"inf"}, [] { softcap(std::numeric_limits<double>::infinity()); });
  expect_refused("softcap 1e39", {"1e+39"}, [] { softcap(1e39); });
  expect_refused("softcap 1e-50", {"1e-50"}, [] { softcap(1e-50); });
  expect_refused("softcap NaN", {"nan"}, [] { softcap(std::numeric_limits<double>::quiet_NaN()); });
  expect_refused("alibi_slopes", {"0"}, [] { alibi_slopes(0); });
  expect_refused("alibi_slopes", {"-2"}, [] { alibi_slopes(-2); });
  expect_refused("alibi_slopes", {"9223372036854775807"}, [] { alibi_slopes(std::numeric_limits<Index>::max()); });
  expect_refused("ClippedDistance", {"-1"}, [] { ClippedDistance(-1); });
  expect_refused("ClippedDistance", {"4611686018427387904"}, [] { ClippedDistance(Index(1) << 62); });
  expect_all_refuse("too few slopes", {"5", "6"}, kQ, kK, kV, alibi(std::vector<double>(5)));
  expect_all_refuse("too many slopes", {"7", "6"}, kQ, kK, kV, alibi(std::vector<double>(7)));
}

TEST(BadMods, LengthsOfMasks) {
  expect_all_refuse("prefix", {"1", "2"}, kQ, kK, kV, prefix_lm({3}));
  expect_all_refuse("prefix", {"18", "17"}, kQ, kK, kV, prefix_lm({3, 18}));
  expect_all_refuse("prefix", {"-1", "17"}, kQ, kK, kV, prefix_lm({-1, 3}));
  expect_all_refuse("queries", {"3", "2"}, kQ, kK, kV, query_lengths({3, 3, 3}));
  expect_all_refuse("queries", {"12", "11"}, kQ, kK, kV, query_lengths({3, 12}));
}

TEST(BadMods, Documents) {
  expect_all_refuse("too few ids", {"16", "17"}, kQ, kK, kV, documents(std::vector<int>(16)));
  expect_all_refuse("queries before", {"-1", "9", "16"}, kQ, kK, kV, documents(std::vector<int>(17)), {.q_offset = -1});
  expect_all_refuse("queries after", {"7", "17", "16"}, kQ, kK, kV, documents(std::vector<int>(17)), {.q_offset = 7});
  expect_all_refuse("offsets end early", {"documents_at: the last offset is 12", "the keys end at 17"}, kQ, kK, kV,
                    documents_at({0, 5, 12}));
  expect_all_refuse("queries after offsets", {"documents_at", "7", "17", "offsets", "16"}, kQ, kK, kV,
                    documents_at({0, 5, 17}), {.q_offset = 7});
  expect_refused("no offsets", {"no offsets"}, [] { documents_at(std::vector<int>{}); });
  expect_refused("not from 0", {"2"}, [] { documents_at({2, 5}); });
  expect_refused("decreasing", {"4 after 5"}, [] { documents_at({0, 5, 4}); });
  expect_refused("negative", {"-3"}, [] { documents_at({-3, 5}); });
  expect_refused("too many", {"1152921504606846976"}, [] { documents_at({0, Index(1) << 60}); });
  expect_refused("more than memory", {"281474976710656"}, [] { documents_at({0, Index(1) << 48}); });
}

TEST(BadMods, DocumentsOfQueriesAndKeys) {
  expect_all_refuse("queries", {"documents_at: the last query offset is 12", "11 queries"}, kQ, kK, kV,
                    documents_at({0, 5, 12}, {0, 9, 17}));
  expect_all_refuse("keys", {"documents_at: the last key offset is 16", "the keys end at 17"}, kQ, kK, kV,
                    documents_at({0, 5, 11}, {0, 9, 16}));
  expect_all_refuse("more keys", {"the last key offset is 18", "the keys end at 17"}, kQ, kK, kV,
                    documents_at({0, 5, 11}, {0, 9, 18}));
  expect_all_refuse("part of the keys", {"the last key offset is 19", "the keys end at 20", "kv_offset"}, kQ, kK, kV,
                    documents_at({0, 5, 11}, {0, 9, 19}), {.q_offset = 0, .kv_offset = 3});
  expect_refused("unequal", {"2 query offsets", "3 key offsets"}, [] { documents_at({0, 5}, {0, 5, 9}); });
  expect_refused("no queries", {"no query offsets"}, [] { documents_at(std::vector<int>{}, {0, 5}); });
  expect_refused("no keys", {"no key offsets"}, [] { documents_at({0, 5}, std::vector<int>{}); });
  expect_refused("not from 0", {"first query offset", "2"}, [] { documents_at({2, 5}, {0, 5}); });
  expect_refused("not from 0", {"first key offset", "-1"}, [] { documents_at({0, 5}, {-1, 5}); });
  expect_refused("decreasing", {"query offset 2 is 4 after 5"}, [] { documents_at({0, 5, 4}, {0, 5, 9}); });
  expect_refused("decreasing", {"key offset 2 is 8 after 9"}, [] { documents_at({0, 5, 5}, {0, 9, 8}); });
  expect_refused("more than memory", {"281474976710656"}, [] { documents_at({0, Index(1) << 48}, {0, 5}); });
}

// With as many batch elements as queries, the rows of a matrix could mean either, so it is refused.
TEST(BadMods, AmbiguousMatrices) {
  const Shape<4> q{3, 2, 3, 4}, k{3, 2, 5, 4};
  const Tensor<bool, 2> matrix({3, 5}), one({1, 5});
  const Eigen::Array<bool, Eigen::Dynamic, Eigen::Dynamic> of_eigen = Eigen::Array<bool, 3, 5>::Zero();
  expect_all_refuse("keep", {"keep", "(3, 5)", "attn::keep_keys(tensor)", "unsqueeze(0)"}, q, k, k, keep(matrix));
  expect_all_refuse("drop", {"drop", "(3, 5)", "attn::padding(tensor)", "unsqueeze(0)"}, q, k, k, drop(of_eigen));
  expect_all_refuse("among others", {"drop", "(3, 5)"}, q, k, k, causal() | any_of(drop(matrix), full()));
  const auto x = tensor(q), y = tensor(k), other = tensor({3, 2, 4, 4});
  const Tensor<bool, 2> wide({4, 5});
  const auto served = [](const auto& query, const auto& key, const auto& mods) {
    EXPECT_NO_THROW(attention(query, key, key, mods));
  };
  served(x, y, keep(view(matrix).unsqueeze(0)));
  served(x, y, drop(view(of_eigen).unsqueeze(0)));
  served(x, y, keep_keys(matrix));
  served(x, y, padding(of_eigen));
  served(x, y, keep(one));       // for all queries of all batch elements
  served(other, y, keep(wide));  // unambiguous, and read as in PyTorch
  const Tensor<float, 2> added({3, 5});
  served(x, y, bias(added));
  const Eigen::MatrixXf m(5, 4);
  const Eigen::Array<bool, 5, 5> square = Eigen::Array<bool, 5, 5>::Constant(true);
  served(m, m, keep(square));  // a single sequence has no batch
  // With one batch element and one query, both readings agree.
  const Tensor<bool, 2> row({1, 5});
  served(tensor({1, 2, 1, 4}), tensor({1, 2, 5, 4}), drop(row));
}

TEST(BadMods, SparseMasks) {
  expect_refused("stride", {"0"}, [] { strided_sparse(0); });
  expect_refused("block", {"0", "1"}, [] { fixed_sparse(0, 1); });
  expect_refused("summary", {"4", "5"}, [] { fixed_sparse(4, 5); });
  expect_refused("summary", {"4", "-1"}, [] { fixed_sparse(4, -1); });
  expect_refused("dilated", {"-1", "2"}, [] { dilated(-1, 2); });
  expect_refused("dilated", {"1", "-2"}, [] { dilated(1, 2, -2); });
  expect_refused("dilation", {"1", "0"}, [] { dilated(1, 0); });
  expect_refused("global", {"-2"}, [] { global_tokens({3, -2}); });
  const Tensor<bool, 2> map({3, 3});
  expect_refused("block size", {"0", "4"}, [&] { block_sparse(map, 0, 4); });
  expect_refused("block size", {"4", "-1"}, [&] { block_sparse(map, 4, -1); });
  expect_all_refuse("map", {"(3, 3)", "(2, 6, 3, 5)"}, kQ, kK, kV, block_sparse(map, 4, 4));
  expect_refused("parent after", {"parents[1]", "is 1"}, [] { tree({-1, 1}); });
  expect_refused("parent far before", {"parents[0]", "is -2"}, [] { tree({-2}); });
  expect_all_refuse("tree", {"3", "11"}, kQ, kK, kV, tree({-1, 0, 1}));
  expect_all_refuse("tree of more nodes than keys", {"11", "7"}, kQ, {2, 3, 7, 7}, {2, 3, 7, 19},
                    tree(std::vector<int>(11, -1)));
}

TEST(BadMods, Grids) {
  expect_refused("no dimension", {"1 to 3", "0"}, [] { neighbourhood({}, {}); });
  expect_refused("four dimensions", {"1 to 3", "4"}, [] { neighbourhood({2, 2, 2, 2}, {1, 1, 1, 1}); });
  expect_refused("windows", {"1 windows", "2"}, [] { neighbourhood({4, 4}, {3}); });
  expect_refused("dilations", {"3 dilations", "2"}, [] { neighbourhood({4, 4}, {3, 3}, {1, 1, 1}); });
  expect_refused("flags", {"1 causal", "2"}, [] { neighbourhood({4, 4}, {3, 3}, {}, {1}); });
  expect_refused("flag", {"2", "0 or 1"}, [] { neighbourhood({4}, {3}, {}, {2}); });
  expect_refused("empty", {"dimension 1", "0"}, [] { neighbourhood({4, 0}, {3, 1}); });
  expect_refused("window 0", {"dimension 0", "window 0"}, [] { neighbourhood({4, 4}, {0, 1}); });
  expect_refused("dilation 0", {"dilation 0"}, [] { neighbourhood({4, 4}, {1, 1}, {0, 1}); });
  expect_refused("window", {"length 4", "5"}, [] { neighbourhood({4}, {5}); });
  expect_refused("dilated window", {"length 8", "window of 3", "dilation 3"}, [] { neighbourhood({8}, {3}, {3}); });
  expect_refused("dilation", {"9223372036854775807"},
                 [] { neighbourhood({8}, {1}, {std::numeric_limits<Index>::max()}); });
  expect_refused("too many", {"268435456"}, [] { neighbourhood({Index(1) << 40, Index(1) << 40}, {1, 1}); });
  expect_all_refuse("other tokens", {"16", "17"}, kQ, kK, kV, neighbourhood({4, 4}, {3, 3}));
  expect_all_refuse("more keys than a causal grid", {"16", "17"}, kQ, kK, kV,
                    neighbourhood({4, 4}, {3, 3}, {}, {1, 0}));
  expect_all_refuse("queries before", {"-1..9", "0..16"}, kQ, kK, kV, neighbourhood({17}, {3}), {.q_offset = -1});
  expect_all_refuse("queries after", {"7..17", "0..16"}, kQ, kK, kV, neighbourhood({17}, {3}), {.q_offset = 7});
  expect_refused("span", {"span 0", "[-1, 2)"}, [] { bidirectional_spans({{-1, 2}}); });
  expect_refused("span", {"span 0", "[3, 2)"}, [] { bidirectional_spans({{3, 2}}); });
  expect_refused("span", {"span 1", "[3, 6)", "4"}, [] { bidirectional_spans({{1, 4}, {3, 6}}); });
  expect_refused("span", {"span 0", "281474976710656"}, [] { bidirectional_spans({{0, Index(1) << 48}}); });
  const std::vector<std::vector<Range>> three(3);
  expect_all_refuse("lists of spans", {"3 lists", "2"}, kQ, kK, kV, bidirectional_spans(three));
}

TEST(BadMods, SelectedKeys) {
  const auto refuse = [&](const auto& shape) {
    constexpr int Rank = static_cast<int>(std::tuple_size_v<std::remove_cvref_t<decltype(shape)>>);
    Shape<4> all{1, 1, 1, 1};
    std::copy(shape.begin(), shape.end(), all.end() - Rank);
    expect_all_refuse("select", {"select", shown(all), "(2, 6 or 3, 11, n)"}, kQ, kK, kV,
                      select(Tensor<int, Rank>(shape)));
  };
  refuse(Shape<2>{10, 4});
  refuse(Shape<3>{2, 11, 4});
  refuse(Shape<4>{3, 6, 11, 4});
  refuse(Shape<4>{2, 6, 2, 4});
  Tensor<int, 2> keys({11, 3});
  keys(10, 2) = 17;
  expect_all_refuse("no such key", {"17", "17 keys"}, kQ, kK, kV, select(keys));
  keys(10, 2) = -2;
  expect_refused("no such key", {"-2"}, [&] { select(keys); });
  expect_refused("one dimension", {"rank 1"}, [] { select(Tensor<int, 1>({3})); });
  using Lists = std::vector<std::vector<int>>;
  using Numbers = std::vector<int>;
  expect_refused("offsets that fall", {"select: offsets[2] is 3 after 5"}, [] { select({0, 5, 3}, {1, 2, 3}); });
  expect_refused("not from 0", {"offsets[0] must be 0", "is 1"}, [] { select({1, 2}, {1, 2}); });
  expect_refused("too many indices", {"the last offset is 2", "3 indices"}, [] { select({0, 1, 2}, {1, 2, 3}); });
  expect_refused("too few indices", {"the last offset is 4", "3 indices"}, [] { select({0, 1, 4}, {1, 2, 3}); });
  expect_refused("below 0", {"indices[1]", "is -1"}, [] { select({0, 2}, {1, -1}); });
  expect_refused("below 0", {"indices[2]", "is -7"}, [] { select(Lists{{1, 3}, {-7}}); });
  expect_refused("no offsets", {"offsets have shape (0)"}, [] { select(Numbers{}, Numbers{}); });
  expect_refused("offsets of rank 4", {"(1, 1, 1, 2)"}, [] { select(Tensor<int, 4>({1, 1, 1, 2}), Numbers{}); });
  expect_refused("indices of rank 2", {"(2, 3)"}, [] { select(Numbers{0, 6}, Tensor<int, 2>({2, 3})); });
  Tensor<int, 2> gap({2, 2});
  gap(0, 1) = 1, gap(1, 0) = 2, gap(1, 1) = 3;
  expect_refused("a gap between heads", {"offsets[2] must be 1", "is 2"}, [&] { select(gap, Numbers{1, 2, 3}); });
  expect_refused("heads unlike", {"2 lists", "1"}, [] { select(std::vector<Lists>{{{1}, {2}}, {{3}}}); });
  expect_all_refuse("too few lists", {"lists for (1, 1, 2)", "(2, 6 or 3, 11)"}, kQ, kK, kV, select({0, 1, 1}, {3}));
  expect_all_refuse("too many heads", {"lists for (1, 4, 1)"}, kQ, kK, kV, select(std::vector<Lists>(4, Lists{{1}})));
  expect_all_refuse("no such key", {"select: index 17", "17 keys"}, kQ, kK, kV, select(Lists{{1, 17, 2}}));
  Tensor<float, 1> values({2}), three({3});
  expect_refused("offsets", {"edge_bias: the last offset is 3", "2 indices"}, [&] {
    edge_bias(Numbers{0, 3}, Numbers{1, 2}, values);
  });
  expect_all_refuse("no such key", {"edge_bias", "17 keys"}, kQ, kK, kV,
                    edge_bias(Numbers{0, 2}, Numbers{1, 17}, values));
  expect_all_refuse("values", {"edge_bias", "(3)", "(1, 2, 6, 2)"}, kQ, kK, kV,
                    edge_bias(Numbers{0, 2}, Numbers{1, 2}, three));
  expect_all_refuse("gradient", {"edge_bias", "(3)", "(2)"}, kQ, kK, kV,
                    edge_bias(Numbers{0, 2}, Numbers{1, 2}, values, three));
  const auto q = tensor(kQ), k = tensor(kK);
  expect_refused("blocks", {"block_q is 0", "block_kv is 4"},
                 [&] { top_k_blocks(q, k, {.block_q = 0, .block_kv = 4}); });
  expect_refused("blocks", {"block_q is 4", "block_kv is -1"},
                 [&] { top_k_blocks(q, k, {.block_q = 4, .block_kv = -1}); });
  expect_refused("count", {"-1"}, [&] { top_k_blocks(q, k, {.count = -1}); });
  expect_refused("sizes", {"head_dim", "7"}, [&] { top_k_blocks(q, tensor({2, 3, 17, 8})); });
}

TEST(BadMods, BlockMasks) {
  expect_refused("negative", {"-1", "17"}, [] { block_mask(causal(), -1, 17); });
  expect_refused("negative batch", {"-2"}, [] { block_mask(causal(), 11, 17, {}, -2); });
  expect_refused("no heads", {"heads 0"}, [] { block_mask(causal(), 11, 17, {}, 1, 0); });
  // Refused even without any pairs.
  expect_refused("batch and heads", {"1099511627776"},
                 [] { block_mask(full(), 0, 5, {}, Index(1) << 40, Index(1) << 40); });
  expect_refused("batch and rows", {"4611686018427387904"}, [] { block_mask(full(), Index(1) << 62, 0, {}, 16); });
  EXPECT_NO_THROW(block_mask(full(), 0, 5, {}, Index(1) << 57));
  expect_refused("too long", {"68719476736"}, [] { block_mask(causal(), Index(1) << 36, Index(1) << 36); });
  expect_refused("far away", {"2305843009213693952"},
                 [] { block_mask(causal(), 11, 17, {.q_offset = Index(1) << 61}); });
  expect_all_refuse("q_len", {"12", "11"}, kQ, kK, kV, block_mask(causal(), 12, 17));
  expect_all_refuse("kv_len", {"18", "17"}, kQ, kK, kV, block_mask(causal(), 11, 18));
  expect_all_refuse("q_offset", {"5", "6"}, kQ, kK, kV, block_mask(causal(), 11, 17, {.q_offset = 5}));
  expect_all_refuse("batch", {"3", "2"}, kQ, kK, kV, block_mask(causal(), 11, 17, {}, 3));
  expect_all_refuse("heads", {"3", "6"}, kQ, kK, kV, block_mask(causal(), 11, 17, {}, 1, 3));
}

TEST(BadMods, EmptyBatchesAreAccepted) {
  const auto none = tensor({0, 6, 11, 13}), keys = tensor({0, 3, 17, 13}), values = tensor({0, 3, 17, 19});
  const auto mask = block_mask(causal(), 11, 17, {}, 0, 6);
  EXPECT_EQ(attention(none, keys, values, mask).out.dim(0), 0);
  EXPECT_EQ(naive_attention(none, keys, values, mask).out.dim(0), 0);
  expect_all_refuse("a batch of some", {"batch 0", "has batch 2"}, kQ, kK, kV, mask);
}

TEST(BadMods, ScoreMods) {
  expect_refused("temperature", {"0"}, [] { temperature({1, 0}); });
  expect_refused("temperature", {"-1"}, [] { temperature({-1}); });
  expect_refused("temperature", {"inf"}, [] { temperature({std::numeric_limits<double>::infinity()}); });
  expect_refused("temperature", {"nan"}, [] { temperature({std::numeric_limits<double>::quiet_NaN()}); });
  expect_refused("temperature", {"1e+300"}, [] { temperature({1e300}); });
  expect_refused("temperature", {"1e+39"}, [] { temperature({1e39}); });
  expect_refused("slope", {"slope 1", "inf"}, [] { alibi({1, std::numeric_limits<double>::infinity()}); });
  expect_all_refuse("temperature", {"2", "6"}, kQ, kK, kV, temperature({1, 1}));
  expect_refused("sink", {"sinks[1]", "inf"}, [] { sinks({0, std::numeric_limits<double>::infinity()}); });
  expect_refused("sink", {"nan"}, [] { sinks({std::numeric_limits<double>::quiet_NaN()}); });
  expect_refused("sink", {"1e+300"}, [] { sinks({1e300}); });
  expect_all_refuse("sinks", {"5", "6"}, kQ, kK, kV, sinks(std::vector<double>(5)));
  expect_refused("even columns", {"4"}, [] { relative_bias(Tensor<float, 2>({6, 4})); });
  expect_all_refuse("table", {"(5, 7)", "(1, 1, 6, 7)"}, kQ, kK, kV, relative_bias(Tensor<float, 2>({5, 7})));
  expect_all_refuse("table", {"(6, 31)", "(1, 1, 6, 32)"}, kQ, kK, kV,
                    relative_bias(Tensor<float, 2>({6, 31}), T5Buckets()));
  expect_refused("buckets", {"2", "128"}, [] { T5Buckets(2); });
  expect_refused("odd buckets", {"33"}, [] { T5Buckets(33); });
  expect_refused("distance", {"32", "8"}, [] { T5Buckets(32, 8); });
  expect_refused("distance", {"1099511627776"}, [] { T5Buckets(32, Index(1) << 40); });
}

}  // namespace
}  // namespace attn::test
