// One case of ONNX's RotaryEmbedding operator, run through attn::rotate_by.
#pragma once

#include "attn/rope.h"
#include "onnx_attention.h"

namespace attn::test {

/// Looks up the row of the (positions, pairs) table for each token's position. Without position_ids, the input already
/// has one row per token: (batch, len, pairs).
inline Tensor<float, 3> angles_of_tokens(const Case& c, const std::string& name) {
  if (!c.has("position_ids")) return c.input(name).tensor<float, 3>();
  const Tensor<float, 2> table = c.input(name).tensor<float, 2>();
  const Tensor<Index, 2> ids = c.input("position_ids").tensor<Index, 2>();
  Tensor<float, 3> angles({ids.dim(0), ids.dim(1), table.dim(1)});
  for (Index b = 0; b < angles.dim(0); ++b)
    for (Index i = 0; i < angles.dim(1); ++i) {
      if (ids(b, i) < 0 || ids(b, i) >= table.dim(0)) throw std::runtime_error("a position is out of range in " + name);
      for (Index j = 0; j < angles.dim(2); ++j) angles(b, i, j) = table(ids(b, i), j);
    }
  return angles;
}

inline void run_rotary(const Case& c, Comparison& comparison) {
  for (const auto& [name, value] : c.attrs)
    if (name != "interleaved" && name != "num_heads" && name != "rotary_embedding_dim")
      throw std::runtime_error("unknown attribute '" + name + "'");
  const Tensor<float, 3> cos = angles_of_tokens(c, "cos_cache"), sin = angles_of_tokens(c, "sin_cache");
  const Index rotary = static_cast<Index>(c.attr("rotary_embedding_dim", 0));
  if (rotary != 0 && rotary != 2 * cos.dim(2)) throw std::runtime_error("the table is not for rotary_embedding_dim");
  const RopePairs pairs = c.attr("interleaved", 0) != 0 ? RopePairs::interleaved : RopePairs::halves;
  const Array& x = c.input("X");
  std::vector<float> y = x.as<float>();
  const Index heads = static_cast<Index>(c.attr("num_heads", 1));
  const auto& s = x.shape;
  rotate_by(s.size() == 4 ? bhsd(y.data(), s[0], s[1], s[2], s[3]) : bshd(y.data(), s[0], s[1], heads, s[2] / heads),
            cos.view(), sin.view(), pairs);
  comparison.check("rotate_by", "Y", y);
}

}  // namespace attn::test
