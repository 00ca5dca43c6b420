// Both paths of additive attention against a separate oracle: all kinds of mods, sizes just below and above every tile
// edge, layouts, scalars and instruction sets.
#include <sstream>

#include "support/additive_model.h"
#include "support/erased_rows.h"
#include "support/executors.h"
#include "support/paths.h"
#include "support/sample.h"

namespace attn::test {
namespace {

constexpr Index kLengths[] = {0, 1, 2, 4, 5, 15, 17, 33, 47, 49, 63, 65, 97, 130};
constexpr Index kHidden[] = {1, 3, 4, 7, 8, 16, 17, 33, 64, 65};

template <class T>
std::vector<T> plain(const auto& tensor) {
  return std::vector<T>(tensor.data(), tensor.data() + tensor.size());
}

/// Sizes, inputs, layouts and parameters, the same for every mod.
template <class T>
struct Drawn {
  AdditiveModel model;
  Numbers numbers;
  AdditiveArguments<T> arguments;
  Layout out_layout;

  static Drawn draw(const Sizes& s, Index hidden, Random& random) {
    Index key_dim = random.chance(0.5) ? s.head_dim : random.integer(1, 20);
    if (random.chance(0.3)) key_dim = hidden;
    AdditiveModel m(s, key_dim, hidden, random);
    m.round_to<T>();
    Numbers n;
    if (random.chance(0.4)) n.q_offset = random.integer(-5, s.kv_len + 5);
    if (random.chance(0.4)) n.scale = random.pick(std::vector{1.0, 0.25, -0.5, 0.0});
    AdditiveArguments<T> arguments(m, random.pick(kOutputLayouts), random.pick(kOutputLayouts),
                                   random.pick(kOutputLayouts));
    return {std::move(m), n, std::move(arguments), random.pick(kOutputLayouts)};
  }
};

template <class T, class M>
void expect_right(Drawn<T>& d, const Row<M>& row) {
  if (::testing::Test::HasFailure()) return;  // one failing case is enough
  static Sample sample;
  if (!sample.takes_next()) return;
  const Sizes& s = d.model.sizes;
  std::ostringstream text;
  text << row.name << ", " << s << " key_dim " << d.model.key_dim << " hidden " << d.model.hidden;
  if (d.numbers.scale) text << ", scale " << *d.numbers.scale;
  text << sample.text();
  SCOPED_TRACE(text.str());
  const Truth truth = d.model.truth(row.meaning, d.numbers);
  const auto q = d.arguments.q.cview(), k = d.arguments.k.cview(), v = d.arguments.v.cview();
  Options options = options_of(d.numbers);
  const auto naive = naive_additive_attention(q, k, v, d.arguments.score(), row.mod, options);
  const Computed<T> by_definition{plain<T>(naive.out), plain<Wide<T>>(naive.lse)};
  expect_naive_close(truth, by_definition, d.model.sizes_of_sums());
  expect_weights_close(truth, plain<T>(naive.weights), d.model.sizes_of_sums());
  static int turn = 0;
  for (Isa isa : instruction_sets()) {
    SCOPED_TRACE(to_string(isa));
    options.isa = isa;
    options.executor = ++turn % 2 == 0 ? serial() : eager_threads(2);
    Strided<T> out(d.out_layout, {s.batch, s.heads, s.q_len, s.v_dim});
    Tensor<Wide<T>, 3> lse({s.batch, s.heads, s.q_len});
    additive_attention_into(out.view(), lse, q, k, v, d.arguments.score(), row.mod, options);
    EXPECT_TRUE(out.gaps_untouched());
    expect_close(truth, by_definition, {out.read(), plain<Wide<T>>(lse)});
    if (std::is_same_v<T, long double>) break;  // all instruction sets share one kernel
  }
}

/// Draws a batch size and heads for these lengths; more than one only where that is cheap.
Sizes draw_sizes(Index q_len, Index kv_len, Random& random) {
  const Index many = q_len * kv_len > 1500 ? 1 : 3, kv_heads = random.integer(1, std::min<Index>(many, 2));
  return {random.integer(1, many), kv_heads * random.integer(1, many), kv_heads, q_len, kv_len, random.integer(1, 20),
          random.integer(1, 20)};
}

template <class T>
void sweep(const auto& use_rows) {
  Random random(7);
  std::size_t number = 0;
  for (Index q_len : kLengths)
    for (Index kv_len : kLengths) {
      const Sizes s = draw_sizes(q_len, kv_len, random);
      Drawn<T> d = Drawn<T>::draw(s, kHidden[++number % std::size(kHidden)], random);
      use_rows(d, Setting{s, d.numbers, random}, number);
    }
}

/// Tests every kind of mod at tiny sizes, and a sixth of them at each pair of lengths.
template <class T>
void sweep_erased() {
  Random random(6);
  for (Index q_len = 0; q_len <= 3; ++q_len)
    for (Index kv_len = 0; kv_len <= 3; ++kv_len) {
      const Sizes s{2, 4, 2, q_len, kv_len, 2, 3};
      Drawn<T> d = Drawn<T>::draw(s, random.integer(1, 3), random);
      each_erased_row({s, d.numbers, random}, [&](const auto& row) { expect_right(d, row); });
    }
  sweep<T>([](Drawn<T>& d, const Setting& setting, std::size_t number) {
    std::size_t of_case = 0;
    each_erased_row(setting, [&](const auto& row) {
      if ((of_case++ + number) % 6 == 0) expect_right(d, row);
    });
  });
}

TEST(AdditiveSweep, Float) { sweep_erased<float>(); }
TEST(AdditiveSweep, Double) { sweep_erased<double>(); }
TEST(AdditiveSweep, Bfloat16) { sweep_erased<Eigen::bfloat16>(); }

TEST(AdditiveSweep, LongDouble) {
  const Row<decltype(causal() | softcap(2))> row{
      "causal | softcap",
      causal() | softcap(2),
      {[](const Pair& p) { return p.kv <= p.q; }, [](Real x, const Pair&) { return 2 * std::tanh(x / 2); }}};
  sweep<long double>([&](auto& d, const Setting&, std::size_t) { expect_right(d, row); });
}

/// Query heads that share a key head are processed together when decoding; many keys are split.
TEST(AdditiveSweep, SingleQueriesOfHeadsThatShareKeys) {
  Random random(8);
  const Row<Mods<>> row{"none", {}, {}};
  for (Index group : {2, 3, 5, 16, 17})
    for (Index kv_len : {1, 63, 65, 200, 2100}) {
      if (kv_len > 200 && group != 3) continue;
      const Index kv_heads = random.integer(1, 2);
      const Sizes s{random.integer(1, 2), group * kv_heads, kv_heads, random.integer(1, 4), kv_len, 5, 6};
      Drawn<float> d = Drawn<float>::draw(s, random.pick(kHidden), random);
      expect_right(d, row);
    }
}

}  // namespace
}  // namespace attn::test
