// Decoding over caches distributed over ranks, against the oracle and a single cache of all tokens.
#include "ranks.h"
#include "support/erased_rows.h"
#include "support/executors.h"
#include "support/paths.h"

namespace attn::test {

/// This rank's tokens of a sequence: the first `prompt` tokens are distributed by the layout, the others round robin.
std::vector<Index> own_tokens(mpi::Ring& ring, Index len, Index prompt) {
  std::vector<Index> tokens;
  for (Index i = 0; i < ring.rows(prompt); ++i) tokens.push_back(ring.token(prompt, i));
  for (Index t = prompt; t < len; ++t)
    if (t % ring.ranks() == ring.rank()) tokens.push_back(t);
  return tokens;
}
template <class T>
Tensor<T, 4> rows_of(const TensorView<const T, 4>& all, const std::vector<Index>& tokens) {
  auto rows = Tensor<T, 4>::uninitialized({all.dim(0), all.dim(1), static_cast<Index>(tokens.size()), all.dim(3)});
  for (Index b = 0; b < rows.dim(0); ++b)
    for (Index h = 0; h < rows.dim(1); ++h)
      for (Index i = 0; i < rows.dim(2); ++i)
        for (Index j = 0; j < rows.dim(3); ++j) rows(b, h, i, j) = all(b, h, tokens[static_cast<std::size_t>(i)], j);
  return rows;
}

/// A paged cache of some sequences, with pages in no particular order.
template <class T>
struct Paged {
  Paged(Index sequences, Index kv_heads, Index head_dim, Index v_dim, Index page_size)
      : cache({.pages = 600 / page_size + 20,
               .page_size = page_size,
               .kv_heads = kv_heads,
               .head_dim = head_dim,
               .v_dim = v_dim}) {
    const Tensor<float, 4> k({1, kv_heads, 1, head_dim}), v({1, kv_heads, 1, v_dim});
    std::vector<Index> others;
    for (int i = 0; i < 8; ++i) cache.append(others.emplace_back(cache.add()), k, v);
    for (const int i : {3, 0, 5, 6}) cache.release(others[static_cast<std::size_t>(i)]);
    for (Index s = 0; s < sequences; ++s) ids.push_back(cache.add());
  }
  auto view() const { return cache.view(ids); }

