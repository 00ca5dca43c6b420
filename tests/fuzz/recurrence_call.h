// A call of a recurrence: random sizes, masks and states, in one call or in chunks and single steps.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "recurrence_oracle.h"
#include "tensor_call.h"

namespace fuzz {

/// The sizes and masks of a call.
struct RecurrentPlan {
  Index batch, heads, kv_heads, q_len, kv_len, head_dim, v_dim;
  bool gated, causal, has_state;
  std::vector<Index> q_offsets;  ///< per batch element
  std::vector<Index> lengths;    ///< per batch element; empty: no mask
  std::vector<Index> ids;        ///< document ids; empty: no mask
  std::vector<Index> cuts;       ///< ends of the chunks; the last is kv_len
  bool given_offset = false, given_offsets = false;

  Index length(Index b) const { return lengths.empty() ? kv_len : lengths[static_cast<std::size_t>(b)]; }
  Index offset(Index b) const { return q_offsets[static_cast<std::size_t>(b)]; }
  /// The keys visible to a row.
  Range seen(Index b, Index row) const {
    const Index at = offset(b) + row;
    Index begin = 0, end = kv_len;
    if (!ids.empty()) {
      const auto first = std::find(ids.begin(), ids.end(), ids[static_cast<std::size_t>(at)]);
      begin = first - ids.begin();
      end = std::find_if(first, ids.end(), [&](Index id) { return id != *first; }) - ids.begin();
    }
    if (causal) end = std::min(end, at + 1);
    return {begin, std::max(begin, std::min(end, length(b)))};
  }
};
RecurrentPlan random_recurrence(Case& c, bool gated);

/// Rows [begin, end) of a tensor (batch, heads, rows, columns).
template <class X>
TensorView<X, 4> rows_of(const TensorView<X, 4>& t, Index begin, Index end) {
  auto shape = t.shape();
  shape[2] = end - begin;
  return t.part(t.size() == 0 ? 0 : begin * t.stride(2), shape, t.strides());
}

/// Sets elements beyond each batch element's length to NaN, unless elements share memory: one may also belong to a
/// batch element that is longer.
template <class X>
void poison_after_lengths(const RecurrentPlan& p, const Guard4<X>& tokens) {
  const auto& t = tokens.view();
  for (int d = 0; d < 4; ++d)
    if (t.dim(d) > 1 && t.stride(d) == 0) return;
  tokens.each([&](Index b, Index h, Index j, Index x) {
    if (j >= p.length(b)) t(b, h, j, x) = number<X>(std::numeric_limits<double>::quiet_NaN());
  });
}

/// Calls use() with the mods for a chunk of a plan.
template <bool kDocuments, class Use>
void with_masks(const RecurrentPlan& p, Index begin, Index end, const Use& use) {
  std::vector<Index> lengths;
  for (const Index n : p.lengths) lengths.push_back(std::clamp<Index>(n - begin, 0, end - begin));
  const bool has_lengths = !lengths.empty();
  const auto length_mask = attn::key_lengths(lengths);
  if constexpr (kDocuments) {
    if (!p.ids.empty()) {
      const auto mask = attn::documents(p.ids);
      if (has_lengths) return p.causal ? use(attn::causal() | mask | length_mask) : use(mask | length_mask);
      return p.causal ? use(mask | attn::causal()) : use(mask);
    }
  }
  if (has_lengths) return p.causal ? use(length_mask | attn::causal()) : use(length_mask);
  return p.causal ? use(attn::causal()) : use(attn::Mods<>());
}

/// The feature map of a form, and whether it divides by a normaliser.
struct RecurrentForm {
  std::string text;
  Index features;
  std::function<FeatureRow(const std::vector<Wide>&, bool is_query)> features_of;
  bool is_normalised;
};

/// X: the tensors' scalar, O: the output's.
template <class X, class O>
class RecurrentCall {
 public:
  using T = Computed<X>;

  RecurrentCall(Case& c, bool gated)
      : plan(random_recurrence(c, gated)),
        q(c.random, {plan.batch, plan.heads, plan.q_len, plan.head_dim}, Role::input),
        k(c.random, {plan.batch, plan.kv_heads, plan.kv_len, plan.head_dim}, Role::input),
        v(c.random, {plan.batch, plan.kv_heads, plan.kv_len, plan.v_dim}, Role::input),
        c_(c),
        out_(c.random, {plan.batch, plan.heads, plan.q_len, plan.v_dim}, Role::output) {
    c.text << ' ' << name_of<X>() << "->" << name_of<O>();
    options = c.options();
    if (plan.given_offset) options.q_offset = plan.q_offsets[0];
    if (plan.given_offsets) options.q_offsets = plan.q_offsets;
  }

