// The masks that share one erased type in mod_table.h, each with its meaning written out by hand. A new mask is an
// entry of kMasks.
#pragma once

#include <set>

#include "attn/mods.h"
#include "erased.h"
#include "grouped_rows.h"

namespace attn::test {

using MaskRows = Rows<decltype(erased_mask(attn::full()))>;

template <class M, class Keep>
void add_mask(MaskRows& rows, const std::string& name, const M& mod, Keep keep) {
  rows.push_back({name, erased_mask(mod), {keep, {}}});
}

inline std::string list(const std::vector<Index>& numbers) {
  std::string s;
  for (Index n : numbers) s += (s.empty() ? "{" : ", ") + std::to_string(n);
  return s + "}";
}

/// Returns a random number of tokens for each batch element, at most most(lengths of that element).
template <class Most>
std::vector<Index> draw_lengths(const Setting& s, const Most& most) {
  std::vector<Index> lengths;
  for (Index b = 0; b < s.sizes.batch; ++b) {
    const Index all = most(s.of(b));
    lengths.push_back(s.random.chance(0.2) ? all : s.random.integer(0, all));
  }
  return lengths;
}
inline std::vector<Index> draw_key_lengths(const Setting& s) {
  return draw_lengths(s, [](const Lengths& l) { return l.kv_len; });
}

inline void add_lengths(MaskRows& rows, const Setting& s) {
  const auto prefix = draw_key_lengths(s), queries = draw_lengths(s, [](const Lengths&l) { return l.q_len; });
  add_mask(rows, "prefix_lm" + list(prefix), attn::prefix_lm(prefix),
           [=](const Pair& p) { return p.kv <= p.q || p.kv < prefix[static_cast<std::size_t>(p.batch)]; });
  add_mask(rows, "query_lengths" + list(queries), attn::query_lengths(queries),
           [=](const Pair& p) { return p.row < queries[static_cast<std::size_t>(p.batch)]; });
}

/// Padding of keys, as tensors and as ranges.
inline void add_padding(MaskRows& rows, const Setting& s) {
  if (!s.even()) return;
  const auto random_keys = [&](Index of) {
    const double share = s.random.pick(std::vector{0.0, 0.1, 0.5, 0.9, 1.0});
    return Held<bool>(s, {1, 1, of, s.sizes.kv_len}, [&] { return s.random.chance(share); });
  };
  const auto each = random_keys(s.sizes.batch), kept = random_keys(s.sizes.batch), one = random_keys(1);
  add_mask(rows, "padding", attn::padding(each.view<2>()), [=](const Pair& p) { return !each(0, 0, p.batch, p.kv); });
  add_mask(rows, "keep_keys", attn::keep_keys(kept.view<2>()),
           [=](const Pair& p) { return kept(0, 0, p.batch, p.kv); });
  add_mask(rows, "padding of one", attn::padding(one.view<2>()), [=](const Pair& p) { return !one(0, 0, 0, p.kv); });
  add_mask(rows, "keep_keys of rank 1", attn::keep_keys(one.view<1>()),
           [=](const Pair& p) { return one(0, 0, 0, p.kv); });
}

inline void add_key_ranges(MaskRows& rows, const Setting& s) {
  auto begin = draw_key_lengths(s), end = draw_key_lengths(s);
  for (std::size_t b = 0; b < end.size(); ++b)
    if (end[b] < begin[b]) std::swap(begin[b], end[b]);
  add_mask(rows, "key_ranges" + list(begin) + list(end), attn::key_ranges(begin, end), [=](const Pair& p) {
    return begin[static_cast<std::size_t>(p.batch)] <= p.kv && p.kv < end[static_cast<std::size_t>(p.batch)];
  });
}

/// Packed documents, and ids in any order; no rows if queries are outside the documents.
inline void add_documents(MaskRows& rows, const Setting& s) {
  const Index n = s.sizes.kv_len;
  if (!s.even() || n == 0 || s.first() < 0 || s.first() + s.sizes.q_len > n) return;
  std::vector<Index> offsets{0}, packed, mixed;
  while (offsets.back() < n) {
    const Index longest = s.random.chance(0.2) ? 0 : std::max<Index>(n / 2, 1);
    const Index length = std::min(s.random.integer(0, longest), n - offsets.back());
    packed.insert(packed.end(), static_cast<std::size_t>(length), static_cast<Index>(offsets.size()) * 7);
    offsets.push_back(offsets.back() + length);
  }
  for (Index i = 0; i < n; ++i) mixed.push_back(i > 0 && s.random.chance(0.7) ? mixed.back() : s.random.integer(-1, 1));
  const auto same = [](const std::vector<Index>& ids) {
    return [ids](const Pair& p) { return ids[static_cast<std::size_t>(p.q)] == ids[static_cast<std::size_t>(p.kv)]; };
  };
  add_mask(rows, "documents" + list(packed), attn::documents(packed), same(packed));
  add_mask(rows, "documents_at" + list(offsets), attn::documents_at(offsets), same(packed));
  add_mask(rows, "documents, mixed" + list(mixed), attn::documents(mixed), same(mixed));
  std::vector<decltype(attn::documents(packed))> of_each;
  for (Index b = 0; b < s.sizes.batch; ++b) of_each.push_back(attn::documents(b % 2 ? mixed : packed));
  add_mask(rows, "documents by_batch", attn::by_batch(of_each),
           [=](const Pair& p) { return p.batch % 2 ? same(mixed)(p) : same(packed)(p); });
}

/// Two tables of offsets, which are independent of positions.
inline void add_packed_pairs(MaskRows& rows, const Setting& s) {
  if (!s.even()) return;
  const Index documents = s.random.integer(1, 6);
  std::vector<Index> queries{0}, keys{0};
  for (Index i = 1; i < documents; ++i)
    queries.push_back(s.random.integer(0, s.sizes.q_len)), keys.push_back(s.random.integer(0, s.sizes.kv_len));
  std::sort(queries.begin(), queries.end()), std::sort(keys.begin(), keys.end());
  queries.push_back(s.sizes.q_len), keys.push_back(s.sizes.kv_len);
  const auto is_in = [](const std::vector<Index>& offsets, Index i, std::size_t document) {
    return offsets[document] <= i && i < offsets[document + 1];
  };
  add_mask(rows, "documents_at" + list(queries) + list(keys), attn::documents_at(queries, keys), [=](const Pair& p) {
    bool kept = false;
    for (std::size_t d = 0; d + 1 < queries.size(); ++d) kept |= is_in(queries, p.row, d) && is_in(keys, p.kv, d);
    return kept;
  });
}

/// Masks that group tokens, without their groups, as in any_of() and similar.
inline void add_sparse(MaskRows& rows, const Setting& s) {
  const auto add = [&](const auto& grouped) {
    rows.push_back({grouped[0].name + ", not grouped", erased_mask(grouped[0].mod), grouped[0].meaning});
  };
  add(strided_rows(s));
  add(fixed_rows(s));
  add(dilated_rows(s));
}

inline void add_blocks(MaskRows& rows, const Setting& s) {
  if (!s.even()) return;
  const Index bq = s.random.pick(std::vector<Index>{1, 3, 5, 16, 48, 50, 64, 100}),
              bk = s.random.pick(std::vector<Index>{1, 4, 7, 16, 32, 64, 128});
  const Index qs = (s.sizes.q_len + bq - 1) / bq, ks = (s.sizes.kv_len + bk - 1) / bk;
  const Index batch = s.random.chance(0.5) ? s.sizes.batch : 1, heads = s.random.chance(0.7) ? s.sizes.heads : 1;
  const double share = s.random.pick(std::vector{0.0, 0.25, 0.4, 0.5, 0.8, 1.0});
  const Held<bool> map(s, {batch, heads, qs, ks}, [&] { return s.random.chance(share); });
  add_mask(rows, "block_sparse " + std::to_string(bq) + " x " + std::to_string(bk),
           attn::block_sparse(map.view(), bq, bk),
           [=](const Pair& p) { return map(p.batch, p.head, p.row / bq, p.kv / bk); });
}

/// Spans shared by all batch elements, and spans per batch element.
inline void add_spans(MaskRows& rows, const Setting& s) {
  using Spans = std::vector<attn::Range>;
  const auto draw = [&] {
    Spans spans;
    const Index most = s.random.pick(std::vector<Index>{1, 12, 12, 100});
    for (Index at = s.random.integer(0, 5); at < s.longest(); at = spans.back().end + s.random.integer(0, most))
      spans.push_back({at, at + s.random.integer(0, most)});
    return spans;
  };
  const auto keeps = [](const Spans& spans, const Pair& p) {
    const auto both_in = [&](const attn::Range& r) {
      return r.begin <= p.q && p.q < r.end && r.begin <= p.kv && p.kv < r.end;
    };
    return p.kv <= p.q || std::any_of(spans.begin(), spans.end(), both_in);
  };
  const Spans one = draw();
  std::vector<Spans> each;
  for (Index b = 0; b < s.sizes.batch; ++b) each.push_back(draw());
  add_mask(rows, "bidirectional_spans", attn::bidirectional_spans(one), [=](const Pair& p) { return keeps(one, p); });
  add_mask(rows, "bidirectional_spans per batch element", attn::bidirectional_spans(each),
           [=](const Pair& p) { return keeps(each[static_cast<std::size_t>(p.batch)], p); });
}

/// The blocks that top_k_blocks() should choose, in long double.
class ChosenBlocks {
 public:
  ChosenBlocks(const Setting& s, const attn::TopKBlocks& c, const Held<double>& q, const Held<double>& k)
      : s_(s.sizes),
        c_(c),
        rows_((s_.q_len + c.block_q - 1) / c.block_q),
        blocks_((s_.kv_len + c.block_kv - 1) / c.block_kv) {
    for (Index b = 0; b < s_.batch; ++b)
      for (Index h = 0; h < s_.heads; ++h)
        for (Index row = 0; row < rows_; ++row) {
          std::vector<Real> scores;
          for (Index block = 0; block < blocks_; ++block) scores.push_back(score(q, k, b, h, row, block));
          for (Index block = 0; block < blocks_; ++block) kept_.push_back(keeps(s.first(), row, block, scores));
        }
  }

