// The rows of the comparison. To time something new, add a line.
#pragma once

#include <vector>

#include "workload.h"

namespace bench {

enum class Rows { standard, extended, quick };

/// Returns the rows of a comparison.
///
/// standard: one number of heads, lengths from short to long, full and causal, two head sizes, float and some double.
///
/// extended: also mods, windows, shared heads, one query, few queries or few keys, small and large heads, v_dim other
/// than head_dim, and other layouts.
///
/// quick: small sizes, to check that the program works.
inline std::vector<Workload> rows_of(Rows which) {
  using V = ModSet;
  constexpr Scalar f32 = Scalar::float32, f64 = Scalar::float64;
  //                  scalar  mods  batch heads kv_heads q_len kv_len head_dim [v_dim layout]
  if (which == Rows::quick)
    return {{f32, V::full, 4, 8, 8, 64, 64, 64},     {f32, V::full, 1, 8, 8, 512, 512, 64},
            {f32, V::causal, 1, 8, 8, 512, 512, 64}, {f32, V::causal, 1, 8, 8, 256, 256, 128},
            {f32, V::full, 1, 8, 2, 1, 1024, 64},    {f64, V::full, 1, 8, 8, 256, 256, 64}};

  std::vector<Workload> rows;
  rows.push_back({f32, V::full, 32, 8, 8, 64, 64, 64});
  for (const Index n : {256, 512, 1024, 2048, 4096, 8192}) rows.push_back({f32, V::full, 1, 8, 8, n, n, 64});
  for (const Index n : {1024, 4096, 8192}) rows.push_back({f32, V::causal, 1, 8, 8, n, n, 64});
  rows.push_back({f32, V::full, 16, 8, 8, 512, 512, 128});
  for (const Index n : {2048, 8192}) rows.push_back({f32, V::full, 1, 8, 8, n, n, 128});
  rows.push_back({f32, V::causal, 1, 8, 8, 2048, 2048, 128});
  rows.push_back({f64, V::full, 1, 8, 8, 2048, 2048, 64});
  if (which == Rows::standard) return rows;

  rows.push_back({f32, V::causal_softcap_alibi, 1, 8, 8, 4096, 4096, 64});
  rows.push_back({f32, V::causal_window, 1, 8, 8, 8192, 8192, 64});
  rows.push_back({f32, V::causal_window, 1, 8, 8, 65536, 65536, 64});
  rows.push_back({f32, V::causal, 1, 8, 2, 4096, 4096, 64});
  rows.push_back({f32, V::full, 1, 32, 8, 1, 4096, 128});
  rows.push_back({f32, V::full, 8, 8, 8, 128, 2048, 64});
  rows.push_back({f32, V::causal, 1, 8, 8, 256, 4096, 64});
  rows.push_back({f32, V::full, 1, 8, 8, 8192, 64, 64});
  rows.push_back({f32, V::full, 1, 8, 8, 64, 8192, 64});
  for (const Index dim : {4, 16, 256, 512}) rows.push_back({f32, V::full, 1, 8, 8, 1024, 1024, dim});
  rows.push_back({f32, V::full, 1, 8, 8, 1024, 1024, 64, 128});
  for (const Layout layout : {Layout::bshd, Layout::columns}) {
    rows.push_back({f32, V::full, 1, 8, 8, 2048, 2048, 64, 64, layout});
    rows.push_back({f32, V::full, 1, 8, 8, 4, 2048, 128, 128, layout});
  }
  rows.push_back({f64, V::causal, 1, 8, 8, 2048, 2048, 128});
  rows.push_back({f64, V::full, 1, 8, 8, 4, 2048, 64, 64, Layout::columns});
  return rows;
}

}  // namespace bench
