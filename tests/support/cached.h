// Attention over caches for tests: type-erased mods, and caches whose unused memory is poisoned.
#pragma once

#include "erased_rows.h"
#include "ragged_call.h"

namespace attn::test {

/// A mod for attention over sequences, and its meaning.
template <class T>
struct CachedRow {
  using Run = void(RaggedMemory<T>&, const std::vector<Index>& q_lens, const KvView<Wide<T>>&, const Options&);

  std::string name;
  Meaning meaning;
  std::function<Run> run;

  template <class M>
  explicit(false) CachedRow(const Row<M>& row)
      : name(row.name),
        meaning(row.meaning),
        run([mod = row.mod](RaggedMemory<T>& memory, const std::vector<Index>& q_lens, const KvView<Wide<T>>& batch,
                            const Options& options) {
          const TensorView<const T, 4> q = memory.q.cview();
          attention_into(memory.out.view(), memory.lse3(), ragged(q, q_lens), batch, mod, options);
        }) {}
};

/// A cache of S with some sequences. Their pages are interleaved, and all unused memory is NaN.
template <class S>
class PoisonedCache {
 public:
  /// page_size 0: a KvCache.
  PoisonedCache(const std::vector<Tokens>& tokens, Index page_size, const std::optional<Rope>& rope = std::nullopt) {
    const TokenSizes& s = tokens[0].sizes();
    const Index count = static_cast<Index>(tokens.size());
    const double nan = std::numeric_limits<double>::quiet_NaN();
    if (page_size == 0) {
      one_piece_.emplace(KvCacheConfig{.batch = count,
                                       .kv_heads = s.kv_heads,
                                       .capacity = 70,
                                       .head_dim = s.head_dim,
                                       .v_dim = s.v_dim,
                                       .rope = rope});
      Index longest = 0;
      for (const Tokens& t : tokens) longest = std::max(longest, t.size());
      one_piece_->reserve(longest / 2);
      Appended<Given<S>> poison(std::vector(tokens.size(), Tokens::filled(s, one_piece_->capacity(), nan)));
      one_piece_->append(poison.k(), poison.v());
      one_piece_->clear();
    } else {
      Index pages = 1;
      for (const Tokens& t : tokens) pages += (t.size() + page_size - 1) / page_size;
      pages_.emplace(PagedKvCacheConfig{.pages = pages,
                                        .page_size = page_size,
                                        .kv_heads = s.kv_heads,
                                        .head_dim = s.head_dim,
                                        .v_dim = s.v_dim,
                                        .rope = rope});
      Appended<Given<S>> poison(Tokens::filled(s, pages * page_size, nan));
      const Index all = pages_->add();
      pages_->append(all, poison.k(), poison.v());
      pages_->release(all);
      for (Index i = 0; i < count; ++i) ids_.push_back(pages_->add());
    }
    constexpr Index kPiece = 37;
    for (Index begin = 0, more = 1; more > 0; begin += kPiece) {
      std::vector<Tokens> pieces;
      std::vector<Index> lens;
      more = 0;
      for (const Tokens& t : tokens) {
        pieces.push_back(t.part(std::min(begin, t.size()), std::min(begin + kPiece, t.size())));
        lens.push_back(pieces.back().size());
        more += lens.back();
      }
      Appended<Given<S>> given(concatenated(pieces));
      if (one_piece_)
        one_piece_->append(given.k(), given.v(), lens);
      else
        pages_->append(ids_, given.k(), given.v(), lens);
    }
  }

  KvView<typename KvCache<S>::Computed> view() const { return one_piece_ ? one_piece_->view() : pages_->view(ids_); }
  /// The tokens of a sequence as stored: 8-bit or rotated ones differ slightly from those appended.
  Tokens tokens(Index sequence) const {
    return one_piece_ ? tokens_of(*one_piece_, sequence) : tokens_of(*pages_, ids_[static_cast<std::size_t>(sequence)]);
  }
  const std::vector<Index>& ids() const { return ids_; }
  PagedKvCache<S>& pages() { return *pages_; }
  KvCache<S>& one_piece() { return *one_piece_; }

