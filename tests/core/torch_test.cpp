// Golden values from PyTorch in float64: scaled dot-product attention and nn.MultiheadAttention.
#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include <gtest/gtest.h>

#include "attn/attn.h"
#include "support/cases.h"

namespace {

using attn::Index;
using attn::test::Array;
using attn::test::Case;

std::vector<std::string> case_names() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(ATTN_TEST_DATA_DIR "/torch"))
    if (entry.is_directory()) names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

Case load(const std::string& name) { return attn::test::read_case(ATTN_TEST_DATA_DIR "/torch/" + name); }

/// In double the case's own tolerance, 1e-10 + 1e-9 |want|. In float, relative to max(1, |want|): the largest error of
/// all cases and paths was 1.8e-6 (g++ and clang++ at -O1, g++ at -O3 -march=native), and five times that is allowed,
/// since other processors sum in another order. Leaving out any one mod changed each affected output by at least 0.14.
/// Gradients are sums over tokens, some of which cancel: in float, errors are relative to a tensor's largest element.
template <class T>
double allowed(const Case& c, double want, double largest) {
  return std::is_same_v<T, double> ? c.atol + c.rtol * std::abs(want) : 1e-5 * std::max(1.0, largest);
}

template <class T, int Rank>
void expect_output(const Case& c, const std::string& name, const attn::Tensor<T, Rank>& got, const char* path) {
  const Array& want = c.output(name);
  ASSERT_EQ(std::vector<Index>(got.shape().begin(), got.shape().end()), want.shape) << path << " " << name;
  const std::vector<double> values = want.as<double>();
  double largest = 0;
  for (double x : values) largest = std::max(largest, std::abs(x));
  const bool is_gradient = name.rfind("grad_", 0) == 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const double x = static_cast<double>(got.data()[i]), difference = std::abs(x - values[i]);
    // Not `difference > allowed`: a NaN must fail.
    const bool same =
        x == values[i] || difference <= allowed<T>(c, values[i], is_gradient ? largest : std::abs(values[i]));
    ASSERT_TRUE(same) << path << " " << name << "[" << i << "] is " << x << ", PyTorch has " << values[i];
  }
}

/// Expects every line of the manifest to be known: an ignored line would leave its case untested.
void expect_understood(const Case& c, std::set<std::string> attrs, std::set<std::string> inputs,
                       std::set<std::string> outputs) {
  for (const auto& [name, value] : c.attrs) EXPECT_TRUE(attrs.count(name)) << "unknown attribute " << name;
  for (const auto& [name, array] : c.inputs) EXPECT_TRUE(inputs.count(name)) << "unknown input " << name;
  for (const auto& [name, array] : c.outputs)
    EXPECT_TRUE(outputs.count(name) || name.rfind("grad_", 0) == 0) << "unknown output " << name;
  for (const auto& name : outputs) EXPECT_TRUE(c.outputs.count(name)) << "no output " << name;
}

enum : unsigned { kSoftcap = 1, kAlibi = 2, kBias = 4, kCausal = 8, kWindow = 16, kKeyLengths = 32 };

/// Calls `run` with the mods of a case, scores first, in the order of the data's README. Each combination has its own
/// type, so only those that occur are compiled; any other fails.
template <class T, class Run>
void with_mods(const Case& c, const Run& run) {
  unsigned present = 0;
  if (c.attr("softcap", 0) != 0) present |= kSoftcap;
  if (c.has("alibi_slopes")) present |= kAlibi;
  if (c.has("bias")) present |= kBias;
  if (c.attr("causal", 0) != 0) present |= kCausal;
  if (c.has_attr("window_left")) present |= kWindow;
  if (c.has("key_lengths")) present |= kKeyLengths;

  const auto lengths = [&] { return attn::key_lengths(c.input("key_lengths").as<Index>()); };
  switch (present) {
    case 0:
      return run(attn::Mods<>{});
    case kCausal:
      return run(attn::causal());
    case kCausal | kWindow: {
      // Only the left side is limited: causal() limits the right one.
      const auto left = static_cast<Index>(c.attr("window_left", 0));
      return run(attn::causal() | attn::sliding_window(left, std::numeric_limits<Index>::max()));
    }
    case kSoftcap | kAlibi | kCausal:
      return run(attn::softcap(c.attr("softcap", 0)) | attn::alibi(c.input("alibi_slopes").as<double>()) |
                 attn::causal());
    case kBias | kKeyLengths:
      return run(attn::bias(c.input("bias").tensor<T, 4>()) | lengths());
    case kKeyLengths:
      return run(lengths());
    default:
      FAIL() << "no case had this combination of mods when the test was written";
  }
}

