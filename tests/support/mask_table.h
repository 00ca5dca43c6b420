// The named masks that have no type of their own in mod_table(), each with its meaning written out by hand.
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

inline std::vector<Index> draw_lengths(const Setting& s, Index most) {
  std::vector<Index> lengths;
  for (Index b = 0; b < s.sizes.batch; ++b) lengths.push_back(s.random.integer(0, most));
  return lengths;
}

inline void add_lengths(MaskRows& rows, const Setting& s) {
  const auto prefix = draw_lengths(s, s.sizes.kv_len), queries = draw_lengths(s, s.sizes.q_len);
  add_mask(rows, "prefix_lm" + list(prefix), attn::prefix_lm(prefix),
           [=](const Pair& p) { return p.kv <= p.q || p.kv < prefix[static_cast<std::size_t>(p.batch)]; });
  add_mask(rows, "query_lengths" + list(queries), attn::query_lengths(queries),
           [=](const Pair& p) { return p.row < queries[static_cast<std::size_t>(p.batch)]; });
}

/// Padding of keys, as tensors and as ranges.
inline void add_padding(MaskRows& rows, const Setting& s) {
  const Index batch = s.sizes.batch, n = s.sizes.kv_len;
  const auto random_keys = [&](Index of) {
    attn::Tensor<bool, 2> t({of, n});
    const double share = s.random.pick(std::vector{0.1, 0.5, 0.9});
    for (Index i = 0; i < t.size(); ++i) t.data()[i] = s.random.chance(share);
    return t;
  };
  const auto each = random_keys(batch), kept = random_keys(batch), one = random_keys(1);
  attn::Tensor<bool, 1> list({n});
  std::copy_n(one.data(), n, list.data());
  add_mask(rows, "padding", attn::padding(attn::Tensor(each)), [=](const Pair& p) { return !each(p.batch, p.kv); });
  add_mask(rows, "keep_keys", attn::keep_keys(attn::Tensor(kept)), [=](const Pair& p) { return kept(p.batch, p.kv); });
  add_mask(rows, "padding of one", attn::padding(attn::Tensor(one)), [=](const Pair& p) { return !one(0, p.kv); });
  add_mask(rows, "keep_keys of rank 1", attn::keep_keys(attn::Tensor(list)), [=](const Pair& p) { return list(p.kv); });
}

inline void add_key_ranges(MaskRows& rows, const Setting& s) {
  const auto begin = draw_lengths(s, s.sizes.kv_len);
  auto end = begin;
  for (Index& e : end) e = s.random.integer(e, s.sizes.kv_len);
  add_mask(rows, "key_ranges" + list(begin) + list(end), attn::key_ranges(begin, end), [=](const Pair& p) {
    return begin[static_cast<std::size_t>(p.batch)] <= p.kv && p.kv < end[static_cast<std::size_t>(p.batch)];
  });
}

