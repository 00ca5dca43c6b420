// Workloads: sizes, scalar type and mods of one attention call, and its input tensors.
#pragma once

#include <algorithm>
#include <cstdint>
#include <random>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>

#include <attn/attn.h>

namespace bench {

using attn::Index;

enum class Scalar { float32, float64 };

/// Mods of a workload. A new one needs a line here, in name(), with_mods() and kept_pairs().
enum class ModSet { full, causal, causal_softcap_alibi, causal_window };

/// Memory layout of query, key and value. The output is always (batch, heads, len, dim).
enum class Layout {
  bhsd,     ///< (batch, heads, len, dim)
  bshd,     ///< (batch, len, heads, dim), as projections return it
  columns,  ///< (batch, heads, dim, len): column-major matrices
};

constexpr Index kWindow = 256;  ///< keys before the query that causal_window keeps

constexpr std::string_view name(Scalar s) { return s == Scalar::float32 ? "float" : "double"; }

constexpr std::string_view name(ModSet v) {
  switch (v) {
    case ModSet::causal:
      return "causal";
    case ModSet::causal_softcap_alibi:
      return "causal, softcap, ALiBi";
    case ModSet::causal_window:
      return "causal, window of 256";
    case ModSet::full:
      break;
  }
  return "full";
}

constexpr std::string_view name(Layout layout) {
  return layout == Layout::bhsd ? "bhsd" : layout == Layout::bshd ? "bshd" : "column-major";
}

/// One row of a comparison: `heads` query heads that share `kv_heads` key and value heads.
struct Workload {
  Scalar scalar = Scalar::float32;
  ModSet mod_set = ModSet::full;
  Index batch = 1;
  Index heads = 8;
  Index kv_heads = 8;
  Index q_len = 0;
  Index kv_len = 0;
  Index head_dim = 64;
  Index v_dim = head_dim;
  Layout layout = Layout::bhsd;
};

/// Returns the sizes in the usual notation, e.g. "B=1 H=8 N=4096 D=64"; M, kv_heads, v_dim and the layout appear only
/// if they differ.
inline std::string sizes(const Workload& w) {
  std::ostringstream s;
  s << "B=" << w.batch << " H=" << w.heads;
  if (w.kv_heads != w.heads) s << '/' << w.kv_heads;
  s << " N=" << w.q_len;
  if (w.kv_len != w.q_len) s << " M=" << w.kv_len;
  s << " D=" << w.head_dim;
  if (w.v_dim != w.head_dim) s << '/' << w.v_dim;
  if (w.layout != Layout::bhsd) s << ' ' << name(w.layout);
  return s.str();
}

/// Returns the whole row as one line: sizes, scalar, mods.
inline std::string label(const Workload& w) {
  return sizes(w).append(" ").append(name(w.scalar)).append(" ").append(name(w.mod_set));
}

/// Calls `f` with the row's mods. Plain attention gets an empty Mods<>, not a mod that keeps everything.
template <class F>
decltype(auto) with_mods(const Workload& w, F&& f) {
  switch (w.mod_set) {
    case ModSet::causal:
      return f(attn::causal());
    case ModSet::causal_softcap_alibi:
      return f(attn::causal() | attn::softcap(50) | attn::alibi(attn::alibi_slopes(w.heads)));
    case ModSet::causal_window:
      return f(attn::sliding_window(kWindow));
    case ModSet::full:
      break;
  }
  return f(attn::Mods<>{});
}

/// Returns the (query, key) pairs of one head that count as work. For causal it is exactly half of the square, as is
/// usual; the extra half of the diagonal is not counted.
inline double kept_pairs(const Workload& w) {
  const double n = static_cast<double>(w.q_len), m = static_cast<double>(w.kv_len);
  switch (w.mod_set) {
    case ModSet::full:
      break;
    case ModSet::causal:
    case ModSet::causal_softcap_alibi:
      return n <= m ? n * m - n * n / 2 : m * m / 2;
    case ModSet::causal_window: {
      double pairs = 0;
      for (Index i = 0; i < w.q_len; ++i) {
        const Index q = w.kv_len - w.q_len + i;
        pairs += static_cast<double>(attn::Range{std::max<Index>(q - kWindow, 0), q + 1}.size());
      }
      return pairs;
    }
  }
  return n * m;
}

/// Returns the flops of the products, 2 * head_dim and 2 * v_dim per kept pair. The softmax is not counted.
inline double flops(const Workload& w) {
  return 2.0 * static_cast<double>(w.batch * w.heads) * kept_pairs(w) * static_cast<double>(w.head_dim + w.v_dim);
}

/// Inputs in a row's memory layout, and their views as tensors (batch, heads, len, dim).
template <class T>
struct Inputs {
  Layout layout;
  attn::Tensor<T, 4> q_numbers, k_numbers, v_numbers;

  attn::TensorView<const T, 4> q() const { return view(q_numbers); }
  attn::TensorView<const T, 4> k() const { return view(k_numbers); }
  attn::TensorView<const T, 4> v() const { return view(v_numbers); }

 private:
  attn::TensorView<const T, 4> view(const attn::Tensor<T, 4>& t) const {
    const auto [batch, heads, len, dim] = t.shape();
    if (layout == Layout::bshd) return attn::bshd(t.data(), batch, len, heads, dim);
    if (layout == Layout::columns) return {t.data(), t.shape(), {heads * len * dim, len * dim, 1, len}};
    return t.view();
  }
};

/// Returns query, key and value from the standard normal distribution, the same for the same seed.
template <class T>
Inputs<T> make_inputs(const Workload& w, std::uint64_t seed = 1) {
  std::mt19937_64 generator(seed);
  std::normal_distribution<T> normal;
  const auto fill = [&](Index heads, Index len, Index dim) {
    auto t = attn::Tensor<T, 4>::uninitialized({w.batch, heads, len, dim});
    std::generate_n(t.data(), t.size(), [&] { return normal(generator); });
    return t;
  };
  auto q = fill(w.heads, w.q_len, w.head_dim);
  auto k = fill(w.kv_heads, w.kv_len, w.head_dim);
  return {w.layout, std::move(q), std::move(k), fill(w.kv_heads, w.kv_len, w.v_dim)};
}

template <class T>
attn::Tensor<T, 4> make_output(const Workload& w) {
  return attn::Tensor<T, 4>({w.batch, w.heads, w.q_len, w.v_dim});
}

}  // namespace bench
