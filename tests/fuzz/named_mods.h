// Every mod of the library with random parameters, and what each means. with_mask() and with_score() call use(mod,
// meaning); the types of the mods differ.
#pragma once

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "chosen_masks.h"
#include "erased.h"
#include "numbers.h"
#include "oracle.h"

namespace fuzz {

inline std::string listed(const std::vector<Index>& numbers) {
  std::string text = "{";
  for (std::size_t i = 0; i < numbers.size(); ++i) text += (i == 0 ? "" : ",") + std::to_string(numbers[i]);
  return text + "}";
}

/// A lambda's mask without rhyme: pairs are kept by a hash of them.
struct Hashed {
  std::uint64_t seed;
  std::uint64_t share;  ///< of 256 pairs are kept
  bool operator()(Index batch, Index head, Index q, Index kv) const {
    std::uint64_t h = seed;
    for (Index n : {batch, head, q, kv}) h = (h ^ static_cast<std::uint64_t>(n)) * 0x9e3779b97f4a7c15u, h ^= h >> 29;
    return (h & 255) < share;
  }
};

/// A size, or 1, for what a tensor may be broadcast over.
inline Index size_or_one(Random& r, Index size, bool must) { return !must && r.percent(60) ? size : 1; }

/// A tensor over the pairs of a call, broadcast at random.
template <class T, class F>
TensorView<const T, 4> pair_tensor(Case& c, const Sizes& s, const F& draw) {
  const bool even = s.even();
  const Index b = size_or_one(c.random, s.batch(), false), h = size_or_one(c.random, s.heads, false),
              n = size_or_one(c.random, even ? s.each[0].q_len : 1, !even),
              m = size_or_one(c.random, even ? s.each[0].kv_len : 1, !even);
  Guard4<T>& t = c.keep(Guard4<T>(c.random, {b, h, n, m}, Role::input));
  t.fill([&](Index, Index, Index, Index) { return draw(); });
  t.finish();
  return t.input();
}
template <class T>
auto lookup(const TensorView<const T, 4>& t, const Place& p) {
  const auto at = [&](int d, Index i) { return t.dim(d) == 1 ? 0 : i; };
  return t(at(0, p.batch), at(1, p.head), at(2, p.row), at(3, p.kv));
}

/// How many kinds of masks there are below. One that does not suit the sizes makes way for another.
constexpr Index kMasks = 21 + kChosenMasks;

template <class Use>
void with_mask(Case& c, Index kind, const Sizes& s, const Use& use) {
  using attn::mask_mod;
  if (kind >= kMasks - kChosenMasks) return with_chosen_mask(c, kind - (kMasks - kChosenMasks), s, use);
  Random& r = c.random;
  const bool even = s.even();
  const Lens l = even ? s.each[0] : Lens{};
  std::vector<Index> q_lens, kv_lens;
  for (const Lens& each : s.each) q_lens.push_back(each.q_len), kv_lens.push_back(each.kv_len);
  const bool in_keys = even && l.q_offset >= 0 && l.q_offset + l.q_len <= l.kv_len && l.kv_len > 0;
  if ((kind == 5 || kind == 6) && !in_keys) kind = 0;
  if (kind == 12 && (!even || l.q_len > l.kv_len || s.has_rope)) kind = 1;
  if (kind == 20 && (!even || s.batch() == 0)) kind = 19;
  if ((kind == 7 || kind == 18) && (!even || s.batch() == 0)) kind = 2;
  switch (kind) {
    case 0:
      return use(attn::causal(), {"causal", [](const Place& p) { return p.kv <= p.q; }});
    case 1: {
      const Index left = r.percent(10) ? r.from(0, 1000) : r.from(0, 90), right = r.percent(50) ? 0 : r.from(0, 70);
      return use(attn::sliding_window(left, right),
                 {"sliding_window(" + std::to_string(left) + "," + std::to_string(right) + ")",
                  [=](const Place& p) { return p.kv >= p.q - left && p.kv <= p.q + right; }});
    }
    case 2: {
      const auto lens = r.lengths(kv_lens);
      return use(attn::prefix_lm(lens), {"prefix_lm" + listed(lens), [lens](const Place& p) {
                                           return p.kv <= p.q || p.kv < lens[static_cast<std::size_t>(p.batch)];
                                         }});
    }
    case 3: {
      const auto lens = r.lengths(kv_lens);
      return use(attn::key_lengths(lens), {"key_lengths" + listed(lens), [lens](const Place& p) {
                                             return p.kv < lens[static_cast<std::size_t>(p.batch)];
                                           }});
    }
    case 4: {
      const auto lens = r.lengths(q_lens);
      return use(attn::query_lengths(lens), {"query_lengths" + listed(lens), [lens](const Place& p) {
                                               return p.row < lens[static_cast<std::size_t>(p.batch)];
                                             }});
    }
    case 5: {
      std::vector<Index> ids;
      const Index kinds = r.from(1, 5), run = r.from(1, 80);
      while (static_cast<Index>(ids.size()) < l.kv_len)
        ids.insert(ids.end(), static_cast<std::size_t>(r.from(1, run)), r.from(0, kinds));
      ids.resize(static_cast<std::size_t>(l.kv_len));
      return use(attn::documents(ids), {"documents" + listed(ids), [ids](const Place& p) {
                                          return ids[static_cast<std::size_t>(p.q)] ==
                                                 ids[static_cast<std::size_t>(p.kv)];
                                        }});
    }
    case 6: {
      std::vector<Index> offsets = {0};
      const Index longest = r.from(1, 150);
      while (offsets.back() < l.kv_len) offsets.push_back(std::min(l.kv_len, offsets.back() + r.from(1, longest)));
      return use(attn::documents_at(offsets), {"documents_at" + listed(offsets), [offsets](const Place& p) {
                                                 for (Index border : offsets)
                                                   if ((p.q < border) != (p.kv < border)) return false;
                                                 return true;
                                               }});
    }
    case 7: {
      const Index block_q = r.of<Index>({1, 5, 16, 48, 64, 100}), block_kv = r.of<Index>({1, 7, 16, 64, 128});
      const Index share = r.of<Index>({0, 25, 50, 80, 100});
      const Index b = size_or_one(r, s.batch(), false), h = size_or_one(r, s.heads, false);
      Guard4<bool>& map = c.keep(Guard4<bool>(
          r, {b, h, (l.q_len + block_q - 1) / block_q, (l.kv_len + block_kv - 1) / block_kv}, Role::input));
      map.fill([&](Index, Index, Index, Index) { return r.percent(share); });
      map.finish();
      return use(attn::block_sparse(map.view(), block_q, block_kv),
                 {"block_sparse(" + std::to_string(share) + "%," + std::to_string(block_q) + "," +
                      std::to_string(block_kv) + ")",
                  [t = map.input(), block_q, block_kv](const Place& p) {
                    return lookup(t, {p.batch, p.head, p.row / block_q, 0, p.kv / block_kv});
                  }});
    }
    case 8: {
      const Index stride = r.percent(50) ? r.from(1, 12) : r.from(1, 130);
      return use(attn::strided_sparse(stride), {"strided_sparse(" + std::to_string(stride) + ")",
                                                [stride](const Place& p) {
                                                  const Index far = p.q - p.kv;
                                                  return far >= 0 && (far <= stride || far % stride == 0);
                                                },
                                                nullptr, nullptr, nullptr, 2});
    }
    case 9: {
      const Index block = r.percent(50) ? r.from(1, 12) : r.from(1, 130),
                  summary = r.from(0, std::min<Index>(block, r.from(0, 40)));
      return use(attn::fixed_sparse(block, summary),
                 {"fixed_sparse(" + std::to_string(block) + "," + std::to_string(summary) + ")",
                  [=](const Place& p) {
                    return p.kv <= p.q && (p.kv / block == p.q / block || p.kv % block >= block - summary);
                  },
                  nullptr, nullptr, nullptr, summary + 1});
    }
    case 10: {
      const Index left = r.from(0, 40), dilation = r.from(1, 20), right = r.percent(50) ? 0 : r.from(0, 20);
      return use(
          attn::dilated(left, dilation, right),
          {"dilated(" + std::to_string(left) + "," + std::to_string(dilation) + "," + std::to_string(right) + ")",
           [=](const Place& p) {
             const Index far = p.q - p.kv;
             return far % dilation == 0 && far / dilation <= left && -far / dilation <= right;
           }});
    }
    case 11: {
      std::vector<Index> positions;
      for (Index i = r.from(0, 4); i > 0; --i) positions.push_back(r.from(0, 300));
      return use(attn::global_tokens(positions), {"global_tokens" + listed(positions), [positions](const Place& p) {
                                                    for (Index g : positions)
                                                      if (p.q == g || p.kv == g) return true;
                                                    return false;
                                                  }});
    }
    case 12: {
      std::vector<Index> parents;
      const Index reach = r.from(1, 6);
      for (Index i = 0; i < l.q_len; ++i)
        parents.push_back(r.percent(10) ? -1 : std::max<Index>(-1, i - r.from(1, reach)));
      const Index context = l.kv_len - l.q_len;
      return use(attn::tree(parents), {"tree" + listed(parents), [parents, context](const Place& p) {
                                         if (p.kv < context) return true;
                                         Index node = p.row;
                                         while (node > p.kv - context) node = parents[static_cast<std::size_t>(node)];
                                         return node == p.kv - context;
                                       }});
    }
    case 13:
    case 14: {
      const Index share = r.of<Index>({0, 20, 50, 90, 100});
      const auto t = pair_tensor<bool>(c, s, [&] { return r.percent(share); });
      if (kind == 13)
        return use(attn::keep(t),
                   {"keep(" + std::to_string(share) + "%)", [t](const Place& p) { return lookup(t, p); }});
      return use(attn::drop(t),
                 {"drop(" + std::to_string(share) + "%)", [t](const Place& p) { return !lookup(t, p); }});
    }
    case 15:
      return use(attn::full(), {"full", [](const Place&) { return true; }});
    case 16: {
      const Hashed hash{r.bits(), static_cast<std::uint64_t>(r.of<Index>({1, 64, 128, 240}))};
      return use(mask_mod([hash](auto p) { return hash(p.batch, p.head, p.q, p.kv); }),
                 {"lambda(" + std::to_string(hash.share) + "/256)",
                  [hash](const Place& p) { return hash(p.batch, p.head, p.q, p.kv); }});
    }
    case 17: {  // a lambda with hints: each head and batch element sees a band of its own
      const Index width = r.from(1, 100);
      const auto first = [](const Tile& t) { return 40 * t.head + 10 * t.batch; };
      return use(
          mask_mod(
              [=](auto p) { return p.kv >= 40 * p.head + 10 * p.batch && p.kv < 40 * p.head + 10 * p.batch + width; },
              [=](const Tile& t) {
                if (t.kv.end <= first(t) || t.kv.begin >= first(t) + width) return attn::Coverage::none;
                return t.kv.begin >= first(t) && t.kv.end <= first(t) + width ? attn::Coverage::all
                                                                              : attn::Coverage::some;
              },
              [=](const Tile& t) {
                return attn::Range{first(t), first(t) + width};
              }),
          {"band(" + std::to_string(width) + ")", [width](const Place& p) {
             return p.kv >= 40 * p.head + 10 * p.batch && p.kv < 40 * p.head + 10 * p.batch + width;
           }});
    }
    case 18: {
      const Hashed hash{r.bits(), static_cast<std::uint64_t>(r.of<Index>({1, 64, 200}))};
      const bool by_head = r.percent(50);
      attn::Options o;
      o.q_offset = l.q_offset;
      const auto mask = mask_mod([=](auto p) {
        return p.kv <= p.q + 20 && hash(by_head ? p.batch : 0, by_head ? p.head : 0, p.q / 20, p.kv / 30);
      });
      return use(attn::block_mask(mask, l.q_len, l.kv_len, o, by_head ? s.batch() : 1, by_head ? s.heads : 1),
                 {"block_mask(" + std::to_string(hash.share) + "/256)", [=](const Place& p) {
                    return p.kv <= p.q + 20 && hash(by_head ? p.batch : 0, by_head ? p.head : 0, p.q / 20, p.kv / 30);
                  }});
    }
    case 19: {
      std::vector<Index> begin = r.lengths(kv_lens), end = r.lengths(kv_lens);
      for (std::size_t b = 0; b < end.size(); ++b)
        if (end[b] < begin[b]) std::swap(begin[b], end[b]);
      return use(attn::key_ranges(begin, end),
                 {"key_ranges(" + listed(begin) + "," + listed(end) + ")", [begin, end](const Place& p) {
                    const auto b = static_cast<std::size_t>(p.batch);
                    return p.kv >= begin[b] && p.kv < end[b];
                  }});
    }
    default: {
      const Index share = r.of<Index>({0, 10, 50, 90, 100}), b = size_or_one(r, s.batch(), false);
      Guard4<bool>& t = c.keep(Guard4<bool>(r, {1, 1, b, l.kv_len}, Role::input));
      t.fill([&](Index, Index, Index, Index) { return r.percent(share); });
      t.finish();
      const TensorView<const bool, 2> keys(t.input().data(), {b, l.kv_len}, {t.view().stride(2), t.view().stride(3)});
      const auto is_true = [=](const Place& p) { return keys(b == 1 ? 0 : p.batch, p.kv); };
      if (r.percent(50)) return use(attn::keep_keys(keys), {"keep_keys(" + std::to_string(share) + "%)", is_true});
      return use(attn::padding(keys),
                 {"padding(" + std::to_string(share) + "%)", [is_true](const Place& p) { return !is_true(p); }});
    }
  }
}

}  // namespace fuzz
