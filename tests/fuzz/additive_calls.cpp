// Additive attention: projections, hyperbolic tangents and a product, with the error bounds propagated from step to
// step.
#include "families.h"
#include "tensor_call.h"

namespace fuzz {
namespace {

/// A parameter per head, or for all heads, in guarded memory; may be absent.
template <class T>
struct Parameter {
  std::optional<Guard4<T>> numbers;

  Parameter() = default;
  Parameter(Case& c, Index heads, Index rows, Index columns, double size) {
    Random& r = c.random;
    numbers.emplace(r, Shape<4>{1, r.percent(50) ? heads : 1, rows, columns}, Role::input);
    numbers->fill([&](Index, Index, Index, Index) { return size * r.normal(); });
    numbers->finish();
  }
  Wide at(Index head, Index row, Index column) const {
    return static_cast<Wide>(numbers->view()(0, numbers->view().dim(1) == 1 ? 0 : head, row, column));
  }
  attn::ScoreParameter<const T, 2> matrix() const {
    if (!numbers) return {};
    const auto& t = numbers->view();
    return TensorView<const T, 3>(t.data(), {t.dim(1), t.dim(2), t.dim(3)}, {t.stride(1), t.stride(2), t.stride(3)});
  }
  attn::ScoreParameter<const T, 1> vector() const {
    if (!numbers) return {};
    const auto& t = numbers->view();
    return TensorView<const T, 2>(t.data(), {t.dim(1), t.dim(3)}, {t.stride(1), t.stride(3)});
  }
};

/// Rows with `hidden` features, and their error bounds.
template <class R>
struct Projected {
  std::vector<R> is, error;
};

template <class R, class T, class X>
Projected<R> projected(const Guard4<X>& x, Index b, Index h, const Parameter<T>& weight, Index hidden,
                       const Parameter<T>& bias) {
  const R eps = std::numeric_limits<T>::epsilon();
  const auto& t = x.view();
  const R rounding = eps * (2 + std::sqrt(static_cast<R>(t.dim(3))));
  Projected<R> p;
  for (Index i = 0; i < t.dim(2); ++i)
    for (Index f = 0; f < hidden; ++f) {
      const auto number = [&](Index d) { return static_cast<R>(static_cast<T>(t(b, h, i, d))); };
      R sum = 0, size = 0;
      for (Index d = 0; weight.numbers && d < t.dim(3); ++d) {
        const R term = static_cast<R>(weight.at(h, f, d)) * number(d);
        sum += term, size += std::abs(term);
      }
      if (!weight.numbers) sum = number(f);
      if (bias.numbers) sum += static_cast<R>(bias.at(h, 0, f));
      p.is.push_back(sum);
      p.error.push_back(rounding * size + eps * std::abs(sum));
    }
  return p;
}

template <class X>
class AdditiveCall {
 public:
  using T = Computed<X>;
  using R = Exact<X>;

  explicit AdditiveCall(Case& c)
      : c_(c),
        sizes_(random_sizes(c, 2e5)),
        l_(sizes_.batch() > 0 ? sizes_.each[0] : Lens{1, 1, 0}),
        hidden_(c.random.percent(50) ? c.random.from(1, 20) : std::min<Index>(c.random.features(), 70)),
        has_query_weight_(c.random.percent(80)),
        has_key_weight_(c.random.percent(70)),
        key_dim_(!has_key_weight_ ? hidden_ : c.random.from(1, 40)),
        q_(c.random, {sizes_.batch(), sizes_.heads, l_.q_len, has_query_weight_ ? sizes_.head_dim : hidden_},
           Role::input),
        k_(c.random, {sizes_.batch(), sizes_.kv_heads, l_.kv_len, key_dim_}, Role::input),
        v_(c.random, {sizes_.batch(), sizes_.kv_heads, l_.kv_len, sizes_.v_dim}, Role::input) {
    fill(c, q_, k_, v_);
    const auto root = [](Index n) { return 1 / std::sqrt(static_cast<double>(n)); };
    if (has_query_weight_) query_weight_ = {c, sizes_.heads, hidden_, sizes_.head_dim, root(sizes_.head_dim)};
    if (has_key_weight_) key_weight_ = {c, sizes_.kv_heads, hidden_, key_dim_, root(key_dim_)};
    score_weight_ = {c, sizes_.heads, 1, hidden_, c.random.of({1.0, 0.2, 10.0})};
    if (c.random.percent(60)) bias_ = {c, sizes_.heads, 1, hidden_, 1};
    c.text << ' ' << name_of<X>() << " hidden=" << hidden_ << (has_query_weight_ ? " W_q" : "")
           << (has_key_weight_ ? " W_k" : "") << (bias_.numbers ? " b" : "");
    options_ = c.options();
    scale_ = c.draw_scale(options_, 1);
    options_.q_offset = l_.q_offset;
  }
  const Sizes& sizes() const { return sizes_; }