  const RecurrentPlan plan;
  Guard4<X> q, k, v;
  attn::Options options;

  /// Draws values; those after the lengths, and sometimes another one, are NaN.
  void fill(double query_size, double key_size, bool may_poison) {
    Random& r = c_.random;
    const bool repeats = r.percent(6);
    q.fill([&](Index, Index, Index, Index) { return query_size * r.normal(); });
    k.fill([&](Index, Index, Index, Index) { return repeats ? key_size / 2 : key_size * r.normal(); });
    v.fill([&](Index, Index, Index, Index) { return r.normal() + 0.3; });
    poison_after_lengths(plan, k), poison_after_lengths(plan, v);
    if (may_poison && plan.kv_len > 0 && r.percent(12)) {
      const auto& t = r.percent(50) ? k : v;
      const Index b = r.from(0, plan.batch - 1), h = r.from(0, plan.kv_heads - 1), j = r.from(0, plan.kv_len - 1),
                  e = r.from(0, t.view().dim(3) - 1);
      t.view()(b, h, j, e) = number<X>(std::numeric_limits<double>::quiet_NaN());
      c_.text << " poison";
    }
    q.finish(), k.finish(), v.finish();
  }

  /// Calls library(out, state or nullptr, rows, keys, mods, options) for each chunk of the tokens, with a workspace of
  /// bytes(rows, keys, mods, options), and judges the results. step(state, batch, head, token, key, value) adds a token
  /// to the oracle's state.
  template <class Library, class Bytes, class Step>
  void run(const RecurrentForm& form, const Library& library, const Bytes& bytes, const Step& step, Wide scale) {
    c_.text << ' ' << form.text;
    ++c_.calls;
    std::optional<attn::RecurrentState<T>> state, first;
    if (plan.has_state) state = first = random_state(form);
    const auto call = [&](const TensorView<O, 4>& out, attn::RecurrentState<T>* to, const attn::Options& given) {
      Index begin = 0;
      for (const Index end : plan.cuts) {
        attn::Options own = given;
        const bool whole = plan.cuts.size() == 1;
        const Range rows = whole ? Range{0, plan.q_len} : Range{begin, end}, keys{begin, end};
        const auto use = [&](auto state_or_null, const auto& mods) {
          Guarded memory;
          if (given.workspace.data() == nullptr)
            memory = workspace(c_, own, [&](const auto& o) { return bytes(rows, keys, mods, o); });
          library(rows_of(out, rows.begin, rows.end), state_or_null, rows, keys, mods, own);
        };
        // Calls with a state take no mask of documents, so the type says whether there is a state.
        if (to)
          with_masks<false>(plan, begin, end, [&](const auto& mods) { use(to, mods); });
        else
          with_masks<true>(plan, begin, end, [&](const auto& mods) { use(nullptr, mods); });
        begin = end;
      }
    };
    call(out_.view(), state ? &*state : nullptr, options);
    out_.check_gaps("out");
    judge_all(form, step, scale, first ? &*first : nullptr, state ? &*state : nullptr);
    if (!c_.random.percent(10)) return;
    Tensor<O, 4> again(out_.shape());
    attn::Options other = options;
    other.executor = c_.random.percent(50) ? attn::serial() : Case::pool(3);
    ++c_.calls;
    call(again.view(), first ? &*first : nullptr, other);
    out_.each([&](Index b, Index h, Index i, Index e) {
      const T x = static_cast<T>(out_.view()(b, h, i, e)), y = static_cast<T>(again(b, h, i, e));
      if (!(x == y) && !(x != x && y != y))
        fail("out (", b, ", ", h, ", ", i, ", ", e, ") depends on the executor: ", x, " and ", y);
    });
  }

 private:
  /// A row's values, widened.
  static std::vector<Wide> row(const Guard4<X>& t, Index b, Index h, Index i) {
    std::vector<Wide> x;
    for (Index d = 0; d < t.view().dim(3); ++d) x.push_back(static_cast<Wide>(static_cast<T>(t.view()(b, h, i, d))));
    return x;
  }

