// The masks that group tokens or gather keys, each with its meaning written out by hand.
#pragma once

#include <algorithm>
#include <limits>
#include <sstream>

#include "attn/mods.h"
#include "row.h"

namespace attn::test {

inline std::string numbers_text(Index a, Index b) {
  std::ostringstream text;  // g++ 12 warns about an overlap in "(" + std::string
  text << '(' << a << ", " << b << ')';
  return text.str();
}

/// Makes a mask group tokens always, or only where it pays off, which is never at the sizes of most tests.
template <class M>
M some_always(M mod, const Setting& s) {
  mod.grouping.always = s.random.chance(0.8);
  return mod;
}

inline auto strided_rows(const Setting& s) {
  const Index stride = s.random.chance(0.5) ? s.random.integer(1, 12) : s.random.integer(1, 130);
  return Rows<decltype(attn::strided_sparse(1))>{
      {"strided_sparse(" + std::to_string(stride) + ")",
       some_always(attn::strided_sparse(stride), s),
       {.keep = [=](const Pair& p) { return p.kv <= p.q && (p.kv >= p.q - stride || (p.q - p.kv) % stride == 0); },
        .passes = 2}}};
}

inline auto fixed_rows(const Setting& s) {
  const Index block = s.random.chance(0.5) ? s.random.integer(1, 16) : s.random.integer(1, 130),
              summary = s.random.integer(0, std::min<Index>(block, 40));
  return Rows<decltype(attn::fixed_sparse(1, 0))>{{"fixed_sparse" + numbers_text(block, summary),
                                                   some_always(attn::fixed_sparse(block, summary), s),
                                                   {.keep =
                                                        [=](const Pair& p) {
                                                          if (p.kv > p.q) return false;
                                                          const Index block_begin = p.q - p.q % block;
                                                          return p.kv >= block_begin || p.kv % block >= block - summary;
                                                        },
                                                    .passes = summary + 1}}};
}

inline auto dilated_rows(const Setting& s) {
  const Index left = s.random.integer(0, s.random.chance(0.5) ? 4 : 40), right = s.random.integer(0, 3),
              gap = s.random.chance(0.1) ? std::numeric_limits<Index>::max() : s.random.integer(1, 20);
  return Rows<decltype(attn::dilated(1, 1))>{{"dilated" + numbers_text(left, gap) + numbers_text(right, 0),
                                              some_always(attn::dilated(left, gap, right), s),
                                              {[=](const Pair& p) {
                                                 const Index far = p.q - p.kv;
                                                 return far % gap == 0 && far / gap <= left && -far / gap <= right;
                                               },
                                               {}}}};
}

/// The coordinates that queries keep in one dimension of a grid, a row of `length` flags per query.
inline std::vector<bool> kept_in_dimension(Index length, Index window, Index dilation, bool causal) {
  std::vector<bool> kept(static_cast<std::size_t>(length * length));
  for (Index q = 0; q < length; ++q) {
    std::vector<Index> group;  // coordinates of the query's group
    Index own = 0;
    for (Index c = q % dilation; c < length; c += dilation) {
      if (c == q) own = static_cast<Index>(group.size());
      group.push_back(c);
    }
    Index from = causal ? own + 1 - window : own - window / 2, to = from + window - 1;
    while (from < 0) ++from, to += causal ? 0 : 1;
    while (to >= static_cast<Index>(group.size())) --from, --to;
    for (Index i = from; i <= to; ++i)
      kept[static_cast<std::size_t>(q * length + group[static_cast<std::size_t>(i)])] = true;
  }
  return kept;
}

/// Grids with as many tokens as the setting has keys; no rows if queries are outside the grid.
inline auto neighbourhood_rows(const Setting& s) {
  Rows<decltype(attn::neighbourhood({1}, {1}))> rows;
  const Index tokens = s.sizes.kv_len;
  if (!s.even() || tokens == 0 || s.first() < 0 || s.first() + s.sizes.q_len > tokens) return rows;
  const auto divisor_of = [&](Index n) {
    std::vector<Index> all;
    for (Index d = 1; d <= n; ++d)
      if (n % d == 0) all.push_back(d);
    return s.random.pick(all);
  };
  std::vector<std::vector<bool>> kept;  // per dimension
  std::vector<Index> shape, window, dilation, causal;
  std::ostringstream name;
  name << "neighbourhood";
  const Index rank = s.random.integer(1, 3);
  for (Index d = 0, left = tokens; d < rank; left /= shape[static_cast<std::size_t>(d++)]) {
    shape.push_back(d + 1 == rank ? left : divisor_of(left));
    window.push_back(s.random.integer(1, std::min<Index>(shape.back(), s.random.chance(0.7) ? 5 : 30)));
    dilation.push_back(s.random.integer(1, std::min<Index>(shape.back() / window.back(), 4)));
    causal.push_back(s.random.chance(0.3));
    kept.push_back(kept_in_dimension(shape.back(), window.back(), dilation.back(), causal.back() == 1));
    name << " " << window.back() << " of " << shape.back() << " every " << dilation.back()
         << (causal.back() == 1 ? " causal" : "");
  }
  const auto mod = s.random.chance(0.8)
                       ? attn::detail::neighbourhood_of(attn::detail::token_grid(shape, window, dilation, causal), true)
                       : attn::neighbourhood(shape, window, dilation, causal);
  rows.push_back({name.str(),
                  mod,
                  {[kept, shape](const Pair& p) {
                     Index q = p.q, kv = p.kv;
                     bool all = true;
                     for (std::size_t d = shape.size(); d-- > 0; q /= shape[d], kv /= shape[d])
                       all = all && kept[d][static_cast<std::size_t>(q % shape[d] * shape[d] + kv % shape[d])];
                     return all;
                   },
                   {}}});
  return rows;
}

/// Lists of random lengths in compressed rows, one per query or one for all queries: some are empty, keys may be
/// repeated, and with `hubs` some lists contain most keys.
struct DrawnLists {
  std::vector<Index> indices;
  Index group;          ///< query heads that share a list
  Held<Index> offsets;  ///< (1, batch, heads, q_len + 1), never broadcast: a list begins where the previous one ends