template <class T>
void run_scaled_dot_product(const Case& c) {
  expect_understood(c, {"scale", "causal", "window_left", "softcap"},
                    {"query", "key", "value", "bias", "alibi_slopes", "key_lengths", "grad_out"}, {"out", "lse"});
  const auto q = c.input("query").tensor<T, 4>(), k = c.input("key").tensor<T, 4>(),
             v = c.input("value").tensor<T, 4>();
  attn::Options options;
  if (c.has_attr("scale")) options.scale = c.attr("scale", 0);
  with_mods<T>(c, [&](const auto& mods) {
    const auto flash = attn::attention(q, k, v, mods, options);
    expect_output(c, "out", flash.out, "flash");
    expect_output(c, "lse", flash.lse, "flash");
    const auto naive = attn::naive_attention(q, k, v, mods, options);
    expect_output(c, "out", naive.out, "naive");
    expect_output(c, "lse", naive.lse, "naive");
    const auto grad_out = c.input("grad_out").tensor<T, 4>();
    const auto expect_gradients = [&](const auto& gradients, const char* path) {
      expect_output(c, "grad_query", gradients.query, path);
      expect_output(c, "grad_key", gradients.key, path);
      expect_output(c, "grad_value", gradients.value, path);
    };
    expect_gradients(attn::attention_backward(grad_out, q, k, v, flash, mods, options), "flash");
    if (c.has("bias")) {
      const auto bias = c.input("bias").tensor<T, 4>();
      const auto learned_as = [&](attn::Tensor<T, 4>& grad) {
        return attn::bias(bias, grad) | attn::key_lengths(c.input("key_lengths").as<Index>());
      };
      attn::Tensor<T, 4> grad(bias.shape()), naive_grad(bias.shape());
      expect_gradients(attn::attention_backward(grad_out, q, k, v, flash, learned_as(grad), options), "flash, learned");
      expect_output(c, "grad_bias", grad, "flash");
      attn::naive_attention_backward(grad_out, q, k, v, learned_as(naive_grad), options);
      expect_output(c, "grad_bias", naive_grad, "naive");
    }
    expect_gradients(attn::naive_attention_backward(grad_out, q, k, v, mods, options), "naive");
  });
}

/// The cases use underscores where PyTorch's names have dots.
std::string case_name(std::string parameter) {
  std::replace(parameter.begin(), parameter.end(), '.', '_');
  return parameter;
}