  bool keeps(const Pair& p) const {
    const Index row = (p.batch * s_.heads + p.head) * rows_ + p.row / c_.block_q;
    return kept_[static_cast<std::size_t>(row * blocks_ + p.kv / c_.block_kv)];
  }

 private:
  bool keeps(Index first_query, Index row, Index block, const std::vector<Real>& scores) const {
    const Index first = first_query + row * c_.block_q,
                last = first_query + std::min((row + 1) * c_.block_q, s_.q_len) - 1;
    const auto is_own = [&](Index b) { return c_.causal && (b + 1) * c_.block_kv > first && b * c_.block_kv <= last; };
    const auto is_later = [&](Index b) { return c_.causal && b * c_.block_kv > last; };
    if (is_own(block) || is_later(block)) return is_own(block);
    Index before = 0;  // number of blocks ranked before this one
    for (Index b = 0; b < blocks_; ++b)
      if (b != block && !is_later(b))
        before += is_own(b) || scores[static_cast<std::size_t>(b)] > scores[static_cast<std::size_t>(block)];
    return before < c_.count;
  }
  Real score(const Held<double>& q, const Held<double>& k, Index b, Index head, Index row, Index block) const {
    const Index group = s_.heads / s_.kv_heads, kv_head = head / group;
    Real sum = 0;
    for (Index h = 0; h < s_.heads; ++h) {
      if (c_.heads_together ? h / group != kv_head : h != head) continue;
      for (Index d = 0; d < q.dim(3); ++d)
        sum += mean(q, b, h, row, c_.block_q, s_.q_len, d) * mean(k, b, kv_head, block, c_.block_kv, s_.kv_len, d);
    }
    return sum;
  }
  static Real mean(const Held<double>& t, Index b, Index h, Index block, Index size, Index len, Index d) {
    Real sum = 0;
    const Index end = std::min((block + 1) * size, len);
    for (Index i = block * size; i < end; ++i) sum += t(b, h, i, d);
    return sum / static_cast<Real>(end - block * size);
  }