  DrawnLists(const Setting& s, Index longest, bool hubs)
      : DrawnLists{s,
                   longest,
                   hubs,
                   s.random.pick(std::vector<Index>{1, s.sizes.batch}),
                   s.random.pick(std::vector<Index>{1, s.sizes.kv_heads, s.sizes.heads}),
                   s.random.chance(0.2) ? 1 : s.sizes.q_len} {}

  /// Calls visit(entry) for each entry of a pair.
  template <class Visit>
  void for_each_of(const Pair& p, const Visit& visit) const {
    const Index b = p.batch, h = p.head / group, i = offsets.dim(3) == 2 ? 0 : p.row;
    for (Index e = offsets(0, b, h, i); e < offsets(0, b, h, i + 1); ++e)
      if (indices[static_cast<std::size_t>(e)] == p.kv) visit(e);
  }
  bool has(const Pair& p) const {
    bool found = false;
    for_each_of(p, [&](Index) { found = true; });
    return found;
  }

 private:
  DrawnLists(const Setting& s, Index longest, bool hubs, Index batch, Index heads, Index lists)
      : group(s.sizes.heads / heads),
        offsets(
            s, {1, batch, heads, lists + 1},
            [&, at = Index(0)]() mutable {
              const bool is_first = at++ % (lists + 1) == 0;
              const Index most = hubs && s.random.chance(0.1) ? 2 * s.sizes.kv_len : longest,
                          count =
                              is_first || s.sizes.kv_len == 0 || s.random.chance(0.2) ? 0 : s.random.integer(0, most);
              for (Index e = 0; e < count; ++e) indices.push_back(s.random.integer(0, s.sizes.kv_len - 1));
              return static_cast<Index>(indices.size());
            },
            false) {}
};

/// Random sizes of a call whose queries list their keys; heads may share a list.
template <class Dims>
Sizes listed_sizes(Index q_len, Index kv_len, const Dims& dims, Random& random) {
  Sizes s;
  s.q_len = q_len, s.kv_len = kv_len;
  s.kv_heads = random.integer(1, 2), s.batch = random.integer(1, 2);
  s.heads = s.kv_heads * random.pick(std::vector<Index>{1, 2, 5});
  s.head_dim = random.pick(dims), s.v_dim = random.pick(dims);
  return s;
}

/// Lists of keys of all shapes. Some are short enough for keys to be gathered.
inline auto select_rows(const Setting& s) {
  Rows<decltype(attn::select(TensorView<const Index, 4>()))> rows;
  if (!s.even()) return rows;
  const Sizes& sizes = s.sizes;
  for (const Index most : {std::max<Index>(sizes.kv_len / 4, 1), sizes.kv_len}) {
    const attn::Shape<4> shape{s.random.pick(std::vector<Index>{1, sizes.batch}),
                               s.random.pick(std::vector<Index>{1, sizes.kv_heads, sizes.heads}),
                               s.random.pick(std::vector<Index>{1, sizes.q_len, sizes.q_len}),
                               s.random.integer(0, std::min<Index>(most, 130))};
    const Held<Index> t(s, shape, [&] { return s.random.chance(0.1) ? -1 : s.random.integer(-1, sizes.kv_len - 1); });
    const Index group = sizes.heads / shape[1];
    rows.push_back({"select" + t.text(),
                    attn::select(t.view()),
                    {[t, group](const Pair& p) {
                       for (Index i = 0; i < t.dim(3); ++i)
                         if (t(p.batch, p.head / group, p.row, i) == p.kv) return true;
                       return false;
                     },
                     {}}});
  }
  for (const bool hubs : {false, true}) {
    const DrawnLists lists(s, std::max<Index>(sizes.kv_len / 6, 1), hubs);
    rows.push_back({hubs ? "select(offsets, indices) with hubs" : "select(offsets, indices)",
                    attn::select(lists.offsets.view<3>(), lists.indices),
                    {[lists](const Pair& p) { return lists.has(p); }, {}}});
  }
  return rows;
}

/// A bias for each entry of the lists, per head or for all heads; some are -inf and drop the pair.
inline auto edge_rows(const Setting& s) {
  using Mod =
      decltype(attn::edge_bias(TensorView<const Index, 3>(), std::vector<Index>(), TensorView<const float, 2>()));
  Rows<Mod> rows;
  if (!s.even()) return rows;
  const DrawnLists lists(s, std::max<Index>(s.sizes.kv_len / 6, 1), true);
  const Held<float> values(
      s, {1, 1, s.random.chance(0.5) ? 1 : s.sizes.heads, static_cast<Index>(lists.indices.size())},
      [&] { return s.random.chance(0.05) ? -std::numeric_limits<double>::infinity() : s.random.uniform(-2, 2); });
  rows.push_back({"edge_bias",
                  attn::edge_bias(lists.offsets.view<3>(), lists.indices, values.view<2>()),
                  {{}, [lists, values](Real x, const Pair& p) {
                     Real sum = 0;
                     lists.for_each_of(p, [&](Index e) { sum += values(0, 0, p.head, e); });
                     return sum == -std::numeric_limits<Real>::infinity() ? sum : x + sum;
                   }}});
  return rows;
}

}  // namespace attn::test
