// PagedKvCache, through random histories of forking and truncating, and pages in the caller's memory.
#pragma once

#include <map>

#include "cache_call.h"

namespace fuzz {

/// A PagedKvCache through a random history of forking and truncating.
template <class T, class Q, bool kListed = false>
class PagedHistory {
 public:
  explicit PagedHistory(Case& c) : c_(c), r_(c.random), plan_(random_cache(c)), cache_(config()) {
    c.text << " pages " << cache_.pages() << 'x' << cache_.config().page_size << (sizeof(T) == 1 ? " int8 " : " ");
  }

  void run() {
    for (Index step = r_.from(2, 12); step > 0; --step) {
      const Index what = r_.from(0, 9);
      if (what < 2 || tokens_.empty()) {
        const Index added = cache_.add();
        c_.text << " add" << added;
        tokens_[added];
      } else if (what < 6) {
        append();
      } else if (what < 8) {
        const Index from = pick(), length = r_.from(0, cache_.length(from));
        const bool whole = r_.percent(50);
        const Index forked = whole ? cache_.fork(from) : cache_.fork(from, length);
        c_.text << " fork" << from << "as" << forked;
        tokens_[forked] = tokens_[from];
        if (!whole) tokens_[forked].resize(static_cast<std::size_t>(length));
      } else if (what < 9) {
        const Index of = pick(), length = r_.from(0, cache_.length(of));
        c_.text << " truncate" << of << "to" << length;
        cache_.truncate(of, length);
        tokens_[of].resize(static_cast<std::size_t>(length));
      } else {
        const Index gone = pick();
        c_.text << " release" << gone;
        cache_.release(gone);
        tokens_.erase(gone);
      }
    }
    attend();
    std::vector<Index> all;
    for (const auto& [sequence, own] : tokens_) all.push_back(sequence);
    for (Index sequence : all) cache_.release(sequence);
    if (cache_.free_pages() != cache_.pages())
      fail(cache_.free_pages(), " of ", cache_.pages(), " pages are free at the end");
  }

 private:
  attn::PagedKvCacheConfig config() {
    attn::PagedKvCacheConfig config;
    config.pages = r_.from(1, 40);
    config.page_size = r_.of<Index>({1, 3, 16, 17, 32, 64, 64, 128});
    config.kv_heads = plan_.kv_heads, config.head_dim = plan_.head_dim, config.v_dim = plan_.v_dim,
    config.rope = plan_.rope;
    return config;
  }
  Index pick() {
    auto at = tokens_.begin();
    std::advance(at, r_.from(0, static_cast<Index>(tokens_.size()) - 1));
    return at->first;
  }

  void append() {
    std::vector<Index> sequences, lens;
    for (const auto& [sequence, own] : tokens_)
      if (r_.percent(60)) sequences.push_back(sequence);
    const bool is_ragged = r_.percent(50);
    const Index common = r_.percent(40) ? 1 : r_.length(150);
    Index sum = 0;
    for (std::size_t i = 0; i < sequences.size(); ++i)
      sum += lens.emplace_back(is_ragged ? r_.from(0, common) : common);
    c_.text << " append" << listed(lens) << "to" << listed(sequences);
    const Appended<float> more(c_, plan_, is_ragged ? 1 : static_cast<Index>(sequences.size()),
                               is_ragged ? sum : common);
    const Index free = cache_.free_pages();
    try {
      if (is_ragged)
        cache_.append(sequences, more.k.input(), more.v.input(), lens);
      else
        cache_.append(sequences, more.k.input(), more.v.input());
    } catch (const attn::OutOfPages& e) {
      c_.text << "(no pages)";
      if (e.free() != free || e.needed() <= free || cache_.free_pages() != free)
        fail("OutOfPages: ", e.needed(), " needed, ", e.free(), " free; there were ", free, ", now ",
             cache_.free_pages());
      return;
    }
    Index row = 0;
    for (std::size_t i = 0; i < sequences.size(); ++i) {
      more.append_to(tokens_[sequences[i]], is_ragged ? 0 : static_cast<Index>(i), is_ragged ? row : 0, lens[i]);
      row += lens[i];
    }
  }

