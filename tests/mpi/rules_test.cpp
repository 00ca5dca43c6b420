// Rules for all ranks: the same errors everywhere, no waiting for a failed rank, traffic, memory and reproducible bits.
#include <atomic>
#include <cstring>
#include <memory>
#include <stdexcept>

#include "ranks.h"
#include "support/executors.h"

namespace attn::test {

/// Returns the message that `call` throws on this rank. All ranks must throw the same, and the ring must still work.
template <class Call>
std::string refusal(mpi::Ring& ring, const Call& call) {
  std::string text = "nothing";
  try {
    call();
  } catch (const std::invalid_argument& e) {
    text = e.what();
  }
  // As a tensor, so that all ranks see the message of rank 0.
  Tensor<char, 2> of_rank({text.size() + 1 > 512 ? 0 : 512, 1});
  std::copy(text.begin(), text.end(), of_rank.data());
  char first[512] = "";
  std::memcpy(first, of_rank.data(), sizeof(first));
  Tensor<char, 2> tensor({512, 1});
  std::memcpy(tensor.data(), first, sizeof(first));
  const auto from_root = ring.gather(ring.scatter(tensor, 0));
  EXPECT_STREQ(from_root.data(), text.c_str()) << "rank " << ring.rank() << " throws a different error than rank 0";
  return text;
}

#define EXPECT_HAS(text, part) EXPECT_NE((text).find(part), std::string::npos) << (text)

TEST(Rules, RanksThatDisagreeAreRefused) {
  for (const int count : {2, 3, 7})
    on_ranks(count, mpi::Layout::contiguous, [](mpi::Ring& ring) {
      const bool odd = ring.rank() == ring.ranks() - 1;
      const std::string last = std::to_string(ring.ranks() - 1);
      const OwnRows own = own_rows(ring, 40);
      const Tensor<float, 4>&q = own.q, &k = own.k, &v = own.v;
      const auto all = [&](const auto& call) { return refusal(ring, call); };
      EXPECT_EQ(all([&] { ring.attention(q, k, v); }), "nothing");

      const Tensor<float, 4> more_heads(Shape<4>{1, 4, q.dim(2), 8});
      std::string text = all([&] { ring.attention(odd ? more_heads : q, k, v); });
      EXPECT_HAS(text, "the number of heads is 2 on rank 0, 4 on rank " + last);
      text = all([&] { ring.attention(q, k, v, {.scale = odd ? 0.5 : 0.25}); });
      EXPECT_HAS(text, "scale is 0.25 on rank 0, 0.5 on rank " + last);
      text = all([&] { odd ? ring.attention(q, k, v, {.q_offset = 3}) : ring.attention(q, k, v); });
      EXPECT_HAS(text, "q_offset is none on rank 0, 3 on rank " + last);
      if (ring.ranks() == 2) {  // there are two heads
        text = all([&] { ring.attention_by_heads(q, k, v, {.row_invariant = odd}); });
        EXPECT_HAS(text, "Options::row_invariant is 0 on rank 0, 1 on rank 1");
      }
      text = all([&] { odd ? ring.attention(q, k, v, attn::causal()) : ring.attention(q, k, v); });
      EXPECT_HAS(text, "the type of the mods differs between rank 0 and rank " + last);
      text = all([&] { ring.attention(q, k, v, attn::sliding_window(odd ? 7 : 8)); });
      EXPECT_HAS(text, "the mods of rank " + last + " and rank 0");
      text = all([&] { ring.attention(q, k, v, attn::softcap(odd ? 30 : 31)); });
      EXPECT_HAS(text, "the mods of rank");
      text = all([&] { ring.attention(q, k, v, attn::dropout(0.1, odd ? 30 : 31)); });
      EXPECT_HAS(text, "the mods of rank");
      text = all([&] { odd ? ring.attention(q, k, v) : ring.attention_by_heads(q, k, v); });
      EXPECT_HAS(text, ring.ranks() == 2 ? "the function called differs between rank 0 and rank 1" : "rank 0: ");
      const Tensor<float, 4> fewer_rows(q.slice(2, 0, q.dim(2) - 2));
      text = all([&] { ring.attention(odd ? fewer_rows : q, k, v); });
      EXPECT_HAS(text, "of 38 tokens on " + std::to_string(ring.ranks()) + " ranks");
      text = all([&] { ring.decode(odd ? fewer_rows : q, k, v); });
      EXPECT_HAS(text, "q_len is");
      text = all([&] { odd ? (void)ring.gather(q) : (void)ring.gather(more_heads); });
      EXPECT_HAS(text, "gather: the tensor has shape");
      text = all([&] { ring.gather(q, odd ? 0 : 1); });
      EXPECT_HAS(text, "gather: the root is 1 on rank 0, 0 on rank " + last);
      text = all([&] { ring.attention(q, k, v, {.interleaved_heads = true}); });
      EXPECT_HAS(text, "a Ring needs consecutive query heads that share a key head");
      text = all([&] { ring.gather(q, 99); });
      EXPECT_HAS(text, "root 99 is out of range");
      const auto r = ring.attention(q, k, v);
      const Tensor<Eigen::bfloat16, 4> short_grad(q.shape());
      text =
          all([&] { odd ? ring.attention_backward(short_grad, q, k, v, r) : ring.attention_backward(q, q, k, v, r); });
      EXPECT_HAS(text, "the scalar type of grad_out differs between rank 0 and rank " + last);
      text = all([&] { odd ? ring.attention_backward(r, q, k, v, r) : ring.attention_backward(q, q, k, v, r); });
      EXPECT_HAS(text, "the number of lse gradients is 0 on rank 0, 1 on rank " + last);
      EXPECT_EQ(all([&] { ring.attention(q, k, v, attn::causal()); }), "nothing");
    });
}

TEST(Rules, ErrorsOfOneRankAreThrownOnAll) {
  on_ranks(3, mpi::Layout::zigzag, [](mpi::Ring& ring) {
    const bool odd = ring.rank() == 1;
    const OwnRows own = own_rows(ring, 40);
    const Tensor<float, 4>&q = own.q, &k = own.k, &v = own.v;
    const auto all = [&](const auto& call) { return refusal(ring, call); };
    const Tensor<float, 4> wide(Shape<4>{1, 2, k.dim(2), 9});
    std::string text = all([&] { ring.attention(q, odd ? wide : k, v); });
    EXPECT_HAS(text, "attn: rank 1: head_dim differs: query has 8, key has 9");
    std::byte memory[64];
    Options with_memory;
    with_memory.workspace = memory;
    text = all([&] { ring.attention(q, k, v, with_memory); });
    EXPECT_HAS(text, "Options::workspace must be empty, but has 64 bytes");
    text = all([&] { ring.attention(q, k, v, {.row_invariant = true}); });
    EXPECT_HAS(text, "bits depend on the layout; use attention_by_heads()");
    text = all([&] { ring.decode(q, k, v, {.row_invariant = true}); });
    EXPECT_HAS(text, "bits depend on the layout; use attention_by_heads()");
    const std::vector<Index> lengths{40, 40};
    text = all([&] { ring.attention(q, k, v, attn::key_lengths(lengths)); });
    EXPECT_HAS(text, "key_lengths");
    text = all([&] { ring.attention_by_heads(q, k, v); });
    EXPECT_HAS(text, "there are 2 heads for 3 ranks");
    const auto r = ring.attention(q, k, v);
    text = all([&] { ring.attention_by_heads_backward(q, q, k, v, r); });
    EXPECT_HAS(text, "attention_by_heads_backward: there are 2 heads for 3 ranks");
    text = all([&] { ring.attention_backward(odd ? Tensor<float, 4>({1, 2, 1, 8}) : q, q, k, v, r); });
    EXPECT_HAS(text, "attn: rank 1: grad_out has shape (1, 2, 1, 8)");
  });
}

TEST(Rules, CachesThatContradictTheLayout) {
  on_ranks(3, mpi::Layout::contiguous, [](mpi::Ring& ring) {
    const bool odd = ring.rank() == 1;
    const auto q = drawn<float>({1, 2, 1, 8}, 1);
    const auto all = [&](const auto& call) { return refusal(ring, call); };
    const auto of = [&](const KvCacheConfig& config, Index tokens) {
      KvCache<float> cache(config);
      const Tensor<float, 4> rows({config.batch, 2, tokens, 8});
      cache.append(rows, rows);
      return cache;
    };
    const KvCacheConfig one{.kv_heads = 2, .head_dim = 8};
    EXPECT_EQ(all([&] { ring.decode(q, of(one, 4)); }), "nothing");
    std::string text = all([&] { ring.decode(q, of(one, odd ? 5 : 4)); });
    EXPECT_HAS(text, "decode: rank 1 has 5 tokens of sequence 0, but the layout gives it 4 of 13 tokens on 3 ranks");
    EXPECT_HAS(text, "attn::mpi::grown()");
    text = all([&] { ring.decode(q, mpi::grown(of(one, odd ? 5 : 4), {12})); });  // token 12 belongs to rank 0
    EXPECT_HAS(text, "rank 0 has 4 tokens of sequence 0, but the layout gives it 5 of 13 tokens on 3 ranks");
    text = all([&] { ring.decode(q, mpi::grown(of(one, 4), {odd ? 5 : 12})); });
    EXPECT_HAS(text, "the list of prompt lengths differs between rank 0 and rank 1");
    text = all([&] { ring.decode(q, mpi::grown(of(one, 4), {1, 2})); });
    EXPECT_HAS(text, "grown: got 2 prompt lengths for 1 sequences");
    text = all([&] { ring.decode(q, mpi::grown(of(one, 4), {-1})); });
    EXPECT_HAS(text, "grown: prompts[0] must not be negative, but is -1");
    KvCacheConfig two = one, with_rope = one;
    two.batch = 2;
    with_rope.rope = Rope({.head_dim = 8});
    text = all([&] { ring.decode(q, of(odd ? two : one, 4)); });
    EXPECT_HAS(text, "rank 1: batch differs: query has 1, the cache has 2 sequences");
    text = all([&] { ring.decode(odd ? drawn<float>({2, 2, 1, 8}, 1) : q, of(odd ? two : one, 4)); });
    EXPECT_HAS(text, "batch is 1 on rank 0, 2 on rank 1");
    text = all([&] { ring.decode(q, of(odd ? with_rope : one, 4)); });
    EXPECT_HAS(text, "rank 1: decode: the cache rotates keys by their rows on this rank");
    text = all([&] { ring.decode(q, of(one, 4), attn::sliding_window(odd ? 3 : 4)); });
    EXPECT_HAS(text, "the mods of rank 1 and rank 0");
  });
}

/// If a mod throws on one rank in the middle of a call, all ranks throw, and the ring still works.
TEST(Rules, ThrowingModsEndCallsOnAllRanks) {
  for (const int count : {1, 2, 3, 7})
    for (const mpi::Layout layout : kRankLayouts)
      on_ranks(count, layout, [&](mpi::Ring& ring) {
        const int odd = ring.ranks() / 2;
        const OwnRows own = own_rows(ring, 300, 8, 8);
        const Tensor<float, 4>&q = own.q, &k = own.k, &v = own.v;
        const auto r = ring.attention(q, k, v);
        // The first 500 calls succeed, so that it does not throw while ranks compare their mods.
        const auto throwing = [&, calls = std::make_shared<std::atomic<int>>(0)](auto) {
          if (ring.rank() == odd && ++*calls > 500) throw std::domain_error("the mod failed");
          return true;
        };
        const auto expect = [&](const auto& call) {
          try {
            call();
            ADD_FAILURE() << "nothing was thrown";
          } catch (const mpi::RankError& e) {
            EXPECT_NE(ring.rank(), odd);
            EXPECT_EQ(e.rank(), odd);
            EXPECT_EQ(e.what(), "attn: rank " + std::to_string(odd) + " failed: the mod failed");
          } catch (const std::domain_error&) {
            EXPECT_EQ(ring.rank(), odd);
          }
        };
        const auto mod = attn::mask_mod(throwing);
        expect([&] { ring.attention(q, k, v, mod); });
        expect([&] { ring.attention_backward(q, q, k, v, r, mod); });
        expect([&] { ring.decode(drawn<float>({1, 8, 3, 8}, 5), k, v, mod); });
        KvCache<float> cache({.kv_heads = 8, .head_dim = 8});
        cache.append(k, v);
        expect([&] { ring.decode(drawn<float>({1, 8, 3, 8}, 5), cache, mod); });
        expect([&] { ring.attention_by_heads(q, k, v, mod); });
        expect([&] { ring.attention_by_heads_backward(q, q, k, v, r, mod); });
        const auto again = ring.attention(q, k, v);
        EXPECT_EQ(std::memcmp(again.out.data(), r.out.data(), static_cast<std::size_t>(r.out.size()) * sizeof(float)),
                  0);
      });
}

/// Only a window's keys are sent to the next rank; under a causal mask no keys are sent to earlier ranks.
TEST(Rules, SendsOnlyNeededKeys) {
  on_ranks(4, mpi::Layout::contiguous, [](mpi::Ring& ring) {
    constexpr Index kLen = 4096, kWindow = 256, kRow = 2 * 2 * 8 * sizeof(float);  // keys and values of two heads
    auto [q, k, v] = own_rows(ring, kLen);
    const auto r = ring.attention(q, k, v, attn::sliding_window(kWindow));
    EXPECT_EQ(ring.traffic().bytes_sent, ring.rank() < 3 ? kWindow * kRow : 0);
    ring.attention_backward(q, q, k, v, r, attn::sliding_window(kWindow));
    const Index there = ring.rank() < 3 ? kWindow * kRow : 0, back = ring.rank() > 0 ? kWindow * kRow : 0;
    EXPECT_EQ(ring.traffic().bytes_sent, there + back);
    ring.attention(q, k, v, attn::causal());
    EXPECT_EQ(ring.traffic().bytes_sent, (3 - ring.rank()) * kLen / 4 * kRow);
    ring.attention(q, k, v, attn::key_lengths({kLen / 4}));
    EXPECT_EQ(ring.traffic().bytes_sent, ring.rank() == 0 ? 3 * kLen / 4 * kRow : 0);
  });
  on_ranks(4, mpi::Layout::zigzag, [](mpi::Ring& ring) {
    constexpr Index kLen = 4096, kWindow = 100, kRow = 2 * 2 * 8 * sizeof(float);
    auto [q, k, v] = own_rows(ring, kLen);
    ring.attention(q, k, v, attn::sliding_window(kWindow));
    // Each piece but the last is sent to the next piece's rank; pieces 3 and 4 are on the same rank.
    EXPECT_EQ(ring.traffic().bytes_sent, (ring.rank() == 3 || ring.rank() == 0 ? 1 : 2) * kWindow * kRow);
  });
}

/// Buffers hold at most as many keys and values as a rank owns, and four times that in the backward pass, with
/// gradients.
TEST(Rules, MemoryOfBuffers) {
  for_each_ring(41, [](mpi::Ring& ring, Random&, Sample&) {
    const Index len = 1100 * ring.ranks();
    const auto [q, k, v] = own_rows(ring, len, 1, 1, 4);
    const Index block = (k.size() + v.size()) * static_cast<Index>(sizeof(float));
    const auto r = ring.attention(q, k, v, {.isa = std::nullopt});
    EXPECT_LE(ring.traffic().bytes_held, block + block / 64);
    ring.attention_backward(q, q, k, v, r);
    EXPECT_LE(ring.traffic().bytes_held, 4 * block);
    EXPECT_GT(ring.traffic().bytes_held, ring.ranks() > 1 ? block : 0);
  });
}

/// The same bits from run to run, with any executor and any timing of messages. Seven query heads share each of the two
/// key heads, so some ranks share a key head.
TEST(Rules, BitsDependOnlyOnRanks) {
  for_each_ring(42, [](mpi::Ring& ring, Random&, Sample&) {
    const auto [q, k, v] = own_rows(ring, 600, 14, 2);
    const auto same = [](const auto& a, const auto& b) {
      return a.size() == b.size() &&
             (a.size() == 0 ||
              std::memcmp(a.data(), b.data(), static_cast<std::size_t>(a.size()) * sizeof(float)) == 0);
    };
    const auto same_gradients = [&](const auto& a, const auto& b) {
      return same(a.query, b.query) && same(a.key, b.key) && same(a.value, b.value);
    };
    const auto mods = attn::causal() | attn::dropout(0.1, 3);
    const auto r = ring.attention(q, k, v, mods, {.executor = serial()});
    const auto g = ring.attention_backward(q, q, k, v, r, mods, {.executor = serial()});
    const auto g_by_heads = ring.attention_by_heads_backward(q, q, k, v, r, mods, {.executor = serial()});
    for (int round = 0; round < 2; ++round) {
      const Options options{.executor = round == 0 ? eager_threads(3) : serial()};
      const auto again = ring.attention(q, k, v, mods, options);
      EXPECT_TRUE(same(again.out, r.out) && same(again.lse, r.lse));
      EXPECT_TRUE(same_gradients(ring.attention_backward(q, q, k, v, r, mods, options), g));
      EXPECT_TRUE(same_gradients(ring.attention_by_heads_backward(q, q, k, v, r, mods, options), g_by_heads));
    }
  });
}

/// Each rank sums gradients of learned mods over its own queries or heads; the sum over ranks is that of the whole
/// sequence.
TEST(Rules, LearnedGradientsSumOverRanks) {
  for_each_ring(43, [](mpi::Ring& ring, Random&, Sample&) {
    const Index len = 30, heads = 8;
    const auto q = drawn<float>({1, heads, len, 4}, 1), k = drawn<float>({1, 2, len, 4}, 2),
               v = drawn<float>({1, 2, len, 4}, 3), grad_out = drawn<float>({1, heads, len, 4}, 4);
    const auto gradients = [&](const auto& call) {
      Tensor<float, 3> bias({heads, len, len}), grad_bias({heads, len, len});
      Tensor<double, 1> grad_logits({heads});
      call(attn::bias(bias, grad_bias) | attn::sinks({0.5, -0.25, 1, 0, 2, -1, 0.75, 0.125}, grad_logits));
      std::vector<double> all(grad_bias.data(), grad_bias.data() + grad_bias.size());
      all.insert(all.end(), grad_logits.data(), grad_logits.data() + heads);
      return all;
    };
    const auto whole = gradients(
        [&](const auto& mods) { attn::attention_backward(grad_out, q, k, v, attn::attention(q, k, v, mods), mods); });
    const auto expect_whole_sum = [&](const std::vector<double>& own, const char* what) {
      // Sums over ranks by scattering and gathering each rank's values.
      Tensor<double, 2> rows({static_cast<Index>(own.size()), 1});
      std::vector<double> sum(own.size());
      for (int r = 0; r < ring.ranks(); ++r) {
        std::copy(own.begin(), own.end(), rows.data());
        const auto of_rank = ring.gather(ring.scatter(rows, r));
        for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += of_rank.data()[i];
      }
      for (std::size_t i = 0; i < sum.size(); ++i) ASSERT_NEAR(sum[i], whole[i], 1e-5) << what << ' ' << i;
    };
    const auto own_q = ring.scatter(q), own_k = ring.scatter(k), own_v = ring.scatter(v),
               own_grad = ring.scatter(grad_out);
    expect_whole_sum(gradients([&](const auto& mods) {
                       const auto r = ring.attention(own_q, own_k, own_v, mods);
                       ring.attention_backward(own_grad, own_q, own_k, own_v, r, mods);
                     }),
                     "ring");
    expect_whole_sum(gradients([&](const auto& mods) {
                       const auto r = ring.attention_by_heads(own_q, own_k, own_v, mods);
                       ring.attention_by_heads_backward(own_grad, own_q, own_k, own_v, r, mods);
                     }),
                     "by heads");
  });
}

}  // namespace attn::test
