// ONNX's LinearAttention (opset 27): its cases, their results by the specification, and attn's calls for them.
#pragma once

#include "onnx_generated.h"

namespace attn::test {

/// What an input has one value for, of each token.
enum class Per { absent, token, head, feature };

/// One way to call the operator. The text requires a decay if the rule is gated, and a beta if it is a delta rule.
struct LinearRule {
  const char* name;
  const char* update_rule;  ///< "": the attribute is absent, which means gated_delta
  Per decay = Per::absent, beta = Per::absent, erase_gate = Per::absent;
};
inline constexpr LinearRule kLinearRules[] = {
    {"linear", "linear"},
    {"gated_per_head", "gated", Per::head},
    {"gated_per_feature", "gated", Per::feature},
    {"delta", "delta", Per::absent, Per::head},
    {"delta_one_beta", "delta", Per::absent, Per::token},
    {"gated_delta_per_head", "gated_delta", Per::head, Per::head},
    {"gated_delta_per_feature", "gated_delta", Per::feature, Per::head},
    {"default_rule", "", Per::head, Per::head},
    {"gated_delta_one_beta", "gated_delta", Per::feature, Per::token},
    // The input erase_gate is proposed in onnx/onnx#8027 for Gated DeltaNet-2; opset 27 does not have it.
    {"delta_erase", "delta", Per::absent, Per::head, Per::feature},
    {"gated_delta_erase", "gated_delta", Per::feature, Per::head, Per::feature},
};

struct LinearSizes {
  const char* name;
  Index batch, len, q_heads, kv_heads, d_k, d_v;
  std::optional<double> scale = std::nullopt;
};
inline constexpr LinearSizes kLinearSizes[] = {
    {"prefill", 2, 5, 4, 4, 8, 8},
    {"decode", 2, 1, 4, 2, 8, 8},
    {"gqa", 2, 9, 6, 2, 8, 12, 0.0},      // by the text, a scale of 0 is the default
    {"mqa", 1, 140, 3, 1, 16, 20, 0.75},  // several of attn's chunks of 64 tokens
};

/// Rows of a packed tensor (batch, len, heads * dim) in double: one per token and head. One head stands for all.
class PackedRows {
 public:
  PackedRows(const Array& array, Index heads)
      : values_(array.as<double>()), len_(array.shape[1]), heads_(heads), dim_(array.shape[2] / heads) {}

  Eigen::VectorXd operator()(Index b, Index t, Index h) const {
    const Index row = (b * len_ + t) * heads_ + (heads_ == 1 ? 0 : h);
    return Eigen::Map<const Eigen::VectorXd>(values_.data() + row * dim_, dim_);
  }

 private:
  std::vector<double> values_;
  Index len_, heads_, dim_;
};

/// The operator's recurrence for one head of keys and values, token by token as in its text.
class LinearOracle {
 public:
  LinearOracle(const Case& c, const LinearSizes& s)
      : s_(s),
        q_(c.input("query"), s.q_heads),
        k_(c.input("key"), s.kv_heads),
        v_(c.input("value"), s.kv_heads),
        scale_(s.scale.value_or(0) == 0 ? 1 / std::sqrt(static_cast<double>(s.d_k)) : *s.scale) {
    if (c.has("decay")) decay_.emplace(c.input("decay"), s.kv_heads);
    if (c.has("beta")) beta_.emplace(c.input("beta"), c.input("beta").shape[2]);
    if (c.has("erase_gate")) erase_.emplace(c.input("erase_gate"), s.kv_heads);
  }

  /// Advances the state (d_k, d_v) by token t.
  void advance(Eigen::MatrixXd& state, Index b, Index t, Index h) const {
    const Eigen::VectorXd key = k_(b, t, h);
    Eigen::VectorXd written = v_(b, t, h);
    if (decay_) {
      const Eigen::VectorXd kept = (*decay_)(b, t, h).array().exp();
      for (Index d = 0; d < s_.d_k; ++d) state.row(d) *= kept(kept.size() == 1 ? 0 : d);
    }
    if (beta_) {
      Eigen::VectorXd reader = key;
      if (erase_) reader.array() *= (*erase_)(b, t, h).array();
      written = (*beta_)(b, t, h)(0) * (written - state.transpose() * reader);
    }
    state += key * written.transpose();
  }

  Eigen::VectorXd read(const Eigen::MatrixXd& state, Index b, Index t, Index q_head) const {
    return scale_ * (state.transpose() * q_(b, t, q_head));
  }

