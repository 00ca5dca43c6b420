// Masks of grids, lists, chosen blocks and spans with random parameters, and what each means.
#pragma once

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "numbers.h"
#include "oracle.h"

namespace fuzz {

/// A grid of all keys of a call, and the coordinates that each coordinate keeps, in each dimension.
struct Grid {
  std::vector<Index> shape, window, dilation, causal;
  std::vector<std::vector<bool>> kept;
  std::string text = "neighbourhood(";

  Grid(Random& r, Index tokens) {
    const Index rank = r.from(1, 3);
    for (Index d = 0, left = tokens; d < rank; left /= shape[static_cast<std::size_t>(d++)]) {
      std::vector<Index> divisors;
      for (Index n = 1; n <= left; ++n)
        if (left % n == 0) divisors.push_back(n);
      const Index drawn = divisors[static_cast<std::size_t>(r.from(0, static_cast<Index>(divisors.size()) - 1))];
      shape.push_back(d + 1 == rank ? left : drawn);
      window.push_back(r.from(1, std::min<Index>(shape.back(), r.percent(50) ? 5 : 30)));
      dilation.push_back(r.from(1, std::min<Index>(shape.back() / window.back(), 4)));
      causal.push_back(r.percent(30) ? 1 : 0);
      kept.push_back(kept_along(shape.back(), window.back(), dilation.back(), causal.back() == 1));
      text += (d == 0 ? "" : " x ") + std::to_string(window.back()) + " of " + std::to_string(shape.back()) +
              " every " + std::to_string(dilation.back()) + (causal.back() == 1 ? " causal" : "");
    }
    text += ')';
  }

  bool keeps(Index q, Index kv) const {
    bool all = true;
    for (std::size_t d = shape.size(); d-- > 0; q /= shape[d], kv /= shape[d])
      all = all && kept[d][static_cast<std::size_t>(q % shape[d] * shape[d] + kv % shape[d])];
    return all;
  }

 private:
  /// Row q has the coordinates that q keeps: `window` of those that are a multiple of the dilation away, as many on
  /// each side as there are, one less behind q where their number is even.
  static std::vector<bool> kept_along(Index length, Index window, Index dilation, bool causal) {
    std::vector<bool> kept(static_cast<std::size_t>(length * length));
    for (Index q = 0; q < length; ++q) {
      Index first = q, last = q;
      const auto has = [&](Index c) { return c >= 0 && c < length; };
      for (Index n = 1; n < window; ++n) {
        const bool wants_before = causal || n % 2 == 1;
        if (wants_before ? has(first - dilation) || causal : !has(last + dilation))
          first -= has(first - dilation) ? dilation : 0;
        else
          last += dilation;
      }
      for (Index c = first; c <= last; c += dilation) kept[static_cast<std::size_t>(q * length + c)] = true;
    }
    return kept;
  }
};

/// Lists of any lengths in compressed rows, for each query or for all: empty ones, repeated keys and hubs.
struct Rows {
  Guard4<Index>* offsets;
  std::vector<Index> indices;
  Index group;

  Rows(Case& c, const Sizes& s) {
    Random& r = c.random;
    const Lens l = s.each[0];
    const Index heads = r.of<Index>({1, s.kv_heads, s.heads}), rows = r.percent(20) ? 1 : l.q_len;
    group = s.heads / heads;
    // Not as an input, whose elements may share memory: offsets go on from one to the next.
    offsets = &c.keep(Guard4<Index>(r, {1, r.percent(50) ? 1 : s.batch(), heads, rows + 1}, Role::output));
    offsets->fill([&](Index, Index, Index, Index i) {
      const Index longest = r.percent(10) ? 2 * l.kv_len : std::max<Index>(l.kv_len / 6, 1),
                  count = i == 0 || l.kv_len == 0 || r.percent(20) ? 0 : r.from(0, longest);
      for (Index e = 0; e < count; ++e) indices.push_back(r.from(0, l.kv_len - 1));
      return static_cast<Index>(indices.size());
    });
    offsets->finish();
  }
  TensorView<const Index, 3> given() const { return offsets->input().select(0, 0); }