  /// The largest magnitude that is judged. Where a rule lets the state grow without bound, sums may overflow before the
  /// result does.
  template <class Number>
  static Wide most_of() {
    return static_cast<Wide>(static_cast<T>(std::numeric_limits<Number>::max())) / 16;
  }

  attn::RecurrentState<T> random_state(const RecurrentForm& form) {
    Random& r = c_.random;
    attn::RecurrentState<T> s(
        {.batch = plan.batch, .kv_heads = plan.kv_heads, .features = form.features, .v_dim = plan.v_dim});
    if (r.percent(30)) return s;
    c_.text << " continues";
    for (Index b = 0; b < plan.batch; ++b)
      for (Index h = 0; h < plan.kv_heads; ++h)
        for (Index f = 0; f < form.features; ++f) {
          s.normaliser()(b, h, f) = static_cast<T>(std::abs(r.normal()));
          for (Index e = 0; e < plan.v_dim; ++e) s.sums()(b, h, f, e) = static_cast<T>(r.normal());
        }
    return s;
  }

  template <class Step>
  void judge_all(const RecurrentForm& form, const Step& step, Wide scale, const attn::RecurrentState<T>* before,
                 const attn::RecurrentState<T>* after) {
    const Wide value_factor = form.is_normalised ? c_.oracle_scale(1) : 1;
    double share = 0, state_share = 0;
    for (Index b = 0; b < plan.batch; ++b)
      for (Index h = 0; h < plan.kv_heads; ++h) {
        StepwiseState s(form.features, plan.v_dim, plan.kv_len, std::numeric_limits<T>::epsilon(),
                        std::numeric_limits<T>::min());
        const auto begin = [&] {
          s.clear();
          if (before)
            s.begin([&](Index f, Index e) { return static_cast<Wide>(before->sums()(b, h, f, e)); },
                    [&](Index f) { return static_cast<Wide>(before->normaliser()(b, h, f)); });
        };
        Index from = 0, next = 0;
        const auto add_up_to = [&](Index end) {
          for (; next < end; ++next) {
            std::vector<Wide> value = row(v, b, h, next);
            for (Wide& x : value) x *= value_factor;
            step(s, b, h, next, form.features_of(row(k, b, h, next), false), value);
          }
        };
        begin();
        for (Index i = 0; i < plan.q_len; ++i) {
          const Range seen = plan.seen(b, i);
          if (seen.begin != from) begin(), from = next = seen.begin;
          add_up_to(seen.end);
          const bool is_token = !plan.gated || i < plan.length(b);
          const Index group = plan.heads / plan.kv_heads;
          for (Index g = h * group; g < (h + 1) * group; ++g) {
            StepwiseState::Answer a = s.read(form.features_of(row(q, b, g, i), true), scale, form.is_normalised);
            for (Index e = 0; e < plan.v_dim; ++e) {
              const auto x = static_cast<std::size_t>(e);
              if (!is_token) a.is[x] = a.error[x] = 0;
              if (std::abs(a.is[x]) > most_of<O>()) a.error[x] = std::numeric_limits<Wide>::infinity();
              share =
                  std::max(share, judge_number<Wide>(static_cast<T>(out_.view()(b, g, i, e)), a.is[x], a.error[x],
                                                     Rounding<O>::relative, Rounding<O>::absolute, "out", b, g, i, e));
            }
          }
        }
        if (!after) continue;
        add_up_to(plan.length(b));
        for (Index f = 0; f < form.features; ++f) {
          if (form.is_normalised)
            judge_number<Wide>(after->normaliser()(b, h, f), s.key(f), s.key_error(f), 0, 0, "normaliser", b, h, f, 0);
          for (Index e = 0; e < plan.v_dim && std::abs(s.sum(f, e)) <= most_of<T>(); ++e)
            state_share = std::max(state_share, judge_number<Wide>(after->sums()(b, h, f, e), s.sum(f, e),
                                                                   s.sum_error(f, e), 0, 0, "state", b, h, f, e));
        }
      }
    c_.used(Rounding<O>::kNarrow ? "rounded out" : "out", share);
    if (after) c_.used("state", state_share);
  }

  Case& c_;
  Guard4<O> out_;
};

}  // namespace fuzz
