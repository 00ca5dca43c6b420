// Recurrences: linear attention in linear_calls.cpp, gated attention and the delta rule here.
#include "families.h"
#include "recurrence_call.h"

namespace fuzz {

void linear_recurrence(Case& c);

namespace {

enum class Rule { gated, delta, dplr };

/// Gates, betas, a and b of a call, in separate memory.
template <class T>
struct Gates {
  std::vector<double> of_heads;  ///< empty: gates are a tensor
  Guard4<T> gate, beta, a, b;

  Gates(Case& c, const RecurrentPlan& p, bool of_features, bool per_head)
      : gate(c.random, {p.batch, p.kv_heads, p.kv_len, of_features ? p.head_dim : 1}, Role::input),
        beta(c.random, {p.batch, p.kv_heads, p.kv_len, 1}, Role::input),
        a(c.random, {p.batch, p.kv_heads, p.kv_len, p.head_dim}, Role::input),
        b(c.random, {p.batch, p.kv_heads, p.kv_len, p.head_dim}, Role::input) {
    Random& r = c.random;
    const double strength = r.of({0.0, 0.001, 0.02, 0.5, 5.0, 90.0});
    forgets = !per_head && r.percent(15);
    is_mild = strength < 0.1 && !forgets;
    c.text << (per_head      ? " heads'"
               : of_features ? " features'"
                             : " tokens'")
           << " gates=" << strength << (forgets ? " and -inf" : "");
    for (Index h = 0; per_head && h < p.kv_heads; ++h) of_heads.push_back(-strength * r.uniform(0, 1));
    gate.fill([&](Index, Index, Index, Index) {
      return forgets && r.percent(2) ? -std::numeric_limits<double>::infinity() : -strength * r.uniform(0, 1);
    });
    const double most = r.of({1.0, 1.0, 2.0});
    beta.fill([&](Index, Index, Index, Index) { return most * r.uniform(0, 1); });
    // b is roughly opposite to a, so that states stay bounded.
    const double unit = 1 / std::sqrt(static_cast<double>(p.head_dim));
    a.fill([&](Index, Index, Index, Index) { return 0.9 * unit * r.uniform(-1, 1); });
    b.fill([&](Index i, Index h, Index t, Index f) {
      return -0.8 * static_cast<double>(a.view()(i, h, t, f)) + 0.1 * unit * r.uniform(-1, 1);
    });
    for (const auto* t : {&gate, &beta, &a, &b}) poison_after_lengths(p, *t);
    gate.finish(), beta.finish(), a.finish(), b.finish();
  }

  std::vector<Wide> at(Index batch, Index h, Index t) const {
    if (!of_heads.empty()) return {static_cast<Wide>(static_cast<T>(of_heads[static_cast<std::size_t>(h)]))};
    return row(gate, batch, h, t);
  }

  static std::vector<Wide> row(const Guard4<T>& of, Index batch, Index h, Index t) {
    std::vector<Wide> numbers;
    for (Index f = 0; f < of.view().dim(3); ++f) numbers.push_back(static_cast<Wide>(of.view()(batch, h, t, f)));
    return numbers;
  }

  bool forgets, is_mild;
};

template <class X, class O>
void gated_of(Case& c) {
  using T = Computed<X>;
  Random& r = c.random;
  RecurrentCall<X, O> call(c, true);
  const RecurrentPlan& plan = call.plan;
  const Rule rule = r.of({Rule::gated, Rule::gated, Rule::delta, Rule::delta, Rule::dplr});
  const bool delta = rule == Rule::delta, of_features = r.percent(45), per_head = !of_features && r.percent(25);
  const Gates<T> gates(c, plan, of_features, per_head);
  call.fill(1, rule != Rule::gated ? 0.8 / std::sqrt(static_cast<double>(plan.head_dim)) : 1, gates.is_mild);
  const Wide scale = c.draw_scale(call.options, plan.head_dim);
  const auto rows = [&](const auto& t, const Range& of) { return rows_of(t.input(), of.begin, of.end); };
  const auto with_gate = [&](const Range& of, const auto& use) {
    return per_head ? use(attn::decay_per_head(gates.of_heads)) : use(rows(gates.gate, of));
  };

  const auto library = [&](const TensorView<O, 4>& out, [[maybe_unused]] auto state, const Range& of, const Range&,
                           const auto& mods, const attn::Options& options) {
    const auto q = rows(call.q, of), k = rows(call.k, of), v = rows(call.v, of);
    const auto beta = rows(gates.beta, of), a = rows(gates.a, of), b = rows(gates.b, of);
    with_gate(of, [&](const auto& gate) {
      if constexpr (!std::is_null_pointer_v<decltype(state)>)
        rule == Rule::dplr ? attn::dplr_delta_rule_into(out, *state, q, k, v, a, b, gate, mods, options)
        : delta            ? attn::gated_delta_rule_into(out, *state, q, k, v, gate, beta, mods, options)
                           : attn::gated_attention_into(out, *state, q, k, v, gate, mods, options);
      else
        rule == Rule::dplr ? attn::dplr_delta_rule_into(out, q, k, v, a, b, gate, mods, options)
        : delta            ? attn::gated_delta_rule_into(out, q, k, v, gate, beta, mods, options)
                           : attn::gated_attention_into(out, q, k, v, gate, mods, options);
    });
  };
  const auto bytes = [&](const Range& of, const Range&, const auto& mods, const attn::Options& options) {
    const auto q = rows(call.q, of), k = rows(call.k, of), v = rows(call.v, of);
    return with_gate(of, [&](const auto& gate) {
      return rule == Rule::dplr
                 ? attn::dplr_workspace_bytes(q, k, v, rows(gates.a, of), rows(gates.b, of), gate, mods, options)
             : delta ? attn::delta_workspace_bytes(q, k, v, gate, rows(gates.beta, of), mods, options)
                     : attn::gated_workspace_bytes(q, k, v, gate, mods, options);
    });
  };
  const auto step = [&](StepwiseState& s, Index b, Index h, Index t, const FeatureRow& key,
                        const std::vector<Wide>& value) {
    if (rule == Rule::dplr)
      s.decay_and_rewrite(gates.at(b, h, t), gates.row(gates.a, b, h, t), gates.row(gates.b, b, h, t));
    else
      s.decay(gates.at(b, h, t));
    const Wide beta = gates.beta.view()(b, h, t, 0);
    s.add(key, value, delta ? &beta : nullptr);
  };
  const auto as_they_are = [](const std::vector<Wide>& x, bool) {
    return FeatureRow{x, std::vector<Wide>(x.size(), 0)};
  };
  call.run({rule == Rule::dplr ? "dplr"
            : delta            ? "delta rule"
                               : "gated",
            plan.head_dim, as_they_are, false},
           library, bytes, step, scale);
}

}  // namespace

void recurrences(Case& c) {
  if (c.random.percent(45)) return linear_recurrence(c);
  const Index kind = c.random.from(0, 99);
  if (kind < 65) return gated_of<float, float>(c);
  if (kind < 80) return gated_of<double, double>(c);
  if (kind < 90) return gated_of<Eigen::half, Eigen::half>(c);
  gated_of<Eigen::bfloat16, float>(c);
}

}  // namespace fuzz