 private:
  const LinearSizes& s_;
  PackedRows q_, k_, v_;
  std::optional<PackedRows> decay_, beta_, erase_;
  double scale_;
};

inline void expect_linear(NewCase& c, const LinearSizes& s) {
  using RowMajor = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
  const LinearOracle oracle(c.get(), s);
  const Index group = s.q_heads / s.kv_heads, per_state = s.d_k * s.d_v;
  std::vector<double> states(static_cast<std::size_t>(s.batch * s.kv_heads * per_state));
  std::vector<double> out(static_cast<std::size_t>(s.batch * s.len * s.q_heads * s.d_v));
  if (c.get().has("past_state")) states = c.get().input("past_state").as<double>();
  for (Index b = 0; b < s.batch; ++b)
    for (Index h = 0; h < s.kv_heads; ++h) {
      Eigen::Map<RowMajor> memory(states.data() + (b * s.kv_heads + h) * per_state, s.d_k, s.d_v);
      Eigen::MatrixXd state = memory;
      for (Index t = 0; t < s.len; ++t) {
        oracle.advance(state, b, t, h);
        for (Index q_head = h * group; q_head < (h + 1) * group; ++q_head)
          Eigen::Map<Eigen::VectorXd>(out.data() + ((b * s.len + t) * s.q_heads + q_head) * s.d_v, s.d_v) =
              oracle.read(state, b, t, q_head);
      }
      memory = state;
    }
  c.output("output", {s.batch, s.len, s.q_heads * s.d_v}, out);
  c.output("present_state", {s.batch, s.kv_heads, s.d_k, s.d_v}, states);
}

/// Scales each key to the length 1, without which delta rules diverge.
inline void normalise_keys(std::vector<double>& keys, Index dim) {
  for (std::size_t at = 0; at < keys.size(); at += static_cast<std::size_t>(dim))
    Eigen::Map<Eigen::VectorXd>(keys.data() + at, dim).normalize();
}

/// Inputs other than query, key, value and state.
inline void add_gates(NewCase& c, const LinearRule& rule, const LinearSizes& s, double low, double high) {
  const auto of = [&](Per per) {
    const Index values = per == Per::token ? 1 : per == Per::head ? s.kv_heads : s.kv_heads * s.d_k;
    return std::vector<Index>{s.batch, s.len, values};
  };
  if (rule.decay != Per::absent) c.input("decay", of(rule.decay), low, high);
  if (rule.beta != Per::absent) c.input("beta", of(rule.beta), 0, 1);
  if (rule.erase_gate != Per::absent) c.input("erase_gate", of(rule.erase_gate), 0, 1);
}

inline NewCase linear_case(const LinearRule& rule, const LinearSizes& s, bool has_past, double low, double high) {
  NewCase c("LinearAttention", std::string("linear_attention_") + rule.name + "_" + s.name + (has_past ? "_past" : ""),
            1e-5);
  if (*rule.update_rule) c.text("update_rule", rule.update_rule);
  c.attr("chunk_size", 16);  // a hint, without effect on results
  c.attr("q_num_heads", static_cast<double>(s.q_heads));
  c.attr("kv_num_heads", static_cast<double>(s.kv_heads));
  if (s.scale) c.attr("scale", *s.scale);
  c.input("query", {s.batch, s.len, s.q_heads * s.d_k});
  c.input("key", {s.batch, s.len, s.kv_heads * s.d_k}, -1, 1,
          [&](std::vector<double>& keys) { normalise_keys(keys, s.d_k); });
  c.input("value", {s.batch, s.len, s.kv_heads * s.d_v});
  if (has_past) c.input("past_state", {s.batch, s.kv_heads, s.d_k, s.d_v});
  add_gates(c, rule, s, low, high);
  return c;
}

inline void add_linear_cases(std::vector<Case>& cases) {
  for (const LinearRule& rule : kLinearRules)
    for (const LinearSizes& s : kLinearSizes)
      for (const bool has_past : {false, true}) {
        NewCase c = linear_case(rule, s, has_past, -0.5, 0);
        expect_linear(c, s);
        cases.push_back(c.get());
      }
  NewCase growing = linear_case({"positive_decay", "gated", Per::head}, kLinearSizes[0], false, 0.1, 0.5);
  growing.refuse("a decay is above 0");
  cases.push_back(growing.get());
}

/// A LinearAttention case as attn's arguments, all of which are views of the packed inputs.
class OnnxLinear {
  template <int Rank>
  using View = TensorView<const float, Rank>;

 public:
  explicit OnnxLinear(const Case& c)
      : case_(c),
        q_heads_(heads("q_num_heads")),
        kv_heads_(heads("kv_num_heads")),
        batch_(c.input("query").shape[0]),
        len_(c.input("query").shape[1]) {
    refuse_unknown(c, {"query", "key", "value", "past_state", "decay", "beta", "erase_gate"},
                   {"q_num_heads", "kv_num_heads", "scale", "update_rule", "chunk_size"});
    check_rule(c.text("update_rule", "gated_delta"));
    for (const auto& [name, array] : c.inputs) numbers_[name] = array.as<float>();
    d_k_ = c.input("query").shape[2] / q_heads_;
    d_v_ = c.input("value").shape[2] / kv_heads_;
    if (c.attr("scale", 0) != 0) options_.scale = c.attr("scale", 0);
    if (c.has("decay"))
      for (const float decay : numbers_["decay"])
        if (decay > 0)
          throw std::runtime_error("a decay is above 0, but attn's gates are at most 0: states never grow");
    if (c.has("erase_gate")) add_low_rank();
  }

  void run(Comparison& comparison) const {
    in_parts(comparison, "chunks", len_);
    in_parts(comparison, "steps", 1);
  }

