// The flash path's memory is linear in the length: all of its heap allocations are counted.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <limits>
#include <span>
#include <stdexcept>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "attn/attn.h"
#include "support/allocations.h"
#include "support/executors.h"

#include <gtest/gtest.h>

namespace attn::test {
namespace {

TEST(Memory, CountingSeesEveryKindOfAllocation) {
  const auto expect = [](const char* what, const auto& call) {
    const Allocations a = allocations_of(call);
    EXPECT_GE(a.peak, 100000) << what;
    EXPECT_LT(a.peak, 110000) << what;
    EXPECT_LT(std::abs(a.in_use), 1000) << what;
  };
  static void* volatile p;  // prevents the compiler from eliding the allocation and its release
  expect("new", [] { p = ::operator new(100000), ::operator delete(p); });
  expect("aligned new",
         [] { p = ::operator new(100000, std::align_val_t(64)), ::operator delete(p, std::align_val_t(64)); });
  expect("malloc", [] { p = std::malloc(100000), std::free(p); });
  expect("calloc", [] { p = std::calloc(1000, 100), std::free(p); });
  expect("realloc", [] { p = std::realloc(std::malloc(10), 100000), std::free(p); });
  expect("aligned_alloc", [] { p = std::aligned_alloc(64, 100032), std::free(p); });
  expect("Eigen", [] {
    Eigen::MatrixXf m(250, 100);
    p = m.data();
  });
  expect("Tensor", [] {
    Tensor<float, 1> t({25000});
    p = t.data();
  });
}

struct Arrays {
  Tensor<float, 4> q, k, v, out;
  Tensor<float, 3> lse;

