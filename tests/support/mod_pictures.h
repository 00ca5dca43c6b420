// The masks and mods pictured in include/attn/mods/README.md: in text there, and as SVG on the site.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "attn/mods.h"
#include "attn/tensor.h"

namespace attn::test {

inline Tensor<bool, 2> checkerboard() {
  Tensor<bool, 2> map({3, 3});
  for (Index i = 0; i < 9; ++i) map.data()[i] = i % 2 == 0;
  return map;
}

inline Tensor<bool, 1> even_keys() {
  Tensor<bool, 1> even({12});
  for (Index j = 0; j < 12; j += 2) even(j) = true;
  return even;
}

/// Four keys per query; some are repeated or -1.
inline Tensor<int, 2> listed_keys() {
  Tensor<int, 2> keys({12, 4});
  for (int i = 0; i < 12; ++i) {
    const int of_query[] = {i, i / 2, (7 * i + 3) % 12, -1};
    std::copy_n(of_query, 4, &keys(i, 0));
  }
  return keys;
}

/// Keys whose blocks of three have the means 1, 3, 0 and 2.
inline Eigen::MatrixXf keys_of_blocks() {
  Eigen::MatrixXf k(12, 1);
  k << 0, 1, 2, 3, 3, 3, -1, 0, 1, 2, 1, 3;
  return k;
}

/// Calls visit(expression, rows, mask) for each mask that the page draws over 12 keys; `expression` is its source text.
template <class Visit>
void for_each_mask_picture(const Visit& visit) {
  const auto map = checkerboard();
  const auto even = even_keys();
  const auto keys = listed_keys();
  const Eigen::MatrixXf q = Eigen::MatrixXf::Ones(12, 1), k = keys_of_blocks();
  const std::vector<Index> ids{0, 0, 1, 1, 0, 0, 2, 2, 2, 1, 1, 0};
#define ATTN_PICTURE(rows, ...) visit(#__VA_ARGS__, Index(rows), __VA_ARGS__)
  ATTN_PICTURE(12, causal());
  ATTN_PICTURE(12, sliding_window(3));
  ATTN_PICTURE(12, sliding_window(3, 1));
  ATTN_PICTURE(12, prefix_lm({5}));
  ATTN_PICTURE(12, key_lengths({8}));
  ATTN_PICTURE(12, query_lengths({8}));
  ATTN_PICTURE(12, key_ranges({3}, {9}));
  ATTN_PICTURE(12, padding(even));
  ATTN_PICTURE(12, keep_keys(even));
  ATTN_PICTURE(12, documents_at({0, 4, 9, 12}));
  ATTN_PICTURE(7, documents_at({0, 2, 4, 7}, {0, 5, 5, 12}));
  ATTN_PICTURE(12, documents(ids));
  ATTN_PICTURE(12, block_sparse(map, 4, 4));
  ATTN_PICTURE(12, top_k_blocks(q, k, {.count = 2, .block_q = 3, .block_kv = 3}));
  ATTN_PICTURE(12, neighbourhood({12}, {3}, {2}));
  ATTN_PICTURE(12, neighbourhood({3, 4}, {2, 3}));
  ATTN_PICTURE(12, neighbourhood({3, 4}, {2, 3}, {}, {1, 0}));
  ATTN_PICTURE(12, bidirectional_spans({{2, 5}, {7, 11}}));
  ATTN_PICTURE(12, select(keys));
  ATTN_PICTURE(12, strided_sparse(3));
  ATTN_PICTURE(12, fixed_sparse(4, 1));
  ATTN_PICTURE(12, dilated(2, 3));
  ATTN_PICTURE(12, global_tokens({0, 6}));
  ATTN_PICTURE(8, tree({-1, 0, 1, -1, 3, 3, 5, 2}));
  ATTN_PICTURE(12, keep(even));
  ATTN_PICTURE(12, drop(even));
  ATTN_PICTURE(12, any_of(sliding_window(1, 1), global_tokens({0})));
  ATTN_PICTURE(12, all_of(causal(), not_(sliding_window(2))));
  ATTN_PICTURE(12, not_(causal()));
  ATTN_PICTURE(12, by_batch(std::vector{sliding_window(2)}));
  ATTN_PICTURE(12, full());
  ATTN_PICTURE(12, block_mask(sliding_window(3), 12, 12));
  ATTN_PICTURE(12, mask_mod([](auto p) { return (p.q - p.kv) % 2 == 0; }));
#undef ATTN_PICTURE
}

/// Calls visit(expression, mod) for mods that change scores or weights, over one head of 12 tokens.
template <class Visit>
void for_each_weight_picture(const Visit& visit) {
  Tensor<float, 2> ramp({12, 12});
  for (Index i = 0; i < 12; ++i)
    for (Index j = 0; j < 12; ++j) ramp(i, j) = 0.25f * static_cast<float>(j);
  Tensor<float, 1> table({16}), near({9}), one({1}), its_grad({1});
  for (Index b = 0; b < 16; ++b) table(b) = -0.5f * static_cast<float>(b % 8);
  for (Index b = 0; b < 9; ++b) near(b) = -1.5f * static_cast<float>(std::abs(b - 4));
  one(0) = 2;
  Tensor<float, 1> edges({24});
  std::vector<Index> offsets(13), neighbours(24);
  for (Index i = 0; i < 24; ++i) {
    edges(i) = i % 2 == 0 ? 2 : -2;
    offsets[static_cast<std::size_t>(i / 2 + 1)] = i + 1;
    neighbours[static_cast<std::size_t>(i)] = (i / 2 + (i % 2 == 0 ? 1 : 5)) % 12;
  }
  const auto where = [](auto) { return 0; };
  const auto add = [](auto x, auto w, auto p) { return p.q == p.kv ? x + w : x; };
#define ATTN_WEIGHTS(...) visit(#__VA_ARGS__, __VA_ARGS__)
  ATTN_WEIGHTS(full());
  ATTN_WEIGHTS(softcap(1));
  ATTN_WEIGHTS(temperature({3}));
  ATTN_WEIGHTS(alibi({0.5}) | causal());
  ATTN_WEIGHTS(bias(ramp));
  ATTN_WEIGHTS(relative_bias(near));
  ATTN_WEIGHTS(relative_bias(table, T5Buckets(16, 16)));
  ATTN_WEIGHTS(edge_bias(offsets, neighbours, edges));
  ATTN_WEIGHTS(sinks({3}));
  ATTN_WEIGHTS(dropout(0.25, 7));
  ATTN_WEIGHTS(learned(one, its_grad, where, add));
#undef ATTN_WEIGHTS
}

}  // namespace attn::test