  Sizes s_;
  attn::TopKBlocks c_;
  Index rows_, blocks_;
  std::vector<bool> kept_;  ///< (batch, heads, rows of blocks, blocks)
};

/// The vectors are in double, where near ties do not occur in practice.
inline void add_chosen_blocks(MaskRows& rows, const Setting& s) {
  if (!s.even()) return;
  constexpr Index kDim = 3;  // independent of the call's head_dim, which may be large
  const auto draw = [&](Index heads, Index len) {
    return Held<double>(
        s, {s.sizes.batch, heads, len, kDim}, [&] { return s.random.uniform(-1, 1); }, false);
  };
  const auto q = draw(s.sizes.heads, s.sizes.q_len), k = draw(s.sizes.kv_heads, s.sizes.kv_len);
  attn::TopKBlocks c{.count = s.random.integer(0, 4),
                     .block_q = s.random.pick(std::vector<Index>{1, 1, 5, 16, 48}),
                     .block_kv = s.random.pick(std::vector<Index>{3, 8, 32, 64}),
                     .causal = s.random.chance(0.6),
                     .heads_together = s.random.chance(0.5),
                     .q_offset = s.first()};
  add_mask(rows, "top_k_blocks " + std::to_string(c.block_q) + " x " + std::to_string(c.block_kv),
           attn::top_k_blocks(q.view(), k.view(), c),
           [blocks = ChosenBlocks(s, c, q, k)](const Pair& p) { return blocks.keeps(p); });
}

inline void add_global(MaskRows& rows, const Setting& s) {
  std::vector<Index> positions;
  for (Index i = s.random.integer(0, 4); i > 0; --i) positions.push_back(s.random.integer(0, s.longest()));
  const std::set<Index> global(positions.begin(), positions.end());
  add_mask(rows, "global_tokens" + list(positions), attn::global_tokens(positions),
           [=](const Pair& p) { return global.count(p.q) + global.count(p.kv) > 0; });
}

inline void add_tree(MaskRows& rows, const Setting& s) {
  if (!s.even() || s.has_rope || s.sizes.q_len > s.sizes.kv_len) return;
  std::vector<Index> parents;
  for (Index i = 0; i < s.sizes.q_len; ++i)
    parents.push_back(s.random.chance(0.1) ? -1 : s.random.integer(std::max<Index>(i - 5, -1), i - 1));
  add_mask(rows, "tree" + list(parents), attn::tree(parents),
           [=, context = s.sizes.kv_len - s.sizes.q_len](const Pair& p) {
             if (p.kv < context) return true;
             Index node = p.row;
             while (node > p.kv - context) node = parents[static_cast<std::size_t>(node)];
             return node == p.kv - context;
           });
}

inline void add_logic(MaskRows& rows, const Setting& s) {
  const Index window = s.random.integer(0, 20), key = s.random.integer(0, s.sizes.kv_len);
  add_mask(rows, "any_of(window, global)", attn::any_of(attn::sliding_window(window, 2), attn::global_tokens({key})),
           [=](const Pair& p) { return (p.q - p.kv <= window && p.kv - p.q <= 2) || p.q == key || p.kv == key; });
  add_mask(rows, "not_(causal)", attn::not_(attn::causal()), [](const Pair& p) { return p.kv > p.q; });
  std::vector<decltype(attn::sliding_window(window))> windows;
  for (Index b = 0; b < s.sizes.batch; ++b) windows.push_back(attn::sliding_window(window + 3 * b));
  add_mask(rows, "by_batch(windows)", attn::by_batch(windows),
           [=](const Pair& p) { return p.kv <= p.q && p.q - p.kv <= window + 3 * p.batch; });
  add_mask(rows, "all_of(causal, not_(window))", attn::all_of(attn::causal(), attn::not_(attn::sliding_window(window))),
           [=](const Pair& p) { return p.q - p.kv > window; });
  const auto lengths = draw_key_lengths(s);
  add_mask(
      rows, "any_of(causal | lambda, lengths)",
      attn::any_of(attn::causal() | attn::mask_mod([](auto p) { return p.kv % 3 != 1; }), attn::key_lengths(lengths)),
      [=](const Pair& p) {
        return (p.kv <= p.q && p.kv % 3 != 1) || p.kv < lengths[static_cast<std::size_t>(p.batch)];
      });
  if (!s.even()) return;
  const Held<bool> map(s, {1, s.sizes.heads, 1, s.sizes.kv_len}, [&] { return s.random.chance(0.3); });
  add_mask(
      rows, "any_of(keys of heads, lengths)",
      attn::any_of(attn::block_sparse(map.view<3>(), std::max<Index>(s.sizes.q_len, 1), 1), attn::key_lengths(lengths)),
      [=](const Pair& p) { return map(p) || p.kv < lengths[static_cast<std::size_t>(p.batch)]; });
}

/// A mask without structure: pairs are kept by a hash.
struct Hashed {
  std::uint64_t seed, share;  ///< `share` of 256 pairs are kept