 private:
  std::optional<KvCache<S>> one_piece_;
  std::optional<PagedKvCache<S>> pages_;
  std::vector<Index> ids_;
};

/// A single type for any combination of masks, scores and sinks.
using AnyMod = decltype(erased_score(softcap(1)) | erased_mask(full()) | sinks({}));

/// Mods for sequences of these lengths, each with its meaning. Some of them distinguish the sequences.
template <class T>
class RaggedRows {
 public:
  std::vector<CachedRow<T>> rows;

  RaggedRows(const std::vector<Index>& lengths, Index heads, Random& random) : heads_(heads) {
    std::vector<Index> prefix, kept;
    for (Index length : lengths) {
      prefix.push_back(random.integer(0, length));
      kept.push_back(random.integer(length / 2, length));
    }
    std::vector<double> slopes, logits;
    for (Index h = 0; h < heads; ++h) {
      slopes.push_back(random.uniform(0.01, 0.5));
      logits.push_back(random.uniform(-2, 2));
    }
    const auto of = [](const auto& list, Index i) { return list[static_cast<std::size_t>(i)]; };
    const auto is_causal = [](const Pair& p) { return p.kv <= p.q; };
    const auto capped = [](Real x, const Pair&) { return 5 * std::tanh(x / 5); };
    const auto sloped = [=](Real x, const Pair& p) {
      return x - Real(of(slopes, p.head)) * static_cast<Real>(p.q - p.kv);
    };
    rows.push_back(Row<Mods<>>{"none", {}, {}});
    add("causal", full_score(), causal(), {is_causal, {}, {}});
    add("sliding_window(70, 2)", full_score(), sliding_window(70, 2),
        {[](const Pair& p) { return p.kv >= p.q - 70 && p.kv <= p.q + 2; }, {}, {}});
    add("prefix_lm", full_score(), prefix_lm(prefix),
        {[=](const Pair& p) { return p.kv <= p.q || p.kv < of(prefix, p.batch); }, {}, {}});
    add("key_lengths | softcap", softcap(5), key_lengths(kept),
        {[=](const Pair& p) { return p.kv < of(kept, p.batch); }, capped, {}});
    add("alibi | causal", alibi(slopes), causal(), {is_causal, sloped, {}});
    add("a lambda that depends on the sequence", score_mod([](auto x, auto p) {
          using X = decltype(x);
          return x - X(0.25) * static_cast<X>(p.batch % 3) * static_cast<X>(p.kv % 2);
        }),
        mask_mod([](auto p) { return (p.kv + p.batch) % 3 != 0; }),
        {[](const Pair& p) { return (p.batch + p.kv) % 3 > 0; },
         [](Real x, const Pair& p) { return p.kv % 2 == 0 ? x : x - Real(p.batch % 3) / 4; },
         {}});
    rows.push_back(Row<AnyMod>{"alibi | softcap | causal | sinks",
                               erased_score(alibi(slopes) | softcap(5)) | erased_mask(causal()) | sinks(logits),
                               {is_causal, [=](Real x, const Pair& p) { return capped(sloped(x, p), p); },
                                [=](Index head) { return Real(of(logits, head)); }}});
    rows.push_back(Row<decltype(erased_grouped(strided_sparse(7)))>{
        "strided_sparse(7)",
        erased_grouped(strided_sparse(7)),
        {[](const Pair& p) { return p.kv <= p.q && (p.q - p.kv <= 7 || (p.q - p.kv) % 7 == 0); }, {}, {}}});
  }

 private:
  static auto full_score() {
    return score_mod([](auto x, auto) { return x; });
  }
  template <class Score, class Mask>
  void add(const char* name, const Score& score, const Mask& mask, const Meaning& meaning) {
    const std::vector<double> none(static_cast<std::size_t>(heads_), -std::numeric_limits<double>::infinity());
    rows.push_back(Row<AnyMod>{name, erased_score(score) | erased_mask(mask) | sinks(none), meaning});
  }

  Index heads_;
};

}  // namespace attn::test
