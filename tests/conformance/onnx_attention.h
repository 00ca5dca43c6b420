// One case of ONNX's Attention or Softmax operator, run through the library's naive and flash paths.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "attn/attn.h"
#include "support/cases.h"

namespace attn::test {

/// Errors of a case's outputs against the expected ones, for each path that computed them.
class Comparison {
 public:
  explicit Comparison(const Case& c) : case_(c) {}

  /// Compares values in the order of the expected file, with `got` rounded to the expected type; infinities must match
  /// exactly.
  template <class T>
  void check(const std::string& path, const std::string& output, const std::vector<T>& got) {
    const std::string name = path + " " + output;
    const DType type = case_.output(output).dtype;
    const std::vector<double> want = case_.output(output).as<double>();
    if (got.size() != want.size())
      return note(name + " has " + std::to_string(got.size()) + " elements, not " + std::to_string(want.size()));
    double largest = 0;
    for (std::size_t i = 0; i < got.size(); ++i) {
      const double x = rounded(type, static_cast<double>(got[i])), error = x == want[i] ? 0 : std::abs(x - want[i]);
      if (std::isfinite(want[i]) && std::isfinite(x)) largest = std::max(largest, error);
      if (x != want[i] && !(error <= case_.atol + case_.rtol * std::abs(want[i]) && std::isfinite(want[i])))
        note(name + "[" + std::to_string(i) + "] is " + std::to_string(x) + ", not " + std::to_string(want[i]));
    }
    char text[32];
    std::snprintf(text, sizeof text, " %.1e", largest);
    errors_ += (errors_.empty() ? "errors: " : ", ") + name + text;
  }

  /// The first mismatch; empty if none.
  const std::string& failure() const { return failure_; }
  /// The largest error among the finite elements, for each output on each path: "errors: flash Y 1.2e-07, naive Y
  /// 6.0e-08".
  const std::string& errors() const { return errors_; }

 private:
  static double rounded(DType type, double x) {
    if (type == DType::f16) return static_cast<double>(Eigen::half(static_cast<float>(x)));
    if (type == DType::bf16) return static_cast<double>(Eigen::bfloat16(static_cast<float>(x)));
    return x;
  }

  void note(const std::string& what) {
    if (failure_.empty()) failure_ = what;
  }

  const Case& case_;
  std::string failure_, errors_;
};

/// The elements of a view in logical order.
template <class T, int Rank>
std::vector<std::remove_const_t<T>> packed(const TensorView<T, Rank>& view) {
  const Tensor<std::remove_const_t<T>, Rank> t{TensorView<const T, Rank>(view)};
  return t.size() == 0 ? std::vector<std::remove_const_t<T>>()
                       : std::vector<std::remove_const_t<T>>(t.data(), t.data() + t.size());
}

/// An Attention case as tensors of scalar S, and the mods that its attributes and inputs specify.
template <class S>
class OnnxAttention {
  using T = std::conditional_t<sizeof(S) == 2, float, S>;  // of scores

 public:
  explicit OnnxAttention(const Case& c) : case_(c), rank3_(c.input("Q").shape.size() == 3) {
    refuse_unknown();
    q_ = tokens("Q", "q_num_heads");
    k_ = with_past("K", "past_key");
    v_ = with_past("V", "past_value");
    batch_ = q_.dim(0);
    q_len_ = q_.dim(2);
    kv_len_ = k_.dim(2);

    // Position of query row 0 in each batch element: after the past keys, or such that the last query is at the last
    // valid key, or 0.
    if (c.has("nonpad_kv_seqlen"))
      lengths_ = c.input("nonpad_kv_seqlen").as<Index>();
    else
      lengths_.assign(static_cast<std::size_t>(batch_), kv_len_);
    for (Index length : lengths_)
      offsets_.push_back(c.has("past_key")           ? c.input("past_key").shape[2]
                         : c.has("nonpad_kv_seqlen") ? length - q_len_
                                                     : 0);
    left_ = window("left_window_size");
    right_ = window("right_window_size");
    read_mask();
  }

  void run(Comparison& comparison) const {
    if (case_.attr("softcap", 0) > 0)
      run_with_masks(comparison, softcap(case_.attr("softcap", 0)) | bias(added_));
    else
      run_with_masks(comparison, full() | bias(added_));
    if (case_.outputs.count("present_key")) comparison.check("cache", "present_key", packed(k_.view()));
    if (case_.outputs.count("present_value")) comparison.check("cache", "present_value", packed(v_.view()));
  }

 private:
  static constexpr T kInf = std::numeric_limits<T>::infinity();