  void attend() {
    std::vector<Index> sequences;
    for (const auto& [sequence, own] : tokens_)
      if (r_.percent(70)) sequences.push_back(sequence);
    for (std::size_t i = sequences.size(); i > 1; --i)
      std::swap(sequences[i - 1], sequences[static_cast<std::size_t>(r_.from(0, static_cast<Index>(i) - 1))]);
    std::vector<Sequence<double>> all;
    const Index size = cache_.config().page_size;
    for (Index sequence : sequences) {
      const Tokens& own = tokens_[sequence];
      if (cache_.length(sequence) != static_cast<Index>(own.size()))
        fail("sequence ", sequence, " has ", cache_.length(sequence), " tokens");
      const auto table = cache_.table(sequence);
      const auto page = [&](Index j) { return table[static_cast<std::size_t>(j / size)]; };
      const auto scale = [&](bool value, Index h, Index j) -> double {
        if constexpr (sizeof(T) == 1)
          return value ? cache_.value_scales()(page(j), h, j % size) : cache_.key_scales()(page(j), h, j % size);
        return 1;
      };
      const auto number = [&](bool value, Index h, Index j, Index x) {
        const T& n =
            value ? cache_.value_pages()(page(j), h, j % size, x) : cache_.key_pages()(page(j), h, j % size, x);
        return scale(value, h, j) * static_cast<double>(static_cast<float>(n));
      };
      read_back<T>(plan_, own, number, scale, all.emplace_back());
    }
    c_.text << " of" << listed(sequences);
    attend_to<Q, kListed>(c_, plan_, cache_.view(sequences), std::move(all));
  }

  Case& c_;
  Random& r_;
  CachePlan plan_;
  attn::PagedKvCache<T> cache_;
  std::map<Index, Tokens> tokens_;
};

/// Pages with any strides in guarded memory, with the caller's page tables.
template <class X, bool kListed = false>
void own_pages(Case& c) {
  Random& r = c.random;
  CachePlan plan = random_cache(c);
  plan.rope.reset();
  const Index count = r.from(1, 12), size = r.of<Index>({1, 5, 16, 48, 64, 65, 128}), batch = r.from(1, 4),
              most = r.percent(15) ? r.from(5, 30) : r.from(1, 4);
  Guard4<X> k(r, {count, plan.kv_heads, size, plan.head_dim}, Role::input),
      v(r, {count, plan.kv_heads, size, plan.v_dim}, Role::input);
  k.fill([&](Index, Index, Index, Index) { return r.normal(); });
  v.fill([&](Index, Index, Index, Index) { return r.normal(); });
  k.finish(), v.finish();
  Tensor<int, 2> tables({batch, most});
  std::vector<Index> lens;
  std::vector<Sequence<double>> all;
  for (Index b = 0; b < batch; ++b) {
    for (Index i = 0; i < most; ++i) tables(b, i) = static_cast<int>(r.from(0, count - 1));
    lens.push_back(r.from(0, most * size));
    for (Index i = 0; i < most; ++i)
      if (i * size >= lens.back()) tables(b, i) = -1;
    Sequence<double>& s = all.emplace_back();
    const auto read = [&](const Guard4<X>& t, std::vector<double>& to) {
      for (Index h = 0; h < plan.kv_heads; ++h)
        for (Index j = 0; j < lens.back(); ++j)
          for (Index x = 0; x < t.shape()[3]; ++x)
            to.push_back(static_cast<double>(static_cast<float>(t.view()(tables(b, j / size), h, j % size, x))));
    };
    read(k, s.k), read(v, s.v);
  }
  c.text << " pages " << count << 'x' << size << ' ' << name_of<X>() << " lens" << listed(lens);
  attend_to<float, kListed>(c, plan, attn::KvView<float>(k.input(), v.input(), tables, lens), std::move(all));
}

}  // namespace fuzz
