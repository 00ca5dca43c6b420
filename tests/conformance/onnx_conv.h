// ONNX's CausalConvWithState (opset 27): its cases, their results by the specification, and attn's call for them.
#pragma once

#include "onnx_generated.h"

namespace attn::test {

struct ConvWay {
  const char* activation;  ///< "": the attribute is absent
  bool has_bias;
};
inline constexpr ConvWay kConvWays[] = {{"", false}, {"none", true}, {"silu", false}, {"silu", true}, {"swish", true}};

struct ConvSizes {
  const char* name;
  Index batch, channels, len;
};
inline constexpr ConvSizes kConvSizes[] = {{"decode", 2, 6, 1}, {"prefill", 2, 70, 19}};

/// The widths of causal_conv1d(), and one on either side that it refuses.
inline constexpr Index kConvWidths[] = {2, 3, 4, 8}, kRefusedConvWidths[] = {1, 9};

inline NewCase conv_case(const ConvWay& way, const ConvSizes& s, Index width, bool has_past) {
  NewCase c("CausalConvWithState",
            "causal_conv_" + std::to_string(width) + "_" + s.name +
                (*way.activation ? std::string("_") + way.activation : "") + (way.has_bias ? "_bias" : "") +
                (has_past ? "_past" : ""),
            2e-6);
  if (*way.activation) c.text("activation", way.activation);
  c.input("input", {s.batch, s.channels, s.len});
  c.input("weight", {s.channels, 1, width});
  if (way.has_bias) c.input("bias", {s.channels});
  if (has_past) c.input("past_state", {s.batch, s.channels, width - 1});
  return c;
}

/// Pads each channel with its past on the left, convolves it, and keeps the last width - 1 elements.
inline void expect_conv(NewCase& c, const ConvSizes& s, Index width) {
  const std::vector<double> x = c.get().input("input").as<double>(), w = c.get().input("weight").as<double>();
  std::vector<double> bias(static_cast<std::size_t>(s.channels)), past, out, present;
  past.resize(static_cast<std::size_t>(s.batch * s.channels * (width - 1)));
  if (c.get().has("bias")) bias = c.get().input("bias").as<double>();
  if (c.get().has("past_state")) past = c.get().input("past_state").as<double>();
  const std::string activation = c.get().text("activation", "none");
  for (Index row = 0; row < s.batch * s.channels; ++row) {
    const auto channel = static_cast<std::size_t>(row % s.channels);
    std::vector<double> padded(past.begin() + row * (width - 1), past.begin() + (row + 1) * (width - 1));
    padded.insert(padded.end(), x.begin() + row * s.len, x.begin() + (row + 1) * s.len);
    for (std::size_t t = 0; t < static_cast<std::size_t>(s.len); ++t) {
      double y = bias[channel];
      for (std::size_t i = 0; i < static_cast<std::size_t>(width); ++i)
        y += w[channel * static_cast<std::size_t>(width) + i] * padded[t + i];
      out.push_back(activation == "none" ? y : y / (1 + std::exp(-y)));
    }
    present.insert(present.end(), padded.end() - (width - 1), padded.end());
  }
  c.output("output", {s.batch, s.channels, s.len}, out);
  c.output("present_state", {s.batch, s.channels, width - 1}, present);
}

inline void add_conv_cases(std::vector<Case>& cases) {
  for (const Index width : kConvWidths)
    for (const ConvSizes& s : kConvSizes)
      for (const ConvWay& way : kConvWays)
        for (const bool has_past : {false, true}) {
          NewCase c = conv_case(way, s, width, has_past);
          expect_conv(c, s, width);
          cases.push_back(c.get());
        }
  for (const Index width : kRefusedConvWidths) {
    NewCase c = conv_case({"none", true}, kConvSizes[1], width, false);
    c.refuse("weight has a width of " + std::to_string(width));
    cases.push_back(c.get());
  }
}

/// A tensor (a, b, c) as (a, c, b), without a copy.
template <class T>
TensorView<T, 3> last_two_swapped(T* data, Index a, Index b, Index c) {
  return {data, {a, c, b}, {b * c, 1, c}};
}

/// Tokens are rows in attn and columns in ONNX, so all tensors are transposed, inputs and outputs by their strides.
inline void run_conv(const Case& c, Comparison& comparison) {
  refuse_unknown(c, {"input", "weight", "bias", "past_state"}, {"activation"});
  const std::string activation = c.text("activation", "none");
  if (activation != "none" && activation != "silu" && activation != "swish")
    throw std::runtime_error("unknown activation '" + activation + "'");
  const std::vector<float> x = c.input("input").as<float>(), w = c.input("weight").as<float>();
  const Index batch = c.input("input").shape[0], channels = c.input("input").shape[1], len = c.input("input").shape[2];
  const Index width = c.input("weight").shape[2];
  const TensorView<const float, 2> weight(w.data(), {channels, width}, {width, 1});
  Tensor<float, 3> state({batch, width - 1, channels});
  if (c.has("past_state")) {
    const std::vector<float> past = c.input("past_state").as<float>();
    state = Tensor<float, 3>(last_two_swapped(past.data(), batch, channels, width - 1));
  }

  std::vector<float> y(x.size());
  const auto out = last_two_swapped(y.data(), batch, channels, len);
  const auto in = last_two_swapped(x.data(), batch, channels, len);
  const ConvOptions options{.silu = activation != "none"};
  if (c.has("bias"))
    causal_conv1d_into(out, state, in, weight, c.input("bias").tensor<float, 1>(), options);
  else
    causal_conv1d_into(out, state, in, weight, no_bias, options);
  comparison.check("causal_conv1d", "output", y);
  comparison.check("causal_conv1d", "present_state",
                   packed(last_two_swapped(state.data(), batch, width - 1, channels)));
}

}  // namespace attn::test