  /// Throws on inputs and attributes unknown to this program: they may change the meaning of the case.
  void refuse_unknown() const {
    const std::set<std::string> inputs{"Q", "K", "V", "attn_mask", "past_key", "past_value", "nonpad_kv_seqlen"};
    const std::set<std::string> attrs{"q_num_heads",       "kv_num_heads",     "scale",
                                      "softcap",           "is_causal",        "qk_matmul_output_mode",
                                      "softmax_precision", "left_window_size", "right_window_size"};
    for (const auto& [name, array] : case_.inputs)
      if (!inputs.count(name)) throw std::runtime_error("unknown input '" + name + "'");
    for (const auto& [name, value] : case_.attrs)
      if (!attrs.count(name)) throw std::runtime_error("unknown attribute '" + name + "'");
  }

  /// An input as (batch, heads, len, dim): rank 4 has this order in memory, rank 3 is (batch, len, heads * dim).
  Tensor<S, 4> tokens(const std::string& name, const std::string& heads_attr) const {
    const Array& array = case_.input(name);
    if (array.shape.size() == 4) return array.tensor<S, 4>();
    const Tensor<S, 3> flat = array.tensor<S, 3>();
    const Index heads = static_cast<Index>(case_.attr(heads_attr, 0));
    if (heads <= 0 || flat.dim(2) % heads != 0)
      throw std::runtime_error(heads_attr + " does not divide the features of " + name);
    return Tensor<S, 4>(bshd(flat.data(), flat.dim(0), flat.dim(1), heads, flat.dim(2) / heads));
  }

  Tensor<S, 4> with_past(const std::string& name, const std::string& past_name) const {
    Tensor<S, 4> fresh = tokens(name, "kv_num_heads");
    if (!case_.has(past_name)) return fresh;
    const Tensor<S, 4> past = case_.input(past_name).template tensor<S, 4>();
    Tensor<S, 4> all({fresh.dim(0), fresh.dim(1), past.dim(2) + fresh.dim(2), fresh.dim(3)});
    for (Index b = 0; b < all.dim(0); ++b)
      for (Index h = 0; h < all.dim(1); ++h) {
        all.matrix(b, h).topRows(past.dim(2)) = past.matrix(b, h);
        all.matrix(b, h).bottomRows(fresh.dim(2)) = fresh.matrix(b, h);
      }
    return all;
  }

  Index window(const char* attr) const {
    const Index side = static_cast<Index>(case_.attr(attr, -1));
    return side < 0 ? std::numeric_limits<Index>::max() : side;
  }

  /// Splits attn_mask into one additive and one boolean tensor of rank 4; keys beyond its last column are dropped.
  void read_mask() {
    added_ = Tensor<T, 4>({1, 1, 1, 1});
    kept_ = Tensor<bool, 4>({1, 1, 1, 1});
    kept_(0, 0, 0, 0) = true;
    if (!case_.has("attn_mask")) return;
    const Array& mask = case_.input("attn_mask");
    if (mask.dtype == DType::i64) throw std::runtime_error("integer masks have no agreed meaning");
    if (mask.dtype == DType::boolean)
      kept_ = padded<bool>(mask, false);
    else
      added_ = padded<T>(mask, -kInf);
  }

  template <class U>
  Tensor<U, 4> padded(const Array& mask, U missing) const {
    Shape<4> shape{1, 1, 1, 1};
    std::copy(mask.shape.begin(), mask.shape.end(), shape.end() - static_cast<std::ptrdiff_t>(mask.shape.size()));
    const std::vector<U> given = mask.as<U>();
    const Index width = shape[3], rows = shape[0] * shape[1] * shape[2];
    shape[3] = std::max(width, kv_len_);
    auto all = Tensor<U, 4>::uninitialized(shape);
    std::fill_n(all.data(), all.size(), missing);
    for (Index i = 0; i < rows * width; ++i)
      all.data()[i / width * shape[3] + i % width] = given[static_cast<std::size_t>(i)];
    return all;
  }

  template <class Scores>
  void run_with_masks(Comparison& comparison, const Scores& scores) const {
    const bool causal_too = case_.attr("is_causal", 0) != 0;
    const auto masks = keep(kept_) | key_lengths(lengths_);
    const bool one_offset = std::all_of(offsets_.begin(), offsets_.end(), [&](Index o) { return o == offsets_[0]; });
    if (!one_offset) {
      // Batch elements have different offsets. They are added in the mask, since q_offset (here 0) is the same for all.
      const auto moved = mask_mod([this, causal_too](const Position& p) {
        const Index distance = p.q + offsets_[static_cast<std::size_t>(p.batch)] - p.kv;
        return distance <= left_ && -distance <= (causal_too ? std::min<Index>(right_, 0) : right_);
      });
      run_paths(comparison, scores, masks | moved, 0);
    } else if (causal_too) {
      run_paths(comparison, scores, masks | causal() | sliding_window(left_, right_), offsets_[0]);
    } else {
      run_paths(comparison, scores, masks | sliding_window(left_, right_), offsets_[0]);
    }
  }