 private:
  Index heads(const char* attr) const { return static_cast<Index>(case_.attr(attr, 0)); }

  void check_rule(const std::string& rule) const {
    const bool gated = rule == "gated" || rule == "gated_delta", delta = rule == "delta" || rule == "gated_delta";
    if (!gated && !delta && rule != "linear") throw std::runtime_error("unknown update_rule '" + rule + "'");
    if (gated != case_.has("decay")) throw std::runtime_error(rule + " and decay do not go together");
    if (delta != case_.has("beta")) throw std::runtime_error(rule + " and beta do not go together");
  }

  /// An input (batch, len, heads * dim) as (batch, heads, len, dim), tokens begin .. end - 1.
  View<4> tokens(const std::string& name, Index heads, Index begin, Index end) const {
    const std::vector<float>& x = numbers_.at(name);
    const Index dim = static_cast<Index>(x.size()) / (batch_ * len_ * heads);
    return View<4>(bshd(x.data(), batch_, len_, heads, dim)).slice(2, begin, end);
  }
  /// The betas as (batch, kv_heads, len); one beta per token has a stride of 0 between heads.
  View<3> betas(Index begin, Index end) const {
    const std::vector<float>& x = numbers_.at("beta");
    const Index values = static_cast<Index>(x.size()) / (batch_ * len_);
    const View<3> all(x.data(), {batch_, kv_heads_, len_}, {len_ * values, values == 1 ? 0 : 1, values});
    return all.slice(2, begin, end);
  }

  /// Adds the vectors of dplr_delta_rule() for an erase gate e: a = decay * e * key, b = -beta * key; the key becomes
  /// beta * key.
  void add_low_rank() {
    const bool gated = case_.has("decay");
    const View<4> key = tokens("key", kv_heads_, 0, len_), erase = tokens("erase_gate", kv_heads_, 0, len_);
    const View<4> decay = gated ? tokens("decay", kv_heads_, 0, len_) : View<4>();
    const View<3> beta = betas(0, len_);
    std::vector<float> a, b;
    for (Index n = 0; n < batch_; ++n)
      for (Index t = 0; t < len_; ++t)
        for (Index h = 0; h < kv_heads_; ++h)
          for (Index d = 0; d < d_k_; ++d) {
            const float kept = gated ? std::exp(decay(n, h, t, decay.dim(3) == 1 ? 0 : d)) : 1;
            a.push_back(kept * erase(n, h, t, d) * key(n, h, t, d));
            b.push_back(-beta(n, h, t) * key(n, h, t, d));
          }
    numbers_["a"] = std::move(a);
    numbers_["written key"] = b;
    for (float& x : numbers_["written key"]) x = -x;
    numbers_["b"] = std::move(b);
  }

  /// The outputs of tokens begin .. end - 1, which follow those that the state has seen.
  Tensor<float, 4> part(RecurrentState<float>& state, Index begin, Index end) const {
    const auto of = [&](const std::string& name) { return tokens(name, kv_heads_, begin, end); };
    const View<4> q = tokens("query", q_heads_, begin, end);
    const auto with_gate = [&](const auto& gate) {
      if (case_.has("erase_gate"))
        return dplr_delta_rule(state, q, of("written key"), of("value"), of("a"), of("b"), gate, options_).out;
      if (case_.has("beta"))
        return gated_delta_rule(state, q, of("key"), of("value"), gate, betas(begin, end), options_).out;
      return gated_attention(state, q, of("key"), of("value"), gate, options_).out;
    };
    if (case_.has("decay")) return with_gate(of("decay"));
    return with_gate(decay_per_head(std::vector<double>(static_cast<std::size_t>(kv_heads_))));
  }

  /// Compares calls with `step` tokens each.
  void in_parts(Comparison& comparison, const std::string& path, Index step) const {
    RecurrentState<float> state({batch_, kv_heads_, d_k_, d_v_});
    if (case_.has("past_state")) {
      const Tensor<float, 4> past = case_.input("past_state").tensor<float, 4>();
      for (Index b = 0; b < batch_; ++b)
        for (Index h = 0; h < kv_heads_; ++h) state.sums().matrix(b, h) = past.matrix(b, h);
    }
    std::vector<float> out(static_cast<std::size_t>(batch_ * len_ * q_heads_ * d_v_));
    const TensorView<float, 4> by_token = bshd(out.data(), batch_, len_, q_heads_, d_v_);
    for (Index begin = 0; begin < len_; begin += step) {
      const Index end = std::min(begin + step, len_);
      const Tensor<float, 4> some = part(state, begin, end);
      for (Index b = 0; b < batch_; ++b)
        for (Index h = 0; h < q_heads_; ++h) by_token.slice(2, begin, end).matrix(b, h) = some.matrix(b, h);
    }
    comparison.check(path, "output", out);
    comparison.check(path, "present_state", packed(state.sums()));
  }

  const Case& case_;
  std::map<std::string, std::vector<float>> numbers_;
  Options options_;
  Index q_heads_, kv_heads_, batch_, len_, d_k_ = 0, d_v_ = 0;
};

}  // namespace attn::test