/// Checks all gradients of a case; `keys` and `values` may be the query itself.
template <class T, class M>
void expect_gradients(const Case& c, attn::MultiHeadAttention<T>& layer, const attn::Tensor<T, 3>& q,
                      const attn::Tensor<T, 3>& keys, const attn::Tensor<T, 3>& values, const M& mods) {
  const auto grad_out = c.input("grad_out").tensor<T, 3>();
  for (const attn::Path path : {attn::Path::flash, attn::Path::naive}) {
    const char* const name_of_path = path == attn::Path::flash ? "flash" : "naive";
    const attn::MultiHeadOptions options{.path = path, .keep = true};
    layer.zero_gradients();
    const auto kept = layer(q, keys, values, mods, options);
    expect_output(c, "out", kept.out, name_of_path);
    const auto gradients = layer.backward(grad_out, q, keys, values, kept, mods, options);
    std::set<std::string> checked;
    const auto expect = [&](const std::string& name, const auto& got) {
      expect_output(c, "grad_" + name, got, name_of_path);
      checked.insert("grad_" + name);
    };
    if (c.has("key")) {
      expect("query", gradients.query);
      expect("key", gradients.key);
      expect("value", gradients.value);
    } else {
      expect("query", gradients.all());
    }
    for (const std::string& name : layer.parameter_names())
      if (c.output("grad_" + case_name(name)).shape.size() == 1)
        expect(case_name(name), attn::Tensor<T, 1>(layer.bias_gradient(name)));
      else
        expect(case_name(name), attn::Tensor<T, 2>(layer.weight_gradient(name)));
    for (const auto& [name, array] : c.outputs)
      EXPECT_TRUE(checked.count(name) || name.rfind("grad_", 0) != 0) << name << " was not checked";
  }
}

template <class T>
void run_multi_head(const Case& c) {
  const Array& query = c.input("query");
  const Array& key = c.input(c.has("key") ? "key" : "query");
  const Array& value = c.input(c.has("value") ? "value" : "query");
  attn::MultiHeadAttention<T> layer({.embed_dim = query.shape[2],
                                     .heads = static_cast<Index>(c.attr("num_heads", 0)),
                                     .key_dim = key.shape[2],
                                     .value_dim = value.shape[2],
                                     .bias = c.has("in_proj_bias")});

  // The layer has exactly the parameters of the case.
  std::set<std::string> inputs{"query", "key", "value", "key_lengths", "grad_out"};
  for (const std::string& name : layer.parameter_names()) {
    const Array& values = c.input(case_name(name));
    if (values.shape.size() == 1)
      layer.load(name, values.tensor<T, 1>());
    else
      layer.load(name, values.tensor<T, 2>());
    inputs.insert(case_name(name));
  }
  expect_understood(c, {"causal", "num_heads"}, inputs, {"out", "weights"});

  const auto q = query.tensor<T, 3>(), k = key.tensor<T, 3>(), v = value.tensor<T, 3>();
  with_mods<T>(c, [&](const auto& mods) {
    const auto check = [&](const auto& keys, const auto& values) {
      expect_output(c, "out", layer(q, keys, values, mods).out, "flash");
      expect_output(c, "out", layer(q, keys, values, mods, {.path = attn::Path::naive}).out, "naive");
      const auto weighted = layer(q, keys, values, mods, {.weights = true});
      expect_output(c, "out", weighted.out, "with weights");
      expect_output(c, "weights", weighted.weights, "with weights");
    };
    check(k, v);
    expect_gradients(c, layer, q, k, v, mods);
    if (!c.has("key")) {  // self-attention: the same object, so that the projections are computed as one product
      check(q, q);
      expect_gradients(c, layer, q, q, q, mods);
    }
  });
}

template <class T>
void run(const Case& c) {
  if (c.op == "ScaledDotProductAttention")
    run_scaled_dot_product<T>(c);
  else if (c.op == "MultiheadAttention")
    run_multi_head<T>(c);
  else
    FAIL() << "unknown operator " << c.op;
}

class TorchGolden : public ::testing::TestWithParam<std::string> {};

TEST_P(TorchGolden, Double) { run<double>(load(GetParam())); }
TEST_P(TorchGolden, Float) { run<float>(load(GetParam())); }

INSTANTIATE_TEST_SUITE_P(Cases, TorchGolden, ::testing::ValuesIn(case_names()),
                         [](const auto& instance) { return instance.param; });

TEST(TorchGoldenData, IsComplete) {
  std::map<std::string, int> cases;
  for (const std::string& name : case_names()) ++cases[load(name).op];
  EXPECT_EQ(cases, (std::map<std::string, int>{{"ScaledDotProductAttention", 9}, {"MultiheadAttention", 5}}));
}

}  // namespace
