// Workloads and variants of the decoding benchmark: all kinds of caches, Eigen products, one call per sequence.
#pragma once

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include <attn/attn.h>

#include "random_tensor.h"
#include "read.h"

namespace bench {

using attn::Index;

/// Sequences of given lengths; the last q_lens[i] tokens of sequence i are new.
struct Work {
  std::string name;
  Index heads, kv_heads, dim;
  std::vector<Index> lengths, q_lens;

  Index tokens() const { return sum(lengths); }
  Index queries() const { return sum(q_lens); }
  static Index sum(const std::vector<Index>& of) {
    Index all = 0;
    for (Index n : of) all += n;
    return all;
  }
};

/// `batch` sequences of `length` tokens, the last of which is new.
inline Work decode(Index batch, Index heads, Index kv_heads, Index dim, Index length) {
  const auto n = static_cast<std::size_t>(batch);
  return {"B=" + std::to_string(batch) + " H=" + std::to_string(heads) + "/" + std::to_string(kv_heads) +
              " D=" + std::to_string(dim) + " M=" + std::to_string(length),
          heads,
          kv_heads,
          dim,
          std::vector<Index>(n, length),
          std::vector<Index>(n, 1)};
}

/// Queries, keys and values of a workload, its sequences packed back to back.
struct DecodeInputs {
  explicit DecodeInputs(const Work& w)
      : q(random_tensor({1, w.heads, w.queries(), w.dim}, 1)),
        k(random_tensor({1, w.kv_heads, w.tokens(), w.dim}, 2)),
        v(random_tensor({1, w.kv_heads, w.tokens(), w.dim}, 3)) {}
  attn::Tensor<float, 4> q, k, v;
};

/// One variant of a workload.
struct Variant {
  std::string name;
  std::function<void()> call;
  const attn::Tensor<float, 4>* out;  ///< null if there is no result to compare
  Memory memory;                      ///< all that must be read
};

/// A KvCache of T, and the variant that uses it. Must outlive that Variant.
template <class T>
struct Contiguous {
  Contiguous(const Work& w, const DecodeInputs& n, const attn::Options& o)
      : cache({.batch = static_cast<Index>(w.lengths.size()),
               .kv_heads = w.kv_heads,
               .capacity = *std::max_element(w.lengths.begin(), w.lengths.end()),
               .head_dim = w.dim}),
        q(n.q),
        lens(w.q_lens),
        options(o),
        out({1, w.heads, w.queries(), w.dim}) {
    cache.append(n.k, n.v, w.lengths);
  }
  Variant variant(const std::string& name) {
    std::vector<Bytes> read;
    for (Index s = 0; s < cache.config().batch; ++s)
      for (const auto& view : {cache.keys(s), cache.values(s)})
        for (Index h = 0; h < view.dim(1); ++h)
          if (view.dim(2) > 0) read.push_back(bytes_of(&view(0, h, 0, 0), view.dim(2) * view.dim(3)));
    for (const auto& scales : {cache.key_scales(), cache.value_scales()})
      for (Index s = 0; s < scales.dim(0); ++s)
        for (Index h = 0; h < scales.dim(1); ++h)
          if (cache.length(s) > 0) read.push_back(bytes_of(&scales(s, h, 0), cache.length(s)));
    return {name, [this] { attn::attention_into(out, attn::ragged(q, lens), cache, attn::causal(), options); }, &out,
            read};
  }
  attn::KvCache<T> cache;
  const attn::Tensor<float, 4>& q;
  std::vector<Index> lens;
  attn::Options options;
  attn::Tensor<float, 4> out;
};

/// A PagedKvCache, and the variant that uses it. Must outlive that Variant.
struct Paged {
  Paged(const Work& w, const DecodeInputs& n, Index page_size, const attn::Options& o)
      : cache({.pages = pages_for(w, page_size), .page_size = page_size, .kv_heads = w.kv_heads, .head_dim = w.dim}),
        q(n.q),
        lens(w.q_lens),
        options(o),
        out({1, w.heads, w.queries(), w.dim}) {
    for (std::size_t s = 0; s < w.lengths.size(); ++s) ids.push_back(cache.add());
    // Appends one page to each sequence in turn, as when all grow together, so that the pages of a sequence are not
    // contiguous.
    std::vector<Index> lengths(ids.size(), 0), first(ids.size(), 0);
    for (std::size_t s = 1; s < ids.size(); ++s) first[s] = first[s - 1] + w.lengths[s - 1];
    for (bool more = true; more;) {
      more = false;
      for (std::size_t s = 0; s < ids.size(); ++s) {
        const Index some = std::min(page_size, w.lengths[s] - lengths[s]);
        if (some == 0) continue;
        const auto part = [&](const attn::Tensor<float, 4>& t) {
          return t.view().part((first[s] + lengths[s]) * w.dim, {1, w.kv_heads, some, w.dim}, t.view().strides());
        };
        cache.append(ids[s], part(n.k), part(n.v));
        lengths[s] += some;
        more = true;
      }
    }
  }
  Variant variant(const std::string& name) {
    std::vector<Bytes> read;
    for (Index id : ids)
      for (Index h = 0; h < cache.config().kv_heads; ++h)
        for (const auto& pages : {cache.key_pages(), cache.value_pages()}) {
          Index left = cache.length(id);
          for (Index page : cache.table(id)) {
            const Index tokens = std::min(left, pages.dim(2));
            read.push_back(bytes_of(&pages(page, h, 0, 0), tokens * pages.dim(3)));
            left -= tokens;
          }
        }
    return {name,
            [this] { attn::attention_into(out, attn::ragged(q, lens), cache.view(ids), attn::causal(), options); },
            &out, read};
  }
  static Index pages_for(const Work& w, Index page_size) {
    Index pages = 0;
    for (Index n : w.lengths) pages += (n + page_size - 1) / page_size;
    return pages;
  }