/// Packed documents, and ids in any order; none where queries lie outside of the documents.
inline void add_documents(MaskRows& rows, const Setting& s) {
  const Index n = s.sizes.kv_len;
  if (n == 0 || s.first() < 0 || s.first() + s.sizes.q_len > n) return;
  std::vector<Index> offsets{0}, packed, mixed;
  while (offsets.back() < n) {
    const Index length = std::min(s.random.integer(1, std::max<Index>(n / 2, 1)), n - offsets.back());
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
}

/// Masks that group tokens, without their groups: as they are inside any_of() and its like.
inline void add_sparse(MaskRows& rows, const Setting& s) {
  const auto add = [&](const auto& grouped) {
    rows.push_back({grouped[0].name + ", not grouped", erased_mask(grouped[0].mod), grouped[0].meaning});
  };
  add(strided_rows(s));
  add(fixed_rows(s));
  add(dilated_rows(s));
}

inline void add_blocks(MaskRows& rows, const Setting& s) {
  const Index bq = s.random.pick(std::vector<Index>{1, 3, 16, 50}),
              bk = s.random.pick(std::vector<Index>{1, 4, 32, 64});
  const Index qs = (s.sizes.q_len + bq - 1) / bq, ks = (s.sizes.kv_len + bk - 1) / bk;
  const Index batch = s.random.chance(0.5) ? s.sizes.batch : 1, heads = s.random.chance(0.7) ? s.sizes.heads : 1;
  attn::Tensor<bool, 4> map({batch, heads, qs, ks});
  for (Index i = 0; i < map.size(); ++i) map.data()[i] = s.random.chance(0.4);
  add_mask(rows, "block_sparse " + std::to_string(bq) + " x " + std::to_string(bk),
           attn::block_sparse(attn::Tensor(map), bq, bk), [=](const Pair& p) {
             return map(batch == 1 ? 0 : p.batch, heads == 1 ? 0 : p.head, p.row / bq, p.kv / bk);
           });
}

/// Spans that all batch elements share, and spans for each.
inline void add_spans(MaskRows& rows, const Setting& s) {
  using Spans = std::vector<attn::Range>;
  const auto draw = [&] {
    Spans spans;
    for (Index at = s.random.integer(0, 5); at < s.sizes.kv_len; at = spans.back().end + s.random.integer(0, 9))
      spans.push_back({at, at + s.random.integer(0, 12)});
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
  add_mask(rows, "bidirectional_spans of each", attn::bidirectional_spans(each),
           [=](const Pair& p) { return keeps(each[static_cast<std::size_t>(p.batch)], p); });
}

/// The blocks that top_k_blocks() should choose, in long double.
class ChosenBlocks {
 public:
  ChosenBlocks(const Setting& s, const attn::TopKBlocks& c, const attn::Tensor<float, 4>& q,
               const attn::Tensor<float, 4>& k)
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
    Index before = 0;  // how many come before this block
    for (Index b = 0; b < blocks_; ++b)
      if (b != block && !is_later(b))
        before += is_own(b) || scores[static_cast<std::size_t>(b)] > scores[static_cast<std::size_t>(block)];
    return before < c_.count;
  }
  Real score(const attn::Tensor<float, 4>& q, const attn::Tensor<float, 4>& k, Index b, Index head, Index row,
             Index block) const {
    const Index group = s_.heads / s_.kv_heads, kv_head = head / group;
    Real sum = 0;
    for (Index h = 0; h < s_.heads; ++h) {
      if (c_.heads_together ? h / group != kv_head : h != head) continue;
      for (Index d = 0; d < q.dim(3); ++d)
        sum += mean(q, b, h, row, c_.block_q, s_.q_len, d) * mean(k, b, kv_head, block, c_.block_kv, s_.kv_len, d);
    }
    return sum;
  }
  static Real mean(const attn::Tensor<float, 4>& t, Index b, Index h, Index block, Index size, Index len, Index d) {
    Real sum = 0;
    const Index end = std::min((block + 1) * size, len);
    for (Index i = block * size; i < end; ++i) sum += t(b, h, i, d);
    return sum / static_cast<Real>(end - block * size);
  }

  Sizes s_;
  attn::TopKBlocks c_;
  Index rows_, blocks_;
  std::vector<bool> kept_;  ///< of (batch, heads, rows of blocks, blocks)
};

inline void add_chosen_blocks(MaskRows& rows, const Setting& s) {
  constexpr Index kDim = 3;  // the call's own head_dim may be large
  const auto draw = [&](Index heads, Index len) {
    attn::Tensor<float, 4> t({s.sizes.batch, heads, len, kDim});
    for (Index i = 0; i < t.size(); ++i) t.data()[i] = static_cast<float>(s.random.uniform(-1, 1));
    return t;
  };
  const auto q = draw(s.sizes.heads, s.sizes.q_len), k = draw(s.sizes.kv_heads, s.sizes.kv_len);
  attn::TopKBlocks c{.count = s.random.integer(0, 4),
                     .block_q = s.random.pick(std::vector<Index>{1, 5, 16}),
                     .block_kv = s.random.pick(std::vector<Index>{3, 8, 32}),
                     .causal = s.random.chance(0.6),
                     .heads_together = s.random.chance(0.5),
                     .q_offset = s.first()};
  add_mask(rows, "top_k_blocks " + std::to_string(c.block_q) + " x " + std::to_string(c.block_kv),
           attn::top_k_blocks(q, k, c), [blocks = ChosenBlocks(s, c, q, k)](const Pair& p) { return blocks.keeps(p); });
}

inline void add_global(MaskRows& rows, const Setting& s) {
  std::vector<Index> positions;
  for (Index i = s.random.integer(0, 4); i > 0; --i) positions.push_back(s.random.integer(0, s.sizes.kv_len));
  const std::set<Index> global(positions.begin(), positions.end());
  add_mask(rows, "global_tokens" + list(positions), attn::global_tokens(positions),
           [=](const Pair& p) { return global.count(p.q) + global.count(p.kv) > 0; });
}

inline void add_tree(MaskRows& rows, const Setting& s) {
  if (s.sizes.q_len > s.sizes.kv_len) return;
  std::vector<Index> parents;
  for (Index i = 0; i < s.sizes.q_len; ++i) parents.push_back(s.random.integer(std::max<Index>(i - 5, -1), i - 1));
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
  add_mask(rows, "all_of(causal, not_(window))", attn::all_of(attn::causal(), attn::not_(attn::sliding_window(window))),
           [=](const Pair& p) { return p.q - p.kv > window; });
  const auto lengths = draw_lengths(s, s.sizes.kv_len);
  add_mask(
      rows, "any_of(causal | lambda, lengths)",
      attn::any_of(attn::causal() | attn::mask_mod([](auto p) { return p.kv % 3 != 1; }), attn::key_lengths(lengths)),
      [=](const Pair& p) {
        return (p.kv <= p.q && p.kv % 3 != 1) || p.kv < lengths[static_cast<std::size_t>(p.batch)];
      });
  attn::Tensor<bool, 3> map({s.sizes.heads, 1, s.sizes.kv_len});
  for (Index i = 0; i < map.size(); ++i) map.data()[i] = s.random.chance(0.3);
  add_mask(rows, "any_of(keys of heads, lengths)",
           attn::any_of(attn::block_sparse(attn::Tensor(map), std::max<Index>(s.sizes.q_len, 1), 1),
                        attn::key_lengths(lengths)),
           [=](const Pair& p) { return map(p.head, 0, p.kv) || p.kv < lengths[static_cast<std::size_t>(p.batch)]; });
}

inline void add_block_masks(MaskRows& rows, const Setting& s) {
  const attn::Options options{.q_offset = s.first()};
  const auto diagonal = [](const attn::Position& p) { return p.kv <= p.q + 2 && (p.kv / 20 != p.q / 30); };
  add_mask(rows, "block_mask(lambda)",
           attn::block_mask(attn::mask_mod(diagonal), s.sizes.q_len, s.sizes.kv_len, options),
           [](const Pair& p) { return p.kv < p.q + 3 && p.kv / 20 != p.q / 30; });
  add_mask(rows, "block_mask(lambda of heads)",
           attn::block_mask(attn::mask_mod([](auto p) { return p.kv >= (p.batch + p.head + 1) % 3 * 20; }),
                            s.sizes.q_len, s.sizes.kv_len, options, s.sizes.batch, s.sizes.heads),
           [](const Pair& p) {
             const Index sum = p.batch + p.head;
             return sum % 3 == 2 || p.kv >= (sum % 3 == 1 ? 40 : 20);
           });
}

/// All masks that the setting allows.
inline MaskRows mask_table(const Setting& s) {
  MaskRows rows;
  add_lengths(rows, s);
  add_padding(rows, s);
  add_key_ranges(rows, s);
  add_documents(rows, s);
  add_sparse(rows, s);
  add_blocks(rows, s);
  add_spans(rows, s);
  add_chosen_blocks(rows, s);
  add_global(rows, s);
  add_tree(rows, s);
  add_logic(rows, s);
  add_block_masks(rows, s);
  return rows;
}

}  // namespace attn::test
