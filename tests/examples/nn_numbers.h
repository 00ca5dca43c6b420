// Random inputs and comparisons for the tests of examples/nn.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "attention.h"
#include "parameter.h"
#include "random.h"

namespace nn::test {

template <class T>
States<T> normal_states(const attn::Shape<3>& shape, Random& random) {
  States<T> x(shape);
  for (Index i = 0; i < x.size(); ++i) x.data()[i] = static_cast<T>(random.normal());
  return x;
}

/// Tokens from rows of equal length.
inline Tokens tokens_of(const std::vector<std::vector<std::int32_t>>& rows) {
  Tokens tokens({static_cast<Index>(rows.size()), static_cast<Index>(rows.front().size())});
  std::int32_t* to = tokens.data();
  for (const auto& row : rows) to = std::copy(row.begin(), row.end(), to);
  return tokens;
}

inline Tokens random_tokens(Index batch, Index len, Index different, Random& random) {
  Tokens tokens({batch, len});
  for (Index i = 0; i < tokens.size(); ++i) tokens.data()[i] = static_cast<std::int32_t>(random.below(different));
  return tokens;
}

/// The tokens first … last - 1 of each sequence.
inline Tokens columns_of(const Tokens& tokens, Index first, Index last) {
  Tokens part({tokens.dim(0), last - first});
  for (Index i = 0; i < part.dim(0); ++i)
    for (Index j = first; j < last; ++j) part(i, j - first) = tokens(i, j);
  return part;
}

/// Draws all parameters at random. Initial biases of 0 and norm weights of 1 would hide mistakes.
template <class T, class Model>
void draw_parameters(Model& model, std::uint64_t seed, double deviation = 0.5) {
  Random random(seed);
  for (const Parameter<T>& p : parameters_of<T>(model)) {
    const bool scale = p.shape.size() == 1 && p.name.ends_with("weight");
    for (T& x : p.values) x = static_cast<T>((scale ? 1 : 0) + deviation * random.normal());
  }
}

/// Masks for two sequences of `len` keys, including a sequence without any key.
inline std::vector<Mask> masks_of(Index len) {
  return {{},
          {.causal = true},
          {.key_lengths = {len, len - 2}},
          {.key_lengths = {0, 2}},
          {.causal = true, .key_lengths = {len - 1, 2}}};
}

inline std::string text_of(const Mask& mask) {
  std::string text = mask.causal ? "causal" : "not causal";
  for (const Index n : mask.key_lengths) text += ", " + std::to_string(n) + " keys";
  return text;
}

/// The largest difference between elements; infinite if the shapes differ or only one side is not finite.
template <class T, int Rank>
double largest_difference(const attn::Tensor<T, Rank>& a, const attn::Tensor<T, Rank>& b) {
  if (a.shape() != b.shape()) return std::numeric_limits<double>::infinity();
  double largest = 0;
  for (Index i = 0; i < a.size(); ++i) {
    const double difference = std::abs(static_cast<double>(a.data()[i]) - static_cast<double>(b.data()[i]));
    largest = std::isfinite(difference) ? std::max(largest, difference) : std::numeric_limits<double>::infinity();
  }
  return largest;
}

template <class T, int Rank>
bool same_bits(const attn::Tensor<T, Rank>& a, const attn::Tensor<T, Rank>& b) {
  return a.shape() == b.shape() && std::memcmp(a.data(), b.data(), static_cast<std::size_t>(a.size()) * sizeof(T)) == 0;
}

/// All values of a model, concatenated.
template <class T, class Model>
std::vector<T> all_values(Model& model) {
  std::vector<T> all;
  for (const Parameter<T>& p : parameters_of<T>(model)) all.insert(all.end(), p.values.begin(), p.values.end());
  return all;
}

}  // namespace nn::test