  PagedKvCache<T> cache;
  std::vector<Index> ids;
};

/// All mods, over contiguous caches and over paged caches in which a section may begin within a page.
template <class T>
void check_every_mod_of_caches() {
  for_each_ring(61, [&](mpi::Ring& ring, Random& random, Sample& sample) {
    Sizes s{random.integer(1, 2),  1,
            random.integer(1, 2),  random.integer(1, 5),
            random.integer(0, 60), random.integer(1, 9),
            random.integer(1, 9)};
    s.heads = s.kv_heads * random.integer(1, 2);
    Inputs inputs(s, random);
    inputs.template round_to<T>();
    Arguments<T> a(inputs);
    const Index prompt = random.integer(0, s.kv_len), page_size = random.integer(1, 7);
    const Numbers numbers;
    each_erased_row({s, numbers, random}, [&](const auto& row) {
      if (!sample.takes_next()) return;
      SCOPED_TRACE(std::string(row.name) + ", prompt of " + std::to_string(prompt) + " of " + std::to_string(s.kv_len) +
                   ", pages of " + std::to_string(page_size));
      const auto tokens = own_tokens(ring, s.kv_len, prompt);
      const auto k = rows_of<T>(a.k.cview(), tokens), v = rows_of<T>(a.v.cview(), tokens);
      KvCache<T> cache({.batch = s.batch, .kv_heads = s.kv_heads, .head_dim = s.head_dim, .v_dim = s.v_dim});
      cache.append(k, v);
      Paged<T> paged(s.batch, s.kv_heads, s.head_dim, s.v_dim, page_size);
      paged.cache.append(paged.ids, k, v);
      const auto in_one = ring.decode(a.q.cview(), mpi::grown(cache, {prompt}), row.mod);
      const auto in_pages = ring.decode(a.q.cview(), mpi::grown(paged, {prompt}), row.mod);
      const Tensor<T, 4> of_root = ring.gather(ring.scatter(in_pages.out, 0));
      EXPECT_TRUE(same_bits(plain(of_root), plain(in_pages.out)));  // on all ranks
      if (ring.rank() != 0 || ::testing::Test::HasFailure()) return;
      const Truth truth = oracle(inputs, row.meaning, numbers);
      const Computed<T> by_definition = naive(a, row.mod);
      expect_close(truth, by_definition, Computed<T>{plain(in_one.out), plain(in_one.lse)},
                   lse_error<T>(default_isa()));
      expect_close(truth, by_definition, Computed<T>{plain(in_pages.out), plain(in_pages.lse)},
                   lse_error<T>(default_isa()));
    });
  });
}

TEST(Caches, EveryMod) { check_every_mod_of_caches<float>(); }
TEST(Caches, EveryModBFloat16) { check_every_mod_of_caches<Eigen::bfloat16>(); }

/// Sequences of different lengths, numbers of queries and positions, in float and in 8 bits, against a single cache of
/// all tokens.
template <class S>
void check_sequences() {
  for_each_ring(62, [&](mpi::Ring& ring, Random& random, Sample&) {
    const std::vector<Index> lens{40, 0, 1, 333, 14}, queries{1, 2, 1, 5, 3};
    const Shape<4> of_queries{1, 4, 12, 16};
    const auto q = drawn<float>(of_queries, 7);
    const Index page_size = random.integer(1, 50);
    Paged<S> whole(5, 2, 16, 6, page_size), own(5, 2, 16, 6, page_size);
    for (std::size_t s = 0; s < lens.size(); ++s) {
      const auto k = drawn<float>({1, 2, lens[s], 16}, 70 + s), v = drawn<float>({1, 2, lens[s], 6}, 80 + s);
      const auto tokens = own_tokens(ring, lens[s], lens[s]);
      whole.cache.append({whole.ids[s]}, k, v);
      own.cache.append({own.ids[s]}, rows_of<float>(k.view(), tokens), rows_of<float>(v.view(), tokens));
    }
    const auto mods = attn::sinks({0, 1, 2, 3}) | attn::causal() | attn::score_mod([](auto x, auto p) {
                        return x + 0.25f * float(p.head) + 0.01f * float(p.kv) - 0.02f * float(p.q * p.batch);
                      });
    for (const Options& options :
         {Options(), Options{.scale = 0.5, .q_offsets = {39, -1, 5, 328, 2}}, Options{.kv_offset = 100}}) {
      const auto want = attn::attention(attn::ragged(q, queries), whole, mods, options);
      const auto got = ring.decode(attn::ragged(q, queries), own, mods, options);
      Options of_threads = options;
      of_threads.executor = eager_threads(3);
      EXPECT_TRUE(same_bits(plain(ring.decode(attn::ragged(q, queries), own, mods, of_threads).out), plain(got.out)));
      for (Index i = 0; i < want.out.size(); ++i) ASSERT_NEAR(got.out.data()[i], want.out.data()[i], 2e-5) << i;
      for (Index i = 0; i < want.lse.size(); ++i) {
        if (std::isinf(want.lse.data()[i]))
          ASSERT_EQ(got.lse.data()[i], want.lse.data()[i]) << i;
        else
          ASSERT_NEAR(got.lse.data()[i], want.lse.data()[i], 2e-5) << i;
      }
    }
  });
}

TEST(Caches, Sequences) { check_sequences<float>(); }
TEST(Caches, SequencesOfEightBits) { check_sequences<std::int8_t>(); }

/// Generation: each token is appended on one rank, and all ranks get the output for the next.
TEST(Caches, Generation) {
  for_each_ring(63, [](mpi::Ring& ring, Random&, Sample&) {
    constexpr Index kPrompt = 21, kLen = 33;
    const auto k = drawn<float>({2, 2, kLen, 8}, 1), v = drawn<float>({2, 2, kLen, 8}, 2);
    KvCache<float> whole({.batch = 2, .kv_heads = 2, .head_dim = 8}), own(whole.config());
    const auto tokens = own_tokens(ring, kPrompt, kPrompt);
    whole.append(k.slice(2, 0, kPrompt), v.slice(2, 0, kPrompt));
    own.append(rows_of<float>(k.view(), tokens), rows_of<float>(v.view(), tokens));
    for (Index t = kPrompt; t < kLen; ++t) {
      const auto q = drawn<float>({2, 4, 1, 8}, static_cast<std::uint64_t>(t));
      whole.append(k.slice(2, t, t + 1), v.slice(2, t, t + 1));
      if (t % ring.ranks() == ring.rank()) own.append(k.slice(2, t, t + 1), v.slice(2, t, t + 1));
      const auto mods = attn::sliding_window(15);
      const auto want = attn::attention(q, whole, mods), got = ring.decode(q, attn::mpi::grown(own, {kPrompt}), mods);
      for (Index i = 0; i < want.out.size(); ++i) ASSERT_NEAR(got.out.data()[i], want.out.data()[i], 1e-5) << t;
      if (ring.layout() == mpi::Layout::striped) {
        const auto as_layout_says = ring.decode(q, own, mods);
        EXPECT_TRUE(same_bits(plain(as_layout_says.out), plain(got.out)));
      }
    }
  });
}

TEST(Caches, Sigmoid) {
  for_each_ring(64, [](mpi::Ring& ring, Random&, Sample&) {
    const auto q = drawn<float>({2, 4, 3, 8}, 1), k = drawn<float>({2, 2, 33, 8}, 2),
               v = drawn<float>({2, 2, 33, 8}, 3);
    KvCache<float> own({.batch = 2, .kv_heads = 2, .head_dim = 8});
    own.append(ring.scatter(k), ring.scatter(v));
    const Options options{.normaliser = Normaliser::sigmoid(-1)};
    const auto whole = attn::attention(q, k, v, attn::causal(), options);
    const auto r = ring.decode(q, own, attn::causal(), options);
    EXPECT_EQ(r.lse.size(), 0);
    for (Index i = 0; i < whole.out.size(); ++i) EXPECT_NEAR(r.out.data()[i], whole.out.data()[i], 1e-5);
  });
}

}  // namespace attn::test
