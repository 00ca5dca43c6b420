// Generated cases: random inputs, and results computed in double by the operator's specification.
#pragma once

#include <cstdint>
#include <optional>

#include "onnx_attention.h"
#include "support/random.h"

namespace attn::test {

/// For a case that attn cannot express, a part of the message with which running it throws; else empty.
inline std::string refusal(const Case& c) {
  return c.features.size() == 2 && c.features[0] == "refused" ? c.features[1] : "";
}

template <class Stored>
Array array_of(DType dtype, std::vector<Index> shape, const std::vector<double>& values) {
  Array array{dtype, std::move(shape), std::vector<char>(values.size() * sizeof(Stored))};
  for (std::size_t i = 0; i < values.size(); ++i) {
    const Stored x = static_cast<Stored>(values[i]);
    std::memcpy(&array.bytes[i * sizeof x], &x, sizeof x);
  }
  return array;
}

/// A case that is filled step by step. Its inputs are random, from a fixed seed.
class NewCase {
 public:
  NewCase(const char* op, std::string name, double tolerance) {
    c_.op = op;
    c_.name = std::move(name);
    c_.origin = "generated";
    c_.atol = c_.rtol = tolerance;
  }

  void attr(const std::string& name, double value) { c_.attrs[name] = value; }
  void text(const std::string& name, const std::string& value) { c_.texts[name] = value; }
  void refuse(const std::string& message) { c_.features = {"refused", message}; }

  /// Adds an input in [low, high); `change` may edit the values.
  template <class Change>
  void input(const std::string& name, const std::vector<Index>& shape, double low, double high, const Change& change) {
    Index size = 1;
    for (const Index d : shape) size *= d;
    std::vector<double> values(static_cast<std::size_t>(size));
    for (double& x : values) x = random_.uniform(low, high);
    change(values);
    c_.inputs[name] = double_inputs_ ? array_of<double>(DType::f64, shape, values)  //
                                     : array_of<float>(DType::f32, shape, values);
  }
  void input(const std::string& name, const std::vector<Index>& shape, double low = -1, double high = 1) {
    input(name, shape, low, high, [](const std::vector<double>&) {});
  }
  void output(const std::string& name, const std::vector<Index>& shape, const std::vector<double>& values) {
    c_.outputs[name] = array_of<double>(DType::f64, shape, values);
  }
  void with_double_inputs() { double_inputs_ = true; }

  const Case& get() const { return c_; }

 private:
  Case c_;
  Random random_{20260727};
  bool double_inputs_ = false;
};

/// Throws on inputs and attributes unknown to this program: they may change the meaning of the case.
inline void refuse_unknown(const Case& c, const std::set<std::string>& inputs, const std::set<std::string>& attrs) {
  for (const auto& [name, array] : c.inputs)
    if (!inputs.count(name)) throw std::runtime_error("unknown input '" + name + "'");
  for (const auto& [name, value] : c.attrs)
    if (!attrs.count(name)) throw std::runtime_error("unknown attribute '" + name + "'");
  for (const auto& [name, value] : c.texts)
    if (!attrs.count(name)) throw std::runtime_error("unknown attribute '" + name + "'");
}

}  // namespace attn::test