  attn::PagedKvCache<float> cache;
  std::vector<Index> ids;
  const attn::Tensor<float, 4>& q;
  std::vector<Index> lens;
  attn::Options options;
  attn::Tensor<float, 4> out;
};

/// Tensors stored as (batch, len, heads, dim), for workloads with one sequence.
struct ByToken {
  ByToken(const Work& w, const DecodeInputs& n, const attn::Options& o)
      : k(by_token(n.k)), v(by_token(n.v)), q(n.q), options(o), out({1, w.heads, w.queries(), w.dim}) {}
  Variant variant(const std::string& name) {
    return {name, [this] { attn::attention_into(out, q, heads_of(k), heads_of(v), attn::Mods<>(), options); }, &out,
            Memory({bytes_of(k.data(), k.size()), bytes_of(v.data(), v.size())})};
  }
  static attn::Tensor<float, 4> by_token(const attn::Tensor<float, 4>& t) {
    attn::Tensor<float, 4> to({1, t.dim(2), t.dim(1), t.dim(3)});
    for (Index j = 0; j < t.dim(2); ++j)
      for (Index h = 0; h < t.dim(1); ++h) std::copy_n(&t(0, h, j, 0), t.dim(3), &to(0, j, h, 0));
    return to;
  }
  static attn::TensorView<const float, 4> heads_of(const attn::Tensor<float, 4>& t) {
    return attn::bshd(t.data(), t.dim(0), t.dim(1), t.dim(2), t.dim(3));
  }
  attn::Tensor<float, 4> k, v;
  const attn::Tensor<float, 4>& q;
  attn::Options options;
  attn::Tensor<float, 4> out;
};

/// Eigen products over the same cache, for workloads with one sequence and one query.
struct Naive {
  Naive(const Work& w, const attn::KvCache<float>& c, const DecodeInputs& n, const attn::Options& o)
      : cache(c), q(n.q), options(o), out({1, w.heads, w.queries(), w.dim}) {}
  Variant variant() {
    return {"naive",
            [this] { attn::naive_attention_into(out, q, cache.keys(0), cache.values(0), attn::Mods<>(), options); },
            &out, Memory()};
  }
  const attn::KvCache<float>& cache;
  const attn::Tensor<float, 4>& q;
  attn::Options options;
  attn::Tensor<float, 4> out;
};

/// One call per sequence.
struct OneByOne {
  OneByOne(const Work& w, const attn::KvCache<float>& c, const DecodeInputs& n, const attn::Options& o)
      : cache(c), q(n.q), lens(w.q_lens), options(o), out({1, w.heads, w.queries(), w.dim}) {}
  Variant variant() {
    return {"a call for each sequence",
            [this] {
              Index first = 0;
              for (std::size_t s = 0; s < lens.size(); ++s) {
                const auto part = [&](auto view) {
                  return view.part(first * view.dim(3), {1, view.dim(1), lens[s], view.dim(3)}, view.strides());
                };
                const auto sequence = static_cast<Index>(s);
                attn::attention_into(part(out.view()), part(q.view()), cache.keys(sequence), cache.values(sequence),
                                     attn::causal(), options);
                first += lens[s];
              }
            },
            &out, Memory()};
  }
  const attn::KvCache<float>& cache;
  const attn::Tensor<float, 4>& q;
  std::vector<Index> lens;
  attn::Options options;
  attn::Tensor<float, 4> out;
};

}  // namespace bench