  explicit Arrays(Index n, Index dim = 64)
      : q({1, 1, n, dim}), k({1, 1, n, dim}), v({1, 1, n, dim}), out({1, 1, n, dim}), lse({1, 1, n}) {
    for (auto* t : {&q, &k, &v})
      for (Index i = 0; i < t->size(); ++i) t->data()[i] = static_cast<float>(i * 7 % 31) / 31;
  }
};

/// An aligned block is rounded up by at most this many bytes, depending on where the heap places it.
constexpr std::ptrdiff_t kRounding = 64;
void expect_equal_but_for_rounding(std::ptrdiff_t a, std::ptrdiff_t b) {
  EXPECT_NEAR(static_cast<double>(a), static_cast<double>(b), kRounding);
}

/// The peak beyond inputs and outputs, for a call into the caller's memory.
template <class M>
std::ptrdiff_t extra_bytes(Index n, const M& mods, const Executor& executor) {
  Arrays a(n);
  attention_into(a.out, a.lse, a.q, a.k, a.v, mods, {.executor = executor});  // lazily started threads start now
  return allocations_of([&] { attention_into(a.out, a.lse, a.q, a.k, a.v, mods, {.executor = executor}); }).peak;
}

template <class M>
void expect_linear(const char* what, const M& mods) {
  for (const auto& [name, executor] : {std::pair{"serial", serial()}, std::pair{"3 threads", eager_threads(3)}}) {
    const std::ptrdiff_t half = extra_bytes(2048, mods, executor), whole = extra_bytes(4096, mods, executor);
    const std::ptrdiff_t scores = 4096l * 4096l * static_cast<std::ptrdiff_t>(sizeof(float));
    EXPECT_LE(whole, 2 * half + 4096) << what << ", " << name;
    EXPECT_LT(whole, scores / 50) << what << ", " << name;
    ::testing::Test::RecordProperty((::testing::Message() << what << " " << name).GetString(), std::to_string(whole));
  }
}

TEST(Memory, FlashIsLinear) {
  expect_linear("plain", full());
  expect_linear("causal", causal());
  expect_linear("masks and scores", causal() | softcap(5) | key_lengths({2000}) | alibi({0.5}));
  expect_linear("lambda", mask_mod([](auto p) { return (p.q + p.kv) % 3 != 0; }));
}

TEST(Memory, OneThreadNeedsFourTiles) {
  // The queries, output and a few rows of statistics of four tiles, and the scores of one: below 128 KiB at head_dim
  // 64, whatever the length.
  const std::ptrdiff_t small = extra_bytes(512, causal(), serial()), large = extra_bytes(4096, causal(), serial());
  expect_equal_but_for_rounding(small, large);
  EXPECT_LT(large, 128 * 1024);
  RecordProperty("bytes", std::to_string(large));
  // With more than 4096 keys (one stretch), each tile also holds the totals of its output, and their rest.
  const std::ptrdiff_t longer = extra_bytes(4160, causal(), serial());
  expect_equal_but_for_rounding(longer, extra_bytes(16384, causal(), serial()));
  EXPECT_LT(longer, 224 * 1024);
}

/// Returns the peak memory of the second of two equal calls. Used for keys and values with strides that kernels cannot
/// read in place.
template <class Call>
std::ptrdiff_t peak_of_second(const Call& call) {
  call();
  return allocations_of(call).peak;
}

std::ptrdiff_t extra_bytes_column_major(Index q_len, Index kv_len) {
  const Eigen::MatrixXf q = Eigen::MatrixXf::Constant(q_len, 64, 0.5f), k = Eigen::MatrixXf::Constant(kv_len, 64, 0.5f);
  Eigen::MatrixXf out(q_len, 64);
  Eigen::VectorXf lse(q_len);
  return peak_of_second([&] { attention_into(out, lse, q, k, k, causal(), {.executor = serial()}); });
}

std::ptrdiff_t extra_bytes_every_third(Index q_len, Index kv_len) {
  const auto spread = [](Tensor<float, 4>& t) {
    return TensorView<float, 4>(t.data(), {1, 2, t.dim(2), 64}, {t.dim(2) * 64 * 3, t.dim(2) * 64 * 3, 64 * 3, 3});
  };
  Tensor<float, 4> q({2, 1, q_len, 64 * 3}), k({2, 1, kv_len, 64 * 3}), out(q.shape());
  return peak_of_second(
      [&] { attention_into(spread(out), spread(q), spread(k), spread(k), causal(), {.executor = serial()}); });
}

TEST(Memory, AnyStridesNeedOneBlock) {
  // Keys and values are copied four tiles of 64 rows at a time, for up to sixteen tiles of queries, whatever the
  // length.
  constexpr std::ptrdiff_t kMost = 640 * 1024;
  for (const auto extra : {extra_bytes_column_major, extra_bytes_every_third}) {
    expect_equal_but_for_rounding(extra(512, 2048), extra(512, 4096));
    expect_equal_but_for_rounding(extra(3500, 512), extra(7000, 512));
    expect_equal_but_for_rounding(extra(3500, 2048), extra(4096, 4096));
    EXPECT_LT(extra(4096, 4096), kMost);
    // A single query: its keys are split into one part per task, each of which stores a result.
    EXPECT_LT(extra(1, 4096), kMost);
    expect_equal_but_for_rounding(extra(1, 70'000), extra(1, 90'000));
  }
}

TEST(Memory, ASlidingWindowTouchesOnlyItsKeys) {
  // One query at the end of many column-major keys: keys outside its window are neither copied nor read, so they may be
  // in unreadable pages.
  constexpr Index kKeys = 50000, kDim = 64, kWindow = 100;
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  const std::size_t bytes = (kKeys * kDim * sizeof(float) + page - 1) / page * page;
  void* const memory = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  float* const keys = static_cast<float*>(memory);
  for (Index column = 0; column < kDim; ++column) {
    const auto begin = static_cast<std::size_t>((column + 1) * kKeys - kWindow) * sizeof(float);
    const auto end = static_cast<std::size_t>((column + 1) * kKeys) * sizeof(float);
    const std::size_t first = begin / page * page;
    ASSERT_EQ(mprotect(static_cast<char*>(memory) + first, end - first, PROT_READ | PROT_WRITE), 0);
    std::fill_n(keys + (column + 1) * kKeys - kWindow, kWindow, 0.5f);
  }
  const Eigen::Map<const Eigen::MatrixXf> k(keys, kKeys, kDim);
  for (Index q_len : {1, 5}) {  // by the kernels for single queries, and by those for tiles
    const Eigen::MatrixXf q = Eigen::MatrixXf::Constant(q_len, kDim, 0.5f), half = q;
    Eigen::MatrixXf out(q_len, kDim);
    const auto mods = sliding_window(kWindow - q_len);
    EXPECT_LT(peak_of_second([&] { attention_into(out, q, k, k, mods, {.executor = serial()}); }), 320 * 1024);
    EXPECT_TRUE(out.isApprox(half, 1e-6f)) << out;
  }
  munmap(memory, bytes);
}

TEST(Memory, AttentionAllocatesItsResultAndFourTiles) {
  const Arrays a(4096);
  const auto taken = allocations_of([&] { attention(a.q, a.k, a.v, causal(), {.executor = serial()}); });
  const std::ptrdiff_t result = 4096 * (64 + 1) * static_cast<std::ptrdiff_t>(sizeof(float));
  // Besides those of the tiles, the log-sum-exps have a second part, which is lost to rounding.
  EXPECT_LT(taken.peak, result + 128 * 1024 + 4096 * static_cast<std::ptrdiff_t>(2 * sizeof(float)));
  EXPECT_LT(std::abs(taken.in_use), 1000);  // all released
}

TEST(Memory, NaiveAllocatesAllScores) {
  // The negative control: the same count sees the quadratic memory of the definition.
  const Arrays a(1024);
  const auto taken = allocations_of([&] { naive_attention(a.q, a.k, a.v, causal(), {.executor = serial()}); });
  EXPECT_GT(taken.peak, 1024 * 1024 * static_cast<std::ptrdiff_t>(sizeof(float)));
}

// Starts all threads now: they allocate when they start, which may be long after the pool is constructed.
void start_all_workers(const Executor& executor) {
  const int workers = executor.concurrency();
  std::atomic<int> started{0};
  executor.run(workers, [&](Index, int) {
    ++started;
    while (started < workers) std::this_thread::yield();
  });
}

TEST(Memory, ACallWithAWorkspaceAllocatesNothing) {
  const Executor executors[] = {serial(), eager_threads(3), threads()};
  for (const Executor& executor : executors) start_all_workers(executor);
  for (const Executor& executor : executors)
    for (Index n : {1, 3, 300, 1000}) {
      Arrays a(n);
      const Tensor<float, 1> added({n});
      const auto expect_none = [&](const auto& mods) {
        Options options{.executor = executor};
        std::vector<std::byte> memory(workspace_bytes(a.q, a.k, a.v, mods, options));
        options.workspace = memory;
        const auto call = [&] { attention_into(a.out, a.q, a.k, a.v, mods, options); };
        call();  // lazily started threads start now
        for (int i = 0; i < 20; ++i)
          EXPECT_EQ(allocations_of(call).calls, 0) << n << " tokens, " << executor.concurrency() << " workers";
      };
      expect_none(causal() | bias(added));
      expect_none(strided_sparse(5) | bias(added));
      expect_none(select(Tensor<int, 2>({n, n / 8})));
      if (n % 20 == 0) expect_none(neighbourhood({n / 20, 20}, {3, 5}) | bias(added));
    }
}

template <class T>
void expect_the_workspace_exact_and_left_alone() {
  // Bytes around the workspace keep their values, even if it is not aligned; one byte less is refused. Its initial
  // contents (NaN as floats) do not matter. A NaN among the values ensures that the last bytes are used as well.
  const auto with_mods = [](const auto& mods, const auto& q, const auto& k, const auto& v, auto out, Options options) {
    const auto expected = attention(q, k, v, mods, options).out;
    const std::size_t bytes = workspace_bytes(q, k, v, mods, options);
    for (const std::size_t shift : {0u, 1u, 63u, 64u}) {
      constexpr std::byte kMark{0xff};
      constexpr std::size_t kMargin = 256;
      std::vector<std::byte> memory(bytes + shift + 2 * kMargin, kMark);
      options.workspace = std::span(memory).subspan(kMargin + shift, bytes);
      attention_into(out, q, k, v, mods, options);
      const Index sound = out.rows() - 1;  // the last query sees the NaN
      EXPECT_EQ(out.topRows(sound), expected.topRows(sound));
      EXPECT_TRUE(out.topRows(sound).template cast<double>().allFinite());
      EXPECT_TRUE(out.row(sound).template cast<double>().hasNaN());
      EXPECT_TRUE(std::all_of(memory.begin(), memory.begin() + kMargin, [](std::byte b) { return b == kMark; }));
      EXPECT_TRUE(std::all_of(memory.end() - kMargin, memory.end(), [](std::byte b) { return b == kMark; }));
      out.setConstant(T(7.0f));
      const auto untouched = out;
      options.workspace = options.workspace.first(bytes - 1);
      EXPECT_THROW(attention_into(out, q, k, v, mods, options), std::invalid_argument);
      EXPECT_EQ(out, untouched);
    }
  };
  const auto expect_inside = [&](const auto& q, const auto& k, const auto& v, const auto& out, const Options& options) {
    with_mods(causal(), q, k, v, out, options);
    auto grouped = strided_sparse(7);
    grouped.grouping.always = true;
    with_mods(grouped, q, k, v, out, options);
    Tensor<Index, 2> lists({q.rows(), k.rows() / 8});
    for (Index i = 0; i < lists.size(); ++i) lists.data()[i] = i * 37 % (k.rows() - 1);
    lists(q.rows() - 1, 0) = k.rows() - 1;
    with_mods(select(lists), q, k, v, out, options);
  };
  using RowMajor = Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
  const auto with_nan_at_the_end = [](RowMajor v) {
    v.row(v.rows() - 1).setConstant(T(std::numeric_limits<float>::quiet_NaN()));
    return v;
  };
  // Many keys of few queries are split; the results of the splits are also in the workspace.
  using Lengths = std::pair<Index, Index>;
  for (const auto& [q_len, kv_len] : {Lengths{1, 128}, {3, 128}, {40, 128}, {200, 128}, {1, 4200}, {3, 4200}}) {
    const auto random = [](Index rows, Index cols) { return RowMajor(Eigen::MatrixXf::Random(rows, cols).cast<T>()); };
    const RowMajor q = random(q_len, 13), k = random(kv_len, 13), v = with_nan_at_the_end(random(kv_len, 21));
    const Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic> columns_k = k, columns_v = v;
    for (const Executor& executor : {serial(), eager_threads(2)}) {
      expect_inside(q, k, v, RowMajor(q_len, 21), {.executor = executor});
      expect_inside(q, columns_k, columns_v, RowMajor(q_len, 21), {.executor = executor});
      for (Isa isa : kIsas)
        if (available(isa)) expect_inside(q, k, columns_v, RowMajor(q_len, 21), {.executor = executor, .isa = isa});
    }
  }
}

TEST(Memory, TheWorkspaceIsExactAndNotOverrunDouble) { expect_the_workspace_exact_and_left_alone<double>(); }
TEST(Memory, TheWorkspaceIsExactAndNotOverrunBfloat16) { expect_the_workspace_exact_and_left_alone<Eigen::bfloat16>(); }

TEST(Memory, ModsWithFewElementsAllocateNothing) {
  // Constructed for each call, as in a control loop: up to eight lengths, slopes or logits are stored inline in the
  // mod.
  Tensor<float, 4> q({8, 8, 2, 16}), k({8, 8, 20, 16}), out({8, 8, 2, 16});
  std::vector<std::byte> memory(workspace_bytes(q, k, k, {.executor = serial()}));
  const auto expect_none = [&](const char* what, const auto& make_mods) {
    const auto call = [&] { attention_into(out, q, k, k, make_mods(), {.executor = serial(), .workspace = memory}); };
    call();
    EXPECT_EQ(allocations_of(call).calls, 0) << what;
  };
  const Index n = 12;
  expect_none("key_lengths", [&] { return causal() | key_lengths({n, n, n, n, n, n, n, 1}); });
  expect_none("query_lengths", [&] { return query_lengths({2, 2, 2, 1, 1, 1, 0, 2}); });
  expect_none("key_ranges", [&] { return key_ranges({0, 1, 2, 3, 4, 5, 6, 7}, {n, n, n, n, n, n, n, n}); });
  expect_none("prefix_lm", [&] { return prefix_lm({n, n, n, n, n, n, n, n}); });
  expect_none("global_tokens", [&] { return any_of(sliding_window(3), global_tokens({5, 0, 1, 1, n})); });
  expect_none("alibi", [&] { return causal() | alibi({.5, .4, .3, .2, .1, .05, .02, .01}); });
  expect_none("sinks", [&] { return sinks({0., 1., 2., 3., 4., 5., 6., 7.}); });
  expect_none("temperature", [&] { return temperature({1., 1., 1., 1., 2., 2., 2., 2.}); });
  Tensor<float, 1> grad({8});
  expect_none("learned", [&] { return alibi({.5, .4, .3, .2, .1, .05, .02, .01}, grad); });
  const std::vector<Index> lengths(8, n);
  const std::vector<float> slopes(8, 0.5f);
  expect_none("vectors", [&] { return key_lengths(lengths) | alibi(slopes); });

  // Nine are stored on the heap.
  static const Index* volatile where;  // so that the allocation is not optimised away
  const auto nine = [&] {
    const Indices list{1, 2, 3, 4, 5, 6, 7, 8, 9};
    where = list.values.data();
  };
  EXPECT_EQ(allocations_of(nine).calls, 1);
  EXPECT_NE(where, nullptr);
}

TEST(Memory, AFixedSizeCallAllocatesNothing) {
  // Neither for its result, which is fixed-size too, nor for its working memory; in either storage order.
  const auto expect_none = [](const auto& q, const auto& k, const auto& v, const auto& mods) {
    using Q = std::remove_cvref_t<decltype(q)>;
    using V = std::remove_cvref_t<decltype(v)>;
    const auto want = naive_attention(q, k, v, mods);
    const auto call = [&] {
      const auto got = attention(q, k, v, mods, {.executor = serial()});
      static_assert(
          std::is_same_v<decltype(got.out), Eigen::Matrix<float, Q::RowsAtCompileTime, V::ColsAtCompileTime,
                                                          Q::IsRowMajor ? Eigen::RowMajor : Eigen::ColMajor>>);
      return (got.out - want.out).cwiseAbs().maxCoeff() + (got.lse - want.lse).cwiseAbs().maxCoeff();
    };
    float difference = call();
    EXPECT_EQ(allocations_of([&] { difference += call(); }).calls, 0);
    EXPECT_LT(difference, 1e-5f);
  };
  const Eigen::Matrix<float, 16, 64> x = Eigen::Matrix<float, 16, 64>::Random();
  const Eigen::Matrix<float, 16, 64, Eigen::RowMajor> rows = x;
  expect_none(x, x, x, Mods<>());
  expect_none(rows, rows, rows, causal());
  expect_none(x, x, Eigen::Matrix<float, 16, 3>(x.leftCols<3>()), causal() | softcap(5));
  // Large or dynamic results are on the heap.
  static_assert(
      std::is_same_v<decltype(attention(x, x, Eigen::MatrixXf(x)).out), Eigen::MatrixXf> &&
      std::is_same_v<decltype(attention(std::declval<Eigen::Map<const Eigen::Matrix<float, 4096, 64>>>(), x, x).out),
                     Eigen::MatrixXf>);
  // A sigmoid has no log-sum-exp.
  EXPECT_EQ(attention(x, x, x, {.normaliser = Normaliser::sigmoid()}).lse.size(), 0);
}

TEST(Memory, ACallAllocatesOnce) {
  // The single allocation holds the tile. Argument checks must not allocate unless they fail, since such overheads
  // dominate short calls.
  for (Index n : {1, 300, 3000}) {
    Arrays a(n);
    const Tensor<float, 1> added({n});
    const auto mods = causal() | bias(added);
    attention_into(a.out, a.lse, a.q, a.k, a.v, mods, {.executor = serial()});
    // Up to 32 KiB come from the stack, enough for tiles of narrow vectors.
    const int expected = workspace_bytes(a.q, a.k, a.v, mods, {.executor = serial()}) > 32 * 1024 ? 1 : 0;
    EXPECT_EQ(allocations_of([&] { attention_into(a.out, a.lse, a.q, a.k, a.v, mods, {.executor = serial()}); }).calls,
              expected);
  }
}

TEST(Memory, OrdinaryScoresNeedNoExtraDigits) {
  Arrays a(300, 8);  // its tile fits into the 32 KiB on the stack
  const auto call = [&](const auto& mods) {
    attention_into(a.out, a.lse, a.q, a.k, a.v, mods, {.executor = serial()});  // lazily started threads start now
    a.lse = Tensor<float, 3>(a.lse.shape());
    return allocations_of([&] { attention_into(a.out, a.lse, a.q, a.k, a.v, mods, {.executor = serial()}); }).calls;
  };
  EXPECT_EQ(call(causal()), 0);
  EXPECT_EQ(call(score_mod([](auto x, auto) { return x - 1e9f; })), 1) << "scores near -1e9 need extra digits";
}

}  // namespace
}  // namespace attn::test
