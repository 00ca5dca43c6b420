// All recurrent forms against oracles over all pairs, on both paths, for sizes just below and above every chunk
// boundary, all layouts, scalars and instruction sets.
#include "favor_vectors.h"
#include "recurrent_paths.h"

#include <cmath>

namespace attn::test {
namespace {

template <class T>
struct RecurrenceSweep : testing::Test {};
using Scalars = testing::Types<float, double, long double>;
TYPED_TEST_SUITE(RecurrenceSweep, Scalars);

/// All paths may have twice the error of the naive path plus this many roundings of the largest sum of magnitudes. Over
/// these sweeps error - 2 * naive was at most 0.6 roundings in float, 0.05 in double and 0 in long double.
constexpr LongReal kFloor = 3;

template <class T>
void expect_form(const Recurrent& in, const Form<T>& form, Layout layout, Layout out_layout) {
  Strided<T> q(layout, {in.batch, in.heads, in.q_len, in.head_dim}, in.q),
      k(layout, {in.batch, in.kv_heads, in.kv_len, in.head_dim}, in.k),
      v(layout, {in.batch, in.kv_heads, in.kv_len, in.v_dim}, in.v);
  const LongReal eps = epsilon<T>();
  const auto naive = plain(form.naive(q.cview(), k.cview(), v.cview()));
  const LongReal reference = largest_error(form.truth.out, naive);
  const LongReal tokens = static_cast<LongReal>(in.kv_len + in.head_dim);
  EXPECT_LE(reference, eps * (4 * tokens + 40) * form.truth.largest) << form.name << " naive";
  for (const Isa isa : instruction_sets()) {
    Strided<T> out(out_layout, {in.batch, in.heads, in.q_len, in.v_dim});
    form.chunked(out.view(), q.cview(), k.cview(), v.cview(), {.executor = serial(), .isa = isa});
    EXPECT_TRUE(out.gaps_untouched()) << form.name;
    EXPECT_LE(largest_error(form.truth.out, out.read()), 2 * reference + kFloor * eps * form.truth.largest)
        << form.name << " on " << to_string(isa) << ", batch " << in.batch << " heads " << in.heads << "/"
        << in.kv_heads << " lengths " << in.q_len << ", " << in.kv_len << " dims " << in.head_dim << ", " << in.v_dim
        << "; naive errs by " << reference << " of " << form.truth.largest;
  }
}

LongReal elu1_by_hand(LongReal x) { return x > 0 ? x + 1 : std::exp(x); }

struct Sizes {
  Index batch, heads, kv_heads, q_len, kv_len, head_dim, v_dim;
};

TYPED_TEST(RecurrenceSweep, LinearAttention) {
  using T = TypeParam;
  Random random(1);
  const Sizes all[] = {{1, 1, 1, 1, 1, 1, 1},     {2, 2, 1, 5, 5, 3, 4},     {1, 4, 2, 64, 64, 16, 16},
                       {2, 1, 1, 65, 65, 20, 17}, {1, 2, 2, 7, 130, 16, 32}, {1, 2, 1, 130, 7, 8, 48},
                       {1, 1, 1, 63, 200, 33, 1}, {2, 2, 2, 3, 0, 4, 4},     {1, 1, 1, 129, 128, 70, 80}};
  std::size_t at = 0;
  for (const Sizes& s : all) {
    const Recurrent in(random, s.batch, s.heads, s.kv_heads, s.q_len, s.kv_len, s.head_dim, s.v_dim);
    const Index offset = s.kv_len - s.q_len, early = -2, length = s.kv_len / 2;
    std::vector<Index> lengths(static_cast<std::size_t>(s.batch), length);
    lengths.back() = s.kv_len;
    const auto length_of = [=](Index b) { return lengths[static_cast<std::size_t>(b)]; };
    const Layout layout = kInputLayouts[at % 5], out_layout = kOutputLayouts[(at + 2) % 5];
    ++at;
    const Features elu = each_number(elu1_by_hand),
                   relu_by_hand = each_number([](LongReal x) { return x < 0 ? 0 : x; }),
                   square = each_number([](LongReal x) { return x * x; });
    const Sees any = [](Index, Index, Index) { return true; };
    const Sees before = [=](Index, Index i, Index j) { return j <= i + offset; };
    const auto check = [&](const Form<T>& form) { expect_form(in, form, layout, out_layout); };
    check(linear_form<T>("elu1", linear_oracle(in, any, elu), elu1(), Mods<>()));
    check(linear_form<T>("elu1 causal", linear_oracle(in, before, elu), elu1(), causal()));
    check(linear_form<T>("elu1 causal, early",
                         linear_oracle(
                             in, [=](Index, Index i, Index j) { return j <= i + early; }, elu),
                         elu1(), causal(), early));
    check(linear_form<T>("relu causal", linear_oracle(in, before, relu_by_hand), relu(), causal()));
    check(linear_form<T>("lambda causal", linear_oracle(in, before, square), feature_map([](auto x) { return x * x; }),
                         causal()));
    check(linear_form<T>("lengths",
                         linear_oracle(
                             in, [=](Index b, Index, Index j) { return j < length_of(b); }, elu),
                         elu1(), key_lengths(lengths)));
    check(linear_form<T>("causal lengths",
                         linear_oracle(
                             in, [=](Index b, Index i, Index j) { return j <= i + offset && j < length_of(b); }, elu),
                         elu1(), causal() | key_lengths(lengths)));
    if (offset < 0) continue;
    std::vector<Index> ids;
    for (Index j = 0; j < s.kv_len; ++j) ids.push_back(j < 3 ? 7 : j < s.kv_len - 5 ? 2 : 5);
    const auto same = [=](Index i, Index j) { return ids[Recurrent::at(i + offset)] == ids[Recurrent::at(j)]; };
    check(linear_form<T>("documents",
                         linear_oracle(
                             in, [=](Index, Index i, Index j) { return same(i, j); }, elu),
                         elu1(), documents(ids)));
    check(linear_form<T>(
        "causal documents with lengths",
        linear_oracle(
            in, [=](Index b, Index i, Index j) { return same(i, j) && j <= i + offset && j < length_of(b); }, elu),
        elu1(), documents(ids) | causal() | key_lengths(lengths)));
  }
}

TYPED_TEST(RecurrenceSweep, GatedForms) {
  using T = TypeParam;
  Random random(2);
  const Sizes all[] = {{1, 1, 1, 1, 1, 1, 1},       {2, 2, 1, 5, 5, 3, 4},      {1, 4, 2, 64, 64, 16, 16},
                       {2, 1, 1, 65, 65, 20, 17},   {1, 2, 2, 16, 16, 16, 32},  {1, 2, 1, 17, 17, 8, 48},
                       {1, 1, 1, 130, 130, 33, 24}, {1, 1, 1, 200, 200, 16, 16}};
  std::size_t at = 0;
  for (const Sizes& s : all)
    for (const double strength : {0.05, 2.0, 90.0}) {
      Recurrent in(random, s.batch, s.heads, s.kv_heads, s.q_len, s.q_len, s.head_dim, s.v_dim, strength);
      // A gate that erases the state.
      if (s.q_len > 10 && strength == 2)
        in.token_gate[8] = in.feature_gate[static_cast<std::size_t>(9 * s.head_dim)] =
            -std::numeric_limits<double>::infinity();
      const LongReal scale = 1 / std::sqrt(static_cast<LongReal>(s.head_dim));
      const Layout layout = kInputLayouts[at % 5], out_layout = kOutputLayouts[(at + 2) % 5];
      ++at;
      const Index length = (s.q_len + 1) / 2, border = s.q_len / 3;
      const std::vector<Index> lengths(static_cast<std::size_t>(s.batch), length);
      const Sees before = [](Index, Index i, Index j) { return j <= i; };
      const Sees shorter = [=](Index, Index i, Index j) { return j <= i && i < length; };
      const Sees apart = [=](Index, Index i, Index j) { return j <= i && (i < border) == (j < border); };
      const auto cut = documents_at({0, border, border, s.q_len});
      const auto check = [&](const Form<T>& form) { expect_form(in, form, layout, out_layout); };

      const auto tokens = token_scalars<T>(in, in.token_gate);
      const auto features = token_tensor<T>(in, in.feature_gate, in.head_dim);
      const auto beta = token_scalars<T>(in, in.beta);
      check(gated_form<T>("token gate", gated_oracle(in, before, in.token_gate, scale), tokens, Mods<>()));
      check(gated_form<T>("token gate, lengths", gated_oracle(in, shorter, in.token_gate, scale), tokens,
                          key_lengths(lengths)));
      check(gated_form<T>("feature gate", gated_oracle(in, before, in.feature_gate, scale), features, causal()));
      check(gated_form<T>("feature gate, documents", gated_oracle(in, apart, in.feature_gate, scale), features, cut));
      const auto none = [](Index) { return false; };
      const auto at_border = [=](Index t) { return t == border; };
      check(delta_form<T>("delta rule", delta_oracle(in, scale, none, in.token_gate), tokens, beta, Mods<>()));
      check(
          delta_form<T>("delta rule, documents", delta_oracle(in, scale, at_border, in.token_gate), tokens, beta, cut));
      check(delta_form<T>("delta rule, feature gate", delta_oracle(in, scale, none, in.feature_gate), features, beta,
                          Mods<>()));
      check(delta_form<T>("delta rule, feature gate, documents", delta_oracle(in, scale, at_border, in.feature_gate),
                          features, beta, cut));
      const auto reads = token_tensor<T>(in, in.a, in.head_dim), writes = token_tensor<T>(in, in.b_vector, in.head_dim);
      check(dplr_form<T>("DPLR", dplr_oracle(in, scale, none, in.feature_gate), reads, writes, features, Mods<>()));
      check(dplr_form<T>("DPLR, documents", dplr_oracle(in, scale, at_border, in.feature_gate), reads, writes, features,
                         cut));
      check(dplr_form<T>("DPLR, token gate", dplr_oracle(in, scale, none, in.token_gate), reads, writes, tokens,
                         causal()));

      std::vector<double> decays, of_tokens;
      for (Index h = 0; h < s.kv_heads; ++h) decays.push_back(-0.5 * strength / static_cast<double>(h + 1));
      for (Index b = 0; b < s.batch; ++b)
        for (Index h = 0; h < s.kv_heads; ++h)
          of_tokens.insert(of_tokens.end(), static_cast<std::size_t>(s.q_len), decays[static_cast<std::size_t>(h)]);
      check(gated_form<T>("head decay", gated_oracle(in, before, of_tokens, scale), decay_per_head(decays), Mods<>()));
    }
}

/// FAVOR+ with the library's random vectors and the features as defined in the paper.
TYPED_TEST(RecurrenceSweep, RandomFeatures) {
  using T = TypeParam;
  Random random(3);
  for (const Index n : {1, 40, 100}) {
    const Recurrent in(random, 1, 2, 1, n, n, 12, 16);
    const Index m = 20;
    const LongReal scale = 0.25L;
    const auto w = favor_vectors<LongReal>(m, 12, 5);
    const Features positive = [&](const std::vector<LongReal>& x) {
      std::vector<LongReal> f;
      for (Index i = 0; i < m; ++i) {
        LongReal sum = 0;
        for (Index d = 0; d < 12; ++d) {
          const LongReal at = std::sqrt(scale) * x[Recurrent::at(d)];
          sum += w(i, d) * at - at * at / 2;
        }
        f.push_back(std::exp(sum) / std::sqrt(static_cast<LongReal>(m)));
      }
      return f;
    };
    const auto truth = linear_oracle(
        in, [](Index, Index i, Index j) { return j <= i; }, positive);
    Form<T> form = linear_form<T>("favor", truth, favor(m, 5), causal());
    const auto map = favor(m, 5);
    form.chunked = [map](const auto& out, const auto& q, const auto& k, const auto& v, Options options) {
      options.scale = 0.25;
      linear_attention_into(out, q, k, v, map, causal(), options);
    };
    form.naive = [map](const auto& q, const auto& k, const auto& v) {
      return naive_linear_attention(q, k, v, map, causal(), {.scale = 0.25, .executor = serial()}).out;
    };
    expect_form(in, form, Layout::bhsd, Layout::bshd);
  }
}

}  // namespace
}  // namespace attn::test
