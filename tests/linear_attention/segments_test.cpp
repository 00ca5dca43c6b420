// Sequences of several segments: the same bits for any number of threads, even if several threads share a head, and
// agreement with the definition.
#include <functional>
#include <string>
#include <vector>

#include "support/executors.h"
#include "support/paths.h"
#include "support/refused.h"
#include "support/sample.h"

namespace attn::test {
namespace {

/// Inputs of all forms. Keys have small norms, as the delta rule requires.
template <class T>
struct LongInputs {
  Tensor<T, 4> q, k, v, gates;
  Tensor<T, 3> gate, beta;

  LongInputs(Index batch, Index heads, Index kv_heads, Index q_len, Index kv_len, Index dim, Index v_dim)
      : q({batch, heads, q_len, dim}),
        k({batch, kv_heads, kv_len, dim}),
        v({batch, kv_heads, kv_len, v_dim}),
        gates({batch, kv_heads, kv_len, dim}),
        gate({batch, kv_heads, kv_len}),
        beta({batch, kv_heads, kv_len}) {
    Random random(7);
    const auto fill = [&](auto& t, double low, double high) {
      for (Index i = 0; i < t.size(); ++i) t.data()[i] = static_cast<T>(static_cast<float>(random.uniform(low, high)));
    };
    const double longest = 1 / std::sqrt(static_cast<double>(dim));
    fill(q, -1.5, 1.5), fill(k, -longest, longest), fill(v, -1, 1);
    fill(gates, -0.004, 0), fill(gate, -0.004, 0), fill(beta, 0, 1);
    if (gate.size() > 1200) gate.data()[1100] = gates.data()[1150 * dim] = -std::numeric_limits<T>::infinity();
  }
};

/// A recurrent form: computed in chunks, and by definition.
template <class T>
struct LongForm {
  std::string name;
  std::function<Tensor<T, 4>(const LongInputs<T>&, const Options&)> chunks, definition;
};

template <class T, class Map, class M>
LongForm<T> linear(const std::string& name, const Map& map, const M& mods) {
  return {name,
          [=](const LongInputs<T>& x, const Options& o) { return linear_attention(x.q, x.k, x.v, map, mods, o).out; },
          [=](const LongInputs<T>& x, const Options& o) {
            return naive_linear_attention(x.q, x.k, x.v, map, mods, o).out;
          }};
}
template <class T, class M>
std::vector<LongForm<T>> gated_forms(const std::string& name, const M& mods) {
  using X = LongInputs<T>;
  using O = Options;
  return {{"token gates" + name,
           [=](const X& x, const O& o) { return gated_attention(x.q, x.k, x.v, x.gate, mods, o).out; },
           [=](const X& x, const O& o) { return naive_gated_attention(x.q, x.k, x.v, x.gate, mods, o).out; }},
          {"feature gates" + name,
           [=](const X& x, const O& o) { return gated_attention(x.q, x.k, x.v, x.gates, mods, o).out; },
           [=](const X& x, const O& o) { return naive_gated_attention(x.q, x.k, x.v, x.gates, mods, o).out; }},
          {"delta rule" + name,
           [=](const X& x, const O& o) { return gated_delta_rule(x.q, x.k, x.v, x.gate, x.beta, mods, o).out; },
           [=](const X& x, const O& o) { return naive_gated_delta_rule(x.q, x.k, x.v, x.gate, x.beta, mods, o).out; }}};
}

/// Sizes of a call; forms_of() gives the forms that they allow.
struct LongCase {
  Index batch, heads, kv_heads, q_len, kv_len, dim, v_dim;
};

template <class T>
std::vector<LongForm<T>> forms_of(const LongCase& s) {
  std::vector<LongForm<T>> forms = {linear<T>("elu1", elu1(), Mods<>()), linear<T>("elu1 causal", elu1(), causal()),
                                    linear<T>("relu causal", relu(), causal())};
  const auto add = [&](const std::vector<LongForm<T>>& more) { forms.insert(forms.end(), more.begin(), more.end()); };
  std::vector<Index> lengths(static_cast<std::size_t>(s.batch), s.kv_len - s.kv_len / 5);
  lengths.back() = s.kv_len / 3;
  forms.push_back(linear<T>("elu1 lengths", elu1(), key_lengths(lengths)));
  forms.push_back(linear<T>("elu1 causal lengths", elu1(), causal() | key_lengths(lengths)));
  if (s.q_len > s.kv_len) return forms;
  // A document of several segments between two short ones.
  const auto cut = documents_at({0, s.kv_len / 9, s.kv_len - 37, s.kv_len});
  forms.push_back(linear<T>("elu1 documents", elu1(), cut));
  forms.push_back(linear<T>("elu1 causal documents", elu1(), causal() | cut));
  if (s.q_len != s.kv_len) return forms;
  add(gated_forms<T>("", Mods<>()));
  add(gated_forms<T>(", lengths", key_lengths(lengths)));
  add(gated_forms<T>(", documents", cut));
  return forms;
}

constexpr LongCase kCases[] = {{1, 1, 1, 1024, 1024, 5, 3},   {1, 1, 1, 1025, 1025, 4, 20},
                               {1, 3, 1, 2500, 2500, 30, 17}, {2, 2, 2, 2100, 2100, 3, 16},
                               {1, 1, 1, 700, 3100, 16, 5},   {1, 2, 1, 2900, 2300, 8, 8}};

TEST(Segments, ThreadsDoNotChangeResults) {
  for (const LongCase& s : kCases) {
    const LongInputs<float> x(s.batch, s.heads, s.kv_heads, s.q_len, s.kv_len, s.dim, s.v_dim);
    for (const LongForm<float>& form : forms_of<float>(s)) {
      const auto one = form.chunks(x, {.executor = serial()});
      for (const int workers : {2, 3, 7})
        EXPECT_TRUE(same_bits(one, form.chunks(x, {.executor = eager_threads(workers)})))
            << form.name << " N=" << s.q_len << " M=" << s.kv_len << " on " << workers;
    }
  }
  // More tokens than fit into the maximum number of segments of the usual length.
  const LongInputs<float> x(1, 1, 1, 40000, 40000, 3, 2);
  for (const auto& form : {linear<float>("elu1", elu1(), Mods<>()), linear<float>("elu1 causal", elu1(), causal())})
    EXPECT_TRUE(same_bits(form.chunks(x, {.executor = serial()}), form.chunks(x, {.executor = eager_threads(3)})));
}

TEST(Segments, AgreeWithTheDefinition) {
  Sample sample;
  SCOPED_TRACE("a sample" + sample.text());
  for (const LongCase& s : kCases) {
    const LongInputs<float> x(s.batch, s.heads, s.kv_heads, s.q_len, s.kv_len, s.dim, s.v_dim);
    const LongInputs<long double> wide(s.batch, s.heads, s.kv_heads, s.q_len, s.kv_len, s.dim, s.v_dim);
    const auto forms = forms_of<float>(s);
    const auto truths = forms_of<long double>(s);
    for (std::size_t f = 0; f < forms.size(); ++f) {
      if (!sample.takes_next()) continue;
      const auto truth = truths[f].definition(wide, {.executor = serial()});
      const auto naive = forms[f].definition(x, {.executor = serial()});
      const auto error = [&](const Tensor<float, 4>& t) {
        long double most = 0;
        for (Index i = 0; i < t.size(); ++i) {
          if (std::isnan(t.data()[i])) return std::numeric_limits<long double>::infinity();
          most = std::max(most, std::abs(truth.data()[i] - t.data()[i]));
        }
        return most;
      };
      for (const Isa isa : instruction_sets())
        for (const auto& executor : {serial(), eager_threads(2)})
          EXPECT_LE(error(forms[f].chunks(x, {.executor = executor, .isa = isa})), 2 * error(naive) + 2e-6L)
              << forms[f].name << " N=" << s.q_len << " M=" << s.kv_len << " " << to_string(isa);
    }
  }
}

/// The final state does not depend on threads either, and equals that of calls over parts up to rounding.
TEST(Segments, LeaveTheSameState) {
  const LongInputs<float> x(1, 2, 1, 2700, 2700, 12, 9);
  const auto check = [&](const char* name, const auto& call) {
    RecurrentState<float> one({.kv_heads = 1, .features = 12, .v_dim = 9}), more = one, parts = one;
    for (RecurrentState<float>* s : {&one, &more}) s->sums()(0, 0, 3, 4) = 0.5f, s->normaliser()(0, 0, 3) = 2;
    parts = one;
    const auto out = call(one, 0, 2700, Options{.executor = serial()});
    EXPECT_TRUE(same_bits(out, call(more, 0, 2700, Options{.executor = eager_threads(3)}))) << name;
    call(parts, 0, 900, Options{.executor = serial()});
    call(parts, 900, 2700, Options{.executor = eager_threads(2)});
    for (Index f = 0; f < 12; ++f) {
      EXPECT_EQ(one.normaliser()(0, 0, f), more.normaliser()(0, 0, f)) << name;
      EXPECT_NEAR(one.normaliser()(0, 0, f), parts.normaliser()(0, 0, f), 1e-3) << name;
      for (Index e = 0; e < 9; ++e) {
        EXPECT_EQ(one.sums()(0, 0, f, e), more.sums()(0, 0, f, e)) << name;
        EXPECT_NEAR(one.sums()(0, 0, f, e), parts.sums()(0, 0, f, e), 1e-3) << name;
      }
    }
  };
  const auto part = [](const auto& t, Index from, Index to) { return t.view().slice(2, from, to); };
  check("elu1 causal", [&](auto& state, Index a, Index b, const Options& o) {
    return linear_attention(state, part(x.q, a, b), part(x.k, a, b), part(x.v, a, b), elu1(), causal(), o).out;
  });
  check("elu1", [&](auto& state, Index a, Index b, const Options& o) {
    return linear_attention(state, part(x.q, a, b), part(x.k, a, b), part(x.v, a, b), elu1(), o).out;
  });
  check("feature gates", [&](auto& state, Index a, Index b, const Options& o) {
    return gated_attention(state, part(x.q, a, b), part(x.k, a, b), part(x.v, a, b), part(x.gates, a, b), o).out;
  });
}

/// NaN in a key of a later segment, and of a later chunk of the same one, reaches no earlier row.
TEST(Segments, NaNReachesNoEarlierRow) {
  const Index n = 2300, bad = 1500;
  const LongInputs<float> clean(1, 1, 1, n, n, 6, 6);
  LongInputs<float> poisoned = clean;
  for (Index d = 0; d < 6; ++d) poisoned.k(0, 0, bad, d) = poisoned.v(0, 0, bad, d) = std::nanf("");
  for (const auto& executor : {serial(), eager_threads(3)})
    for (const LongForm<float>& form : gated_forms<float>("", Mods<>())) {
      const auto want = form.chunks(clean, {.executor = executor}), got = form.chunks(poisoned, {.executor = executor});
      for (Index i = 0; i < bad; ++i) ASSERT_EQ(got(0, 0, i, 2), want(0, 0, i, 2)) << form.name << " row " << i;
      EXPECT_TRUE(std::isnan(got(0, 0, bad, 2)));
    }
}

TEST(Segments, NeedExactlyTheReportedWorkspace) {
  const LongInputs<float> x(1, 1, 1, 3000, 3000, 10, 7);
  for (const int workers : {1, 3}) {
    Options options{.executor = eager_threads(workers)};
    const std::size_t bytes = linear_workspace_bytes(x.q, x.k, x.v, elu1(), causal(), options);
    std::vector<std::byte> memory(bytes + 64, std::byte{0x5a});
    options.workspace = std::span(memory).first(bytes);
    EXPECT_TRUE(same_bits(linear_attention(x.q, x.k, x.v, elu1(), causal(), options).out,
                          linear_attention(x.q, x.k, x.v, elu1(), causal(), {.executor = serial()}).out));
    for (std::size_t i = bytes; i < memory.size(); ++i) EXPECT_EQ(memory[i], std::byte{0x5a});
    options.workspace = std::span(memory).first(bytes - 1);
    expect_refused("a byte less", {std::to_string(bytes), std::to_string(bytes - 1)},
                   [&] { linear_attention(x.q, x.k, x.v, elu1(), causal(), options); });
  }
}

// No row sees the keys after the last row, but the state still consumes them.
TEST(Segments, AStateConsumesKeysAfterAllRowsInTheSameWorkspace) {
  const LongInputs<float> x(1, 1, 1, 64, 4096, 10, 7);
  for (const int workers : {1, 3}) {
    Options options{.q_offset = 0, .executor = eager_threads(workers)};
    RecurrentState<float> plain({.kv_heads = 1, .features = 10, .v_dim = 7}), given = plain;
    Tensor<float, 4> expected({1, 1, 64, 7}), out = expected;
    linear_attention_into(expected, plain, x.q, x.k, x.v, elu1(), causal(), options);
    std::vector<std::byte> memory(linear_workspace_bytes(x.q, x.k, x.v, elu1(), causal(), options));
    options.workspace = memory;
    linear_attention_into(out, given, x.q, x.k, x.v, elu1(), causal(), options);
    EXPECT_TRUE(same_bits(expected, out)) << workers;
    EXPECT_TRUE(same_bits(linear_attention(x.q, x.k, x.v, elu1(), causal(), options).out, out)) << workers;
  }
}

// A gate of 0 erases an earlier NaN, as it does in a sequence of one segment or in one fed in parts.
TEST(Segments, AZeroGateErasesNaN) {
  LongInputs<float> x(1, 1, 1, 3000, 3000, 10, 7);
  constexpr Index kForgets = 1500;
  x.v(0, 0, 10, 3) = std::numeric_limits<float>::quiet_NaN();
  x.gate(0, 0, kForgets) = -std::numeric_limits<float>::infinity();
  for (const int workers : {1, 3}) {
    const auto out = gated_attention(x.q, x.k, x.v, x.gate, Options{.executor = eager_threads(workers)}).out;
    EXPECT_TRUE(std::isnan(out(0, 0, 10, 3)));
    const Index next_chunk = kForgets / 64 * 64 + 64;
    for (Index i = next_chunk; i < 3000; ++i)
      for (Index c = 0; c < 7; ++c) ASSERT_TRUE(std::isfinite(out(0, 0, i, c))) << i << ", " << c;
  }
}

}  // namespace
}  // namespace attn::test