  template <class M>
  void make(const M& mods, const Meanings& meanings) {
    for (const Meaning& m : meanings) c_.text << " | " << m.text;
    const attn::AdditiveScore<T> score{query_weight_.matrix(), key_weight_.matrix(), score_weight_.vector(),
                                       bias_.vector()};
    const auto q = q_.input(), k = k_.input(), v = v_.input();
    const Guarded memory =
        workspace(c_, options_, [&](const auto& o) { return attn::additive_workspace_bytes(q, k, v, score, mods, o); });
    ++c_.calls;
    if (c_.random.percent(12)) {
      const auto r = attn::naive_additive_attention(q, k, v, score, mods, options_);
      return judge_all<X>(r.out.view(), r.lse.view(), meanings, naive_precision<X>(), "naive");
    }
    Guard4<X> out(c_.random, {sizes_.batch(), sizes_.heads, l_.q_len, sizes_.v_dim}, Role::output);
    Guard4<T> lse_memory(c_.random, {sizes_.batch(), sizes_.heads, l_.q_len, 1}, Role::output);
    const auto& l = lse_memory.view();
    const TensorView<T, 3> lse(l.data(), {l.dim(0), l.dim(1), l.dim(2)}, {l.stride(0), l.stride(1), l.stride(2)});
    attn::additive_attention_into(out.view(), lse, q, k, v, score, mods, options_);
    out.check_gaps("out"), lse_memory.check_gaps("lse");
    judge_all<X>(out.view(), lse, meanings, flash_precision_of<T>(), "flash");
  }

 private:
  template <class O>
  void judge_all(const TensorView<const O, 4>& out, const TensorView<const T, 3>& lse, const Meanings& meanings,
                 const Precision& precision, const char* path) {
    for (Sequence<R>& s : sequences_of(sizes_, scale_, q_, k_, v_)) {
      s.q.clear(), s.k.clear();
      for (Index h = 0; h < s.heads; ++h) add_scores(s, h);
      Results<R> results{of_batch<R>(out, s.batch), of_batch<R>(lse, s.batch), {}};
      results.out_relative = Rounding<O>::relative, results.out_absolute = Rounding<O>::absolute;
      judge(c_, s, meanings, precision, results, path);
    }
  }

  /// Computes the scores of a head: scale * sum over features of w * tanh(query + key).
  void add_scores(Sequence<R>& s, Index h) const {
    const R eps = std::numeric_limits<T>::epsilon(), scale = static_cast<R>(scale_);
    const Index kv_head = h / (s.heads / s.kv_heads);
    const Projected<R> q = projected<R>(q_, s.batch, h, query_weight_, hidden_, bias_),
                       k = projected<R>(k_, s.batch, kv_head, key_weight_, hidden_, Parameter<T>());
    const R rounding = eps * (3 + std::sqrt(static_cast<R>(hidden_)));
    for (Index i = 0; i < l_.q_len; ++i)
      for (Index j = 0; j < l_.kv_len; ++j) {
        R sum = 0, error = 0;
        for (Index f = 0; f < hidden_; ++f) {
          const auto a = static_cast<std::size_t>(i * hidden_ + f), b = static_cast<std::size_t>(j * hidden_ + f);
          const R x = q.is[a] + k.is[b], off = q.error[a] + k.error[b] + eps * std::abs(x), t = std::tanh(x),
                  w = scale * static_cast<R>(score_weight_.at(h, 0, f));
          // The tanh has an error of at most 8 units in the last place, and changes by at most as much as its argument.
          sum += w * t, error += std::abs(w) * (std::min<R>(off, 2) + (8 * eps + rounding) * std::abs(t));
        }
        s.scores.push_back(sum);
        s.score_errors.push_back(error);
      }
  }

  Case& c_;
  Sizes sizes_;
  Lens l_;
  Index hidden_;
  bool has_query_weight_, has_key_weight_;
  Index key_dim_;
  Guard4<X> q_, k_, v_;
  Parameter<T> query_weight_, key_weight_, score_weight_, bias_;
  attn::Options options_;
  Wide scale_ = 1;
};

}  // namespace

void additive(Case& c) {
  const auto run = [&](auto&& call) {
    if (c.random.percent(30)) return call.make(attn::Mods<>(), {});
    with_all_mods(c, call.sizes(), [&](const auto& mods, const Meanings& meanings) { call.make(mods, meanings); });
  };
  const Index kind = c.random.from(0, 99);
  if (kind < 70) return run(AdditiveCall<float>(c));
  if (kind < 80) return run(AdditiveCall<double>(c));
  if (kind < 90) return run(AdditiveCall<Eigen::half>(c));
  run(AdditiveCall<Eigen::bfloat16>(c));
}

}  // namespace fuzz