  template <class Scores, class Masks>
  void run_paths(Comparison& comparison, const Scores& scores, const Masks& masks, Index q_offset) const {
    Options options;
    options.q_offset = q_offset;
    if (case_.has_attr("scale")) options.scale = case_.attr("scale", 0);

    // The flash path writes rank-3 results in the layout that the operator expects.
    const Index heads = q_.dim(1), v_dim = v_.dim(3);
    std::vector<S> y(static_cast<std::size_t>(batch_ * heads * q_len_ * v_dim));
    attention_into(rank3_ ? bshd(y.data(), batch_, q_len_, heads, v_dim) : bhsd(y.data(), batch_, heads, q_len_, v_dim),
                   q_, k_, v_, scores | masks, options);
    comparison.check("flash", "Y", y);

    const auto naive = naive_attention(q_, k_, v_, scores | masks, options);
    if (rank3_) {
      const TensorView<S, 4> by_token = bshd(y.data(), batch_, q_len_, heads, v_dim);
      for (Index b = 0; b < batch_; ++b)
        for (Index h = 0; h < heads; ++h) by_token.matrix(b, h) = naive.out.matrix(b, h);
      comparison.check("naive", "Y", y);
    } else {
      comparison.check("naive", "Y", packed(naive.out.view()));
    }

    if (!case_.outputs.count("qk_matmul_output")) return;
    const int mode = static_cast<int>(case_.attr("qk_matmul_output_mode", 0));
    if (mode == 3) return comparison.check("naive", "qk_matmul_output", packed(naive.weights.view()));
    // Scores at one point of the chain, recorded by a mod inserted there. The naive path does not evaluate pairs that a
    // mask drops; they are -inf once masks are applied.
    Tensor<T, 4> seen(naive.weights.shape());
    std::fill_n(seen.data(), seen.size(), -kInf);
    const auto record = score_mod([&seen, q_offset](auto x, const Position& p) {
      seen(p.batch, p.head, p.q - q_offset, p.kv) = x;
      return x;
    });
    const double cap = case_.attr("softcap", 0);
    if (mode == 0 || (mode == 1 && !(cap > 0)))
      naive_attention(q_, k_, v_, record, options);
    else if (mode == 1)
      naive_attention(q_, k_, v_, softcap(cap) | record, options);
    else if (mode == 2)
      naive_attention(q_, k_, v_, scores | record | masks, options);
    else
      throw std::runtime_error("unknown qk_matmul_output_mode " + std::to_string(mode));
    comparison.check("naive", "qk_matmul_output", packed(seen.view()));
  }

  const Case& case_;
  bool rank3_;
  Tensor<S, 4> q_, k_, v_;
  Tensor<T, 4> added_;
  Tensor<bool, 4> kept_;
  std::vector<Index> lengths_, offsets_;
  Index batch_ = 0, q_len_ = 0, kv_len_ = 0, left_ = 0, right_ = 0;
};

/// Softmax along an axis, as attention with zero queries and keys: the bias is the input and the values are the
/// identity, so the output is the softmax.
inline void run_softmax(const Case& c, Comparison& comparison) {
  const Array& input = c.input("input");
  const Index rank = static_cast<Index>(input.shape.size());
  const Index axis = static_cast<Index>(c.attr("axis", -1)), at = axis < 0 ? axis + rank : axis;
  Index inner = 1;
  for (Index i = at + 1; i < rank; ++i) inner *= input.shape[static_cast<std::size_t>(i)];
  const Index length = input.shape[static_cast<std::size_t>(at)], outer = input.size() / (length * inner);

  // (outer, length, inner) in memory, viewed as one head per slice: (outer, 1, inner, length).
  const std::vector<float> x = input.as<float>();
  const Shape<4> shape{outer, 1, inner, length}, strides{length * inner, 0, 1, inner};
  const TensorView<const float, 4> scores(x.data(), shape, strides);
  const Tensor<float, 4> q({outer, 1, inner, 1}), k({outer, 1, length, 1});
  Tensor<float, 4> identity({1, 1, length, length});
  identity.matrix(0, 0).setIdentity();
  const TensorView<const float, 4> v(identity.data(), {outer, 1, length, length}, {0, 0, length, 1});

  std::vector<float> y(x.size());
  const TensorView<float, 4> out(y.data(), shape, strides);
  attention_into(out, q, k, v, bias(scores));
  comparison.check("flash", "output", y);
  naive_attention_into(out, q, k, v, bias(scores));
  comparison.check("naive", "output", y);
}

}  // namespace attn::test