  static Hashed draw(const Setting& s) { return {s.random.bits(), s.random.pick(std::vector{1u, 64u, 128u, 240u})}; }
  bool operator()(Index batch, Index head, Index q, Index kv) const {
    std::uint64_t h = seed;
    for (Index n : {batch, head, q, kv}) h = (h ^ static_cast<std::uint64_t>(n)) * 0x9e3779b97f4a7c15u, h ^= h >> 29;
    return (h & 255) < share;
  }
};

/// Lambdas: one without hints, and one with hints, which keeps a different band for each head and batch element.
inline void add_lambdas(MaskRows& rows, const Setting& s) {
  const Hashed hash = Hashed::draw(s);
  add_mask(rows, "lambda of a hash",
           attn::mask_mod([=](const Position& p) { return hash(p.batch, p.head, p.q, p.kv); }),
           [=](const Pair& p) { return hash(p.batch, p.head, p.q, p.kv); });
  const Index width = s.random.integer(1, 100);
  const auto band = [=](const Tile& t) {
    const Index begin = 40 * t.head + 10 * t.batch;
    return Range{begin, begin + width};
  };
  add_mask(rows, "lambda of a band of " + std::to_string(width),
           attn::mask_mod(
               [=](const Position& p) {
                 const Range r = band({p.batch, p.head, {}, {}});
                 return p.kv >= r.begin && p.kv < r.end;
               },
               [=](const Tile& t) {
                 const Range r = band(t);
                 if (t.kv.end <= r.begin || t.kv.begin >= r.end) return Coverage::none;
                 return t.kv.begin >= r.begin && t.kv.end <= r.end ? Coverage::all : Coverage::some;
               },
               band),
           [=](const Pair& p) {
             const Index from = p.kv - 10 * (p.batch + 4 * p.head);
             return 0 <= from && from < width;
           });
}

inline void add_block_masks(MaskRows& rows, const Setting& s) {
  if (!s.even()) return;
  const attn::Options options{.q_offset = s.first()};
  const auto add = [&](const char* name, const auto& mask, bool of_heads, const auto& keeps) {
    add_mask(rows, name,
             attn::block_mask(attn::mask_mod(mask), s.sizes.q_len, s.sizes.kv_len, options,
                              of_heads ? s.sizes.batch : 1, of_heads ? s.sizes.heads : 1),
             keeps);
  };
  add(
      "block_mask(lambda)", [](const Position& p) { return p.kv <= p.q + 2 && (p.kv / 20 != p.q / 30); }, false,
      [](const Pair& p) { return p.kv < p.q + 3 && p.kv / 20 != p.q / 30; });
  add(
      "block_mask(lambda of heads)", [](auto p) { return p.kv >= (p.batch + p.head + 1) % 3 * 20; }, true,
      [](const Pair& p) {
        const Index sum = p.batch + p.head;
        return sum % 3 == 2 || p.kv >= (sum % 3 == 1 ? 40 : 20);
      });
  const bool of_heads = s.random.chance(0.5);
  const Hashed hash = Hashed::draw(s);
  const auto keeps = [=](const auto& p) {
    return p.kv <= p.q + 20 && hash(of_heads ? p.batch : 0, of_heads ? p.head : 0, p.q / 20, p.kv / 30);
  };
  add("block_mask(lambda of a hash)", keeps, of_heads, keeps);
}

/// Each adds rows, or none if its masks do not suit the setting.
inline constexpr void (*kMasks[])(MaskRows&, const Setting&) = {
    add_lengths, add_padding,       add_key_ranges, add_documents, add_packed_pairs, add_sparse,  add_blocks,
    add_spans,   add_chosen_blocks, add_global,     add_tree,      add_logic,        add_lambdas, add_block_masks,
};

}  // namespace attn::test
