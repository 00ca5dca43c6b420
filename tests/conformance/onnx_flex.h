// ONNX's FlexAttention (ai.onnx.preview 1): its cases, their results by the specification, and attn's calls for them.
#pragma once

#include "onnx_generated.h"
#include "support/any_mods.h"

namespace attn::test {

/// An element of the result of a score_mod or prob_mod, from that of its input.
using FlexFunction = std::function<double(double, const Position&)>;

/// The two graphs of a node, and attn's mods that have their effect; or the reason why there are none.
struct FlexMods {
  std::string name;
  FlexFunction score_mod, prob_mod;
  std::optional<AnyMods<float>> in_float;
  std::optional<AnyMods<double>> in_double;
  std::string reason;
};

template <class M>
FlexMods flex(const char* name, FlexFunction score_mod, FlexFunction prob_mod, const M& mods) {
  return {name, std::move(score_mod), std::move(prob_mod), AnyMods<float>(mods), AnyMods<double>(mods), {}};
}
inline FlexMods not_in_attn(const char* name, const char* reason) { return {name, {}, {}, {}, {}, reason}; }

inline const std::vector<FlexMods>& flex_mods() {
  constexpr double kInf = std::numeric_limits<double>::infinity();
  const auto same = [](auto x, const Position&) { return x; };
  const auto bias = [](auto x, const Position& p) { return x + decltype(x)(p.kv % 3); };
  const auto relative = [](auto x, const Position& p) { return x - decltype(x)(std::abs(p.q - p.kv)) / 4; };
  const auto by_head = [](auto x, const Position& p) { return x * decltype(x)(1 + p.head + 3 * p.batch); };
  const auto squared = [](auto w, const Position& p) { return w * w * decltype(w)(1 + p.head); };
  const auto by_kv = [](auto w, const Position& p) { return w * decltype(w)(p.kv % 4) + decltype(w)(0.125); };
  const auto capped = [](double x, const Position&) { return 2 * std::tanh(x / 2); };
  const auto causal_only = [](double x, const Position& p) { return p.kv <= p.q ? x : -kInf; };
  const auto window = [](double x, const Position& p) { return p.kv <= p.q && p.q - p.kv <= 2 ? x : -kInf; };
  const auto capped_causal = [=](double x, const Position& p) { return causal_only(capped(x, p), p); };
  static const std::vector<FlexMods> all{
      flex("none", same, same, full()),
      flex("bias", bias, same, score_mod(bias)),
      flex("relative", relative, same, score_mod(relative)),
      flex("by_head", by_head, same, score_mod(by_head)),
      flex("softcap", capped, same, softcap(2)),
      flex("causal", causal_only, same, causal()),
      flex("window", window, same, causal() | sliding_window(2, 0)),
      flex("softcap_causal", capped_causal, same, softcap(2) | causal()),
      flex("prob_mod", same, squared, weight_mod(squared)),
      flex("both_mods", bias, by_kv, score_mod(bias) | weight_mod(by_kv)),
      not_in_attn("score_mod_of_rows", "the score_mod combines several scores, but attn's score mods see one pair"),
      not_in_attn("masked_row", "a query sees no key; ONNX's softmax gives NaN, attn 0"),
  };
  return all;
}

struct FlexSizes {
  const char* name;
  Index batch, q_heads, kv_heads, q_len, kv_len, head_dim, v_dim;
  std::optional<double> scale = std::nullopt;
};
inline constexpr FlexSizes kFlexSizes[] = {
    {"mha", 2, 4, 4, 8, 6, 16, 16},
    {"gqa", 2, 6, 2, 5, 7, 8, 12, 0.1},
    {"long", 1, 2, 1, 70, 150, 16, 16},
};

/// Element types in ONNX's numbering.
enum class OnnxType { f32 = 1, f16 = 10, f64 = 11, bf16 = 16 };

struct FlexPrecision {
  const char* name = "";
  bool double_inputs = false;
  std::optional<OnnxType> softmax = std::nullopt;
};
inline constexpr FlexPrecision kFlexPrecisions[] = {
    {"_softmax_f32", false, OnnxType::f32},
    {"_softmax_f64", false, OnnxType::f64},
    {"_f64", true},
};
inline constexpr FlexPrecision kRefusedFlexPrecisions[] = {
    {"_softmax_f16", false, OnnxType::f16},
    {"_softmax_bf16", false, OnnxType::bf16},
    {"_f64_softmax_f32", true, OnnxType::f32},
};

/// The type of the softmax: softmax_precision, else double for double inputs and float for all others.
inline OnnxType softmax_type(const Case& c) {
  const OnnxType otherwise = c.input("Q").dtype == DType::f64 ? OnnxType::f64 : OnnxType::f32;
  return static_cast<OnnxType>(static_cast<int>(c.attr("softmax_precision", static_cast<double>(otherwise))));
}

inline NewCase flex_case(const FlexMods& mods, const FlexSizes& s, const FlexPrecision& precision) {
  const bool in_double = precision.double_inputs || precision.softmax == OnnxType::f64;
  NewCase c("FlexAttention", "flex_attention_" + mods.name + "_" + s.name + precision.name, in_double ? 1e-13 : 2e-6);
  c.text("mods", mods.name);
  if (s.scale) c.attr("scale", *s.scale);
  if (precision.softmax) c.attr("softmax_precision", static_cast<double>(*precision.softmax));
  if (precision.double_inputs) c.with_double_inputs();
  c.input("Q", {s.batch, s.q_heads, s.q_len, s.head_dim});
  c.input("K", {s.batch, s.kv_heads, s.kv_len, s.head_dim});
  c.input("V", {s.batch, s.kv_heads, s.kv_len, s.v_dim});
  return c;
}

inline void expect_flex(NewCase& c, const FlexMods& mods, const FlexSizes& s) {
  const auto q = c.get().input("Q").tensor<double, 4>(), k = c.get().input("K").tensor<double, 4>(),
             v = c.get().input("V").tensor<double, 4>();
  const double scale = s.scale.value_or(1 / std::sqrt(static_cast<double>(s.head_dim)));
  std::vector<double> out;
  for (Position p; p.batch < s.batch; ++p.batch)
    for (p.head = 0; p.head < s.q_heads; ++p.head)
      for (p.q = 0; p.q < s.q_len; ++p.q) {
        const Index kv_head = p.head / (s.q_heads / s.kv_heads);
        Eigen::VectorXd row = scale * (k.matrix(p.batch, kv_head) * q.matrix(p.batch, p.head).row(p.q).transpose());
        for (p.kv = 0; p.kv < s.kv_len; ++p.kv) row(p.kv) = mods.score_mod(row(p.kv), p);
        row = (row.array() - row.maxCoeff()).exp();
        row /= row.sum();
        for (p.kv = 0; p.kv < s.kv_len; ++p.kv) row(p.kv) = mods.prob_mod(row(p.kv), p);
        const Eigen::VectorXd y = v.matrix(p.batch, kv_head).transpose() * row;
        out.insert(out.end(), y.data(), y.data() + y.size());
      }
  c.output("Y", {s.batch, s.q_heads, s.q_len, s.v_dim}, out);
}

inline void add_flex_cases(std::vector<Case>& cases) {
  const auto add = [&](const FlexMods& mods, const FlexSizes& s, const FlexPrecision& precision) {
    NewCase c = flex_case(mods, s, precision);
    expect_flex(c, mods, s);
    cases.push_back(c.get());
  };
  const auto refuse = [&](const FlexMods& mods, const FlexPrecision& precision, const std::string& message) {
    NewCase c = flex_case(mods, kFlexSizes[0], precision);
    c.refuse(message);
    cases.push_back(c.get());
  };
  for (const FlexMods& mods : flex_mods()) {
    if (!mods.reason.empty()) {
      refuse(mods, {}, mods.reason);
      continue;
    }
    for (const FlexSizes& s : kFlexSizes) add(mods, s, {});
    for (const FlexPrecision& precision : kFlexPrecisions) add(mods, kFlexSizes[1], precision);
  }
  for (const FlexPrecision& precision : kRefusedFlexPrecisions) refuse(flex_mods()[0], precision, "not in a lower one");
}

/// Runs both paths in T.
template <class T>
void run_flex_in(const Case& c, const AnyMods<T>& mods, Comparison& comparison) {
  const auto q = c.input("Q").tensor<T, 4>(), k = c.input("K").tensor<T, 4>(), v = c.input("V").tensor<T, 4>();
  Options options;
  options.q_offset = 0;  // graphs number queries and keys from 0, attn by default such that the last ones coincide
  if (c.has_attr("scale")) options.scale = c.attr("scale", 0);
  Tensor<T, 4> out({q.dim(0), q.dim(1), q.dim(2), v.dim(3)});
  Tensor<T, 3> lse({q.dim(0), q.dim(1), q.dim(2)});
  mods.flash(out.view(), lse.view(), q.view(), k.view(), v.view(), options);
  comparison.check("flash", "Y", packed(out.view()));
  const auto naive = mods.naive(q.view(), k.view(), v.view(), options);
  comparison.check("naive", "Y", packed(naive.out.view()));
}

inline void run_flex(const Case& c, Comparison& comparison) {
  refuse_unknown(c, {"Q", "K", "V"}, {"scale", "softmax_precision", "mods"});
  const OnnxType type = softmax_type(c);
  if (type != OnnxType::f64 && (type != OnnxType::f32 || c.input("Q").dtype == DType::f64))
    throw std::runtime_error(
        "attn computes the softmax in the type of the scores, float or double, not in a lower one");
  for (const FlexMods& mods : flex_mods())
    if (mods.name == c.text("mods", "none")) {
      if (!mods.reason.empty()) throw std::runtime_error(mods.reason);
      return type == OnnxType::f64 ? run_flex_in(c, *mods.in_double, comparison)
                                   : run_flex_in(c, *mods.in_float, comparison);
    }
  throw std::runtime_error("unknown mods '" + c.text("mods", "none") + "'");
}

}  // namespace attn::test