  /// Calls visit(entry) for each entry of a pair.
  template <class Visit>
  void for_each_of(const Place& p, const Visit& visit) const {
    const auto t = given();
    const Index b = t.dim(0) == 1 ? 0 : p.batch, i = t.dim(2) == 2 ? 0 : p.row;
    for (Index e = t(b, p.head / group, i); e < t(b, p.head / group, i + 1); ++e)
      if (indices[static_cast<std::size_t>(e)] == p.kv) visit(e);
  }
};

/// Lists of keys in a tensor that is broadcast at random, some short enough to be gathered.
template <class Use>
void with_select(Case& c, const Sizes& s, const Use& use) {
  Random& r = c.random;
  const Lens l = s.each[0];
  if (r.percent(40)) {
    const Rows rows(c, s);
    return use(attn::select(rows.given(), rows.indices), {"select(offsets, indices)", [rows](const Place& p) {
                                                            bool has = false;
                                                            rows.for_each_of(p, [&](Index) { has = true; });
                                                            return has;
                                                          }});
  }
  const Index most = r.percent(60) ? std::max<Index>(l.kv_len / 4, 1) : l.kv_len;
  const attn::Shape<4> shape{r.percent(50) ? 1 : s.batch(), r.of<Index>({1, s.kv_heads, s.heads}),
                             r.percent(30) ? 1 : l.q_len, r.from(0, std::min<Index>(most, 60))};
  Guard4<Index>& t = c.keep(Guard4<Index>(r, shape, Role::input));
  t.fill([&](Index, Index, Index, Index) { return r.percent(10) ? -1 : r.from(-1, l.kv_len - 1); });
  t.finish();
  use(attn::select(t.input()),
      {"select(" + std::to_string(shape[0]) + "," + std::to_string(shape[1]) + "," + std::to_string(shape[2]) + "," +
           std::to_string(shape[3]) + ")",
       [t = t.input(), group = shape[1] == 0 ? 1 : s.heads / shape[1]](const Place& p) {
         for (Index i = 0; i < t.dim(3); ++i)
           if (t(t.dim(0) == 1 ? 0 : p.batch, p.head / group, t.dim(2) == 1 ? 0 : p.row, i) == p.kv) return true;
         return false;
       }});
}

/// top_k_blocks() of tensors that the call does not have: the choice is the mask's own. In double, whose ties and
/// near ties no draw will meet.
template <class Use>
void with_top_k_blocks(Case& c, const Sizes& s, const Use& use) {
  Random& r = c.random;
  const Lens l = s.each[0];
  attn::TopKBlocks config{.count = r.from(0, 4),
                          .block_q = r.of<Index>({1, 1, 5, 16, 48}),
                          .block_kv = r.of<Index>({3, 8, 32, 64}),
                          .causal = r.percent(60),
                          .heads_together = r.percent(40)};
  config.q_offset = l.q_offset;
  const auto draw = [&](Index heads, Index len) -> const Guard4<double>& {
    Guard4<double>& t = c.keep(Guard4<double>(r, {s.batch(), heads, len, 4}, Role::output));
    t.fill([&](Index, Index, Index, Index) { return r.normal(); });
    t.finish();
    return t;
  };
  const Guard4<double>&q = draw(s.heads, l.q_len), &k = draw(s.kv_heads, l.kv_len);
  const Index rows = (l.q_len + config.block_q - 1) / config.block_q,
              blocks = (l.kv_len + config.block_kv - 1) / config.block_kv, group = s.heads / s.kv_heads;
  const auto mean = [](const Guard4<double>& t, Index b, Index h, Index block, Index size, Index x) {
    const Index begin = block * size, end = std::min(begin + size, t.view().dim(2));
    Wide sum = 0;
    for (Index i = begin; i < end; ++i) sum += t.view()(b, h, i, x);
    return sum / static_cast<Wide>(end - begin);
  };
  std::vector<bool> kept;  // (batch, heads, rows, blocks)
  for (Index b = 0; b < s.batch(); ++b)
    for (Index h = 0; h < s.heads; ++h)
      for (Index row = 0; row < rows; ++row) {
        std::vector<Wide> scores(static_cast<std::size_t>(blocks));
        for (Index block = 0; block < blocks; ++block)
          for (Index other = 0; other < s.heads; ++other)
            for (Index x = 0; (config.heads_together ? other / group == h / group : other == h) && x < 4; ++x)
              scores[static_cast<std::size_t>(block)] +=
                  mean(q, b, other, row, config.block_q, x) * mean(k, b, h / group, block, config.block_kv, x);
        const Index first = l.q_offset + row * config.block_q,
                    last = l.q_offset + std::min((row + 1) * config.block_q, l.q_len) - 1;
        std::vector<Index> order;
        Index left = config.count;
        std::vector<bool> chosen(static_cast<std::size_t>(blocks));
        for (Index block = 0; block < blocks; ++block) {
          const bool is_later = config.causal && block * config.block_kv > last;
          const bool is_own = config.causal && !is_later && (block + 1) * config.block_kv > first;
          if (is_own) chosen[static_cast<std::size_t>(block)] = true, --left;
          if (!is_own && !is_later) order.push_back(block);
        }
        std::sort(order.begin(), order.end(), [&](Index x, Index y) {
          return scores[static_cast<std::size_t>(x)] > scores[static_cast<std::size_t>(y)];
        });
        for (std::size_t i = 0; i < order.size() && left > 0; ++i, --left)
          chosen[static_cast<std::size_t>(order[i])] = true;
        kept.insert(kept.end(), chosen.begin(), chosen.end());
      }
  use(attn::top_k_blocks(q.input(), k.input(), config),
      {"top_k_blocks(" + std::to_string(config.count) + " of " + std::to_string(config.block_q) + "x" +
           std::to_string(config.block_kv) + (config.causal ? " causal" : "") +
           (config.heads_together ? " together" : "") + ")",
       [=, heads = s.heads](const Place& p) {
         const Index row = (p.batch * heads + p.head) * rows + p.row / config.block_q;
         return kept[static_cast<std::size_t>(row * blocks + p.kv / config.block_kv)];
       }});
}

template <class Use>
void with_spans(Case& c, const Sizes& s, const Use& use) {
  Random& r = c.random;
  using Spans = std::vector<attn::Range>;
  Index most = 0;
  for (const Lens& l : s.each) most = std::max(most, l.kv_len);
  std::string text = "bidirectional_spans(";
  const auto draw = [&] {
    Spans spans;
    const Index longest = r.of<Index>({1, 12, 100});
    for (Index at = r.from(0, 9); at < most; at = spans.back().end + r.from(0, longest)) {
      spans.push_back({at, at + r.from(0, longest)});
      text += std::to_string(at) + ".." + std::to_string(spans.back().end) + " ";
    }
    return spans;
  };
  const auto keeps = [](const Spans& spans, const Place& p) {
    const auto both_in = [&](const attn::Range& range) {
      return std::min(p.q, p.kv) >= range.begin && std::max(p.q, p.kv) < range.end;
    };
    return p.kv <= p.q || std::any_of(spans.begin(), spans.end(), both_in);
  };
  if (r.percent(50)) {
    const Spans one = draw();
    return use(attn::bidirectional_spans(one), {text + ")", [=](const Place& p) { return keeps(one, p); }});
  }
  std::vector<Spans> each;
  for (Index b = 0; b < s.batch(); ++b) each.push_back(draw()), text += "; ";
  use(attn::bidirectional_spans(each),
      {text + ")", [=](const Place& p) { return keeps(each[static_cast<std::size_t>(p.batch)], p); }});
}

/// A mask that gathers keys, which it does in its own type alone. False: none suits the sizes, and nothing is called.
template <class Use>
bool with_gathered_mask(Case& c, Index kind, const Sizes& s, const Use& use) {
  if (!s.even() || s.each[0].kv_len == 0) return false;
  const Lens l = s.each[0];
  if (kind == 0 && l.q_offset >= 0 && l.q_offset + l.q_len <= l.kv_len) {
    const Grid grid(c.random, l.kv_len);
    use(attn::neighbourhood(grid.shape, grid.window, grid.dilation, grid.causal),
        {grid.text, [grid](const Place& p) { return grid.keeps(p.q, p.kv); }});
  } else {
    with_select(c, s, use);
  }
  return true;
}

/// How many kinds there are below.
constexpr Index kChosenMasks = 4;

/// Spans stand in for a mask that does not suit the sizes.
template <class Use>
void with_chosen_mask(Case& c, Index kind, const Sizes& s, const Use& use) {
  if (kind < 2 && with_gathered_mask(c, kind, s, use)) return;
  if (kind == 2 && s.even() && s.each[0].kv_len > 0 && s.each[0].q_len > 0) return with_top_k_blocks(c, s, use);
  with_spans(c, s, use);
}

}  // namespace fuzz
