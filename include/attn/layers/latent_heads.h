// The configuration and the named parameters of multi-head latent attention, its heads, unfolded and absorbed, and
// their results.
#pragma once

#include <algorithm>
#include <cmath>
#include <span>
#include <utility>
#include <vector>

#include "attn/latent_config.h"
#include "attn/layers/multi_head_inputs.h"
#include "attn/layers/multi_head_results.h"

namespace attn::detail::inline ATTN_BUILT_FOR {

inline const MultiHeadOptions& layer_options(const MultiHeadOptions& options) { return options; }
inline MultiHeadOptions layer_options(const Options& options) { return {.attention = options}; }

/// The configuration of a LatentAttention with its defaults filled in, and all its parameters.
template <class T>
class LatentParameters {
 public:
  /// @throws std::invalid_argument for invalid sizes.
  explicit LatentParameters(const LatentAttentionConfig& config) : config_(resolved(config)) {
    const LatentAttentionConfig& c = config_;
    if (c.q_rank > 0) {
      add("q_a_proj.weight", c.q_rank, c.embed_dim);
      named_.add_vector("q_a_layernorm.weight", c.q_rank, 1);
      add("q_b_proj.weight", c.heads * qk_dim(), c.q_rank);
    } else {
      add("q_proj.weight", c.heads * qk_dim(), c.embed_dim);
    }
    add("kv_a_proj_with_mqa.weight", row(), c.embed_dim);
    named_.add_vector("kv_a_layernorm.weight", c.latent.rank, 1);
    add("kv_b_proj.weight", c.heads * kv_dim(), c.latent.rank);
    add("o_proj.weight", c.embed_dim, c.heads * c.v_head_dim);
  }

  const LatentAttentionConfig& config() const { return config_; }
  Parameters<T>& named() { return named_; }
  const Parameters<T>& named() const { return named_; }

  Index row() const { return config_.latent.rank + config_.latent.rope_dim; }  ///< features of a latent row
  Index qk_dim() const { return config_.nope_dim + config_.latent.rope_dim; }  ///< of a head of query and key
  Index kv_dim() const { return config_.nope_dim + config_.v_head_dim; }       ///< of a head of kv_b_proj
  const char* q_name() const { return config_.q_rank > 0 ? "q_b_proj.weight" : "q_proj.weight"; }

  /// A projection of tokens.
  Linear<T> linear(const char* name) const {
    const auto weight = named_.weight(name);
    return {weight.data(), nullptr, weight.dim(1), weight.dim(0)};
  }
  /// The part of a head in kv_b_proj: W_uk (nope_dim, rank), followed by W_uv (v_head_dim, rank).
  const T* kv_b(Index head) const {
    return named_.weight("kv_b_proj.weight").data() + head * kv_dim() * config_.latent.rank;
  }
  HeadNorm<T> norm(const char* name) const {
    const auto weight = named_.bias(name);
    return {weight, weight.dim(0), config_.norm_eps};
  }

  /// The sizes of the heads in the unfolded form.
  MultiHeadConfig unfolded() const {
    const LatentAttentionConfig& c = config_;
    return {.embed_dim = c.embed_dim,
            .heads = c.heads,
            .kv_heads = c.heads,
            .head_dim = qk_dim(),
            .v_head_dim = c.v_head_dim};
  }
  /// Returns options with the layer's scale, unless they have their own.
  MultiHeadOptions scaled(MultiHeadOptions options) const {
    if (!options.attention.scale)
      options.attention.scale = config_.scale_factor / std::sqrt(static_cast<double>(qk_dim()));
    return options;
  }

 private:
  static LatentAttentionConfig resolved(LatentAttentionConfig c) {
    if (c.v_head_dim == 0) c.v_head_dim = c.nope_dim;
    const Index least = std::min({c.embed_dim, c.heads, c.latent.rank, c.nope_dim, c.v_head_dim});
    require(least > 0 && c.q_rank >= 0 && c.latent.rope_dim >= 0, "LatentAttention: embed_dim ", c.embed_dim,
            ", heads ", c.heads, ", latent.rank ", c.latent.rank, ", nope_dim ", c.nope_dim, " and v_head_dim ",
            c.v_head_dim, " must be positive, and q_rank ", c.q_rank, " and latent.rope_dim ", c.latent.rope_dim,
            " at least 0");
    const Index most = kLargestIndex / c.heads / 2;
    require(std::max({c.embed_dim, c.q_rank, c.latent.rank, c.latent.rope_dim, c.nope_dim, c.v_head_dim}) <= most,
            "LatentAttention: with ", c.heads, " heads, sizes must be at most ", most, ", but embed_dim is ",
            c.embed_dim, ", q_rank ", c.q_rank, ", latent ", c.latent.rank, " + ", c.latent.rope_dim, ", nope_dim ",
            c.nope_dim, " and v_head_dim ", c.v_head_dim);
    require(!c.rope || c.rope->config().head_dim == c.latent.rope_dim, "LatentAttention: the head_dim of the rope is ",
            c.rope ? c.rope->config().head_dim : 0, ", but latent.rope_dim is ", c.latent.rope_dim);
    require(std::isfinite(c.scale_factor) && c.scale_factor > 0 && std::isfinite(c.norm_eps) && c.norm_eps >= 0,
            "LatentAttention: scale_factor ", c.scale_factor, " must be positive, and norm_eps ", c.norm_eps,
            " not negative");
    return c;
  }
  /// Adds a weight with the initial values of PyTorch's Linear; see MultiHeadParameters.
  void add(const char* name, Index outputs, Index inputs) {
    named_.add_weight(name, outputs, inputs, 1 / std::sqrt(static_cast<double>(inputs)), config_.seed);
  }

  LatentAttentionConfig config_;
  Parameters<T> named_;
};

/// A cache of latent rows that a layer can append to.
template <class Cache>
concept LatentStore = KvSource<Cache> && requires(Cache& cache, const TensorView<const float, 4>& rows) {
  cache.append_latent(rows, Indices(std::vector<Index>()));
};

/// Returns y = x * weightᵀ for tokens x (batch, len, inputs), of which `first` is the first element.
template <class T>
Tensor<T, 3> mapped(const Linear<T>& map, const T* first, Index batch, Index len, const Options& options) {
  auto y = Tensor<T, 3>::uninitialized({batch, len, map.outputs});
  map(first, y.data(), batch * len, options);
  return y;
}

/// Returns the features `part` of each of `heads` heads in tokens (batch, len, heads * dim), as (batch, heads, len,
/// features).
template <class T>
TensorView<T, 4> features_of(Tensor<T, 3>& tokens, Index heads, const Range& part) {
  T* const first = tokens.data() ? tokens.data() + part.begin : nullptr;
  return heads_in(first, tokens.dim(0), tokens.dim(1), tokens.dim(2), heads, tokens.dim(2) / heads, part.size());
}

/// What the projections of tokens give: the queries (batch, len, heads * (nope_dim + rope_dim)), and the latent rows
/// (batch, len, rank + rope_dim), both before the rotation.
template <class T>
struct LatentHeads {
  Tensor<T, 3> query, rows;

  LatentHeads(const LatentParameters<T>& layer, const TensorView<const T, 3>& x, const Options& options)
      : layer_(layer) {
    const WithoutGaps<T> tokens(x);
    const auto map = [&](const char* name, const T* from) {
      return mapped(layer.linear(name), from, x.dim(0), x.dim(1), options);
    };
    if (const Index rank = layer.config().q_rank; rank > 0) {
      Tensor<T, 3> low = map("q_a_proj.weight", tokens.data());
      layer.norm("q_a_layernorm.weight").apply(features_of(low, 1, {0, rank}), options.executor);
      query = map(layer.q_name(), low.data());
    } else {
      query = map(layer.q_name(), tokens.data());
    }
    rows = map("kv_a_proj_with_mqa.weight", tokens.data());
    layer.norm("kv_a_layernorm.weight").apply(features_of(rows, 1, {0, layer.config().latent.rank}), options.executor);
  }

  TensorView<T, 4> queries() { return features_of(query, layer_.config().heads, {0, layer_.qk_dim()}); }
  TensorView<T, 4> query_to_rotate() {
    return features_of(query, layer_.config().heads, {layer_.config().nope_dim, layer_.qk_dim()});
  }
  TensorView<T, 4> key_to_rotate() { return features_of(rows, 1, {layer_.config().latent.rank, layer_.row()}); }

 private:
  const LatentParameters<T>& layer_;
};

/// The keys and values of all heads of latent rows (pages, tokens, rank + rope_dim). A key is a head's part of the
/// latent vector's projection, followed by the rotated features, which all heads share (DeepSeek-V2, equations 10, 15
/// and 16); a value is the rest of the projection (11).
template <class T>
struct UnfoldedRows {
  Tensor<T, 3> projected, keys;  // (pages, tokens, heads * dim)
  TensorView<T, 4> key, value;   // (pages, heads, tokens, dim)

  UnfoldedRows(const LatentParameters<T>& layer, const Tensor<T, 3>& rows, const Options& options) {
    const LatentAttentionConfig& c = layer.config();
    const Linear<T> up = layer.linear("kv_b_proj.weight");
    projected = Tensor<T, 3>::uninitialized({rows.dim(0), rows.dim(1), up.outputs});
    up({reinterpret_cast<const std::byte*>(rows.data()), dtype_of<T>, layer.row(), 1}, projected.data(),
       rows.dim(0) * rows.dim(1), options);
    keys = Tensor<T, 3>::uninitialized({rows.dim(0), rows.dim(1), c.heads * layer.qk_dim()});
    key = features_of(keys, c.heads, {0, layer.qk_dim()});
    value = features_of(projected, c.heads, {c.nope_dim, layer.kv_dim()});
    for_each_token_block(key, options.executor, [&](const TensorView<T, 4>& to, Index page, Index begin) {
      for (Index i = 0; i < to.dim(2); ++i)
        for (Index h = 0; h < c.heads; ++h) {
          std::copy_n(&projected(page, begin + i, h * layer.kv_dim()), c.nope_dim, &to(0, h, i, 0));
          std::copy_n(&rows(page, begin + i, 0) + c.latent.rank, c.latent.rope_dim, &to(0, h, i, 0) + c.nope_dim);
        }
    });
  }
};

/// LatentAttention without a cache, for checked types.
template <class T, class M>
HeadResults<T> latent_attended(const LatentParameters<T>& layer, const TensorView<const T, 3>& x, const M& mods,
                               const MultiHeadOptions& given) {
  check_features("x", x, layer.config().embed_dim, "embed_dim");
  const MultiHeadOptions options = layer.scaled(given);
  LatentHeads<T> heads(layer, x, options.attention);
  const auto& rope = layer.config().rope;
  if (rope)
    rotate_heads(heads.query_to_rotate(), heads.key_to_rotate(), sizes_of(Inputs<T>{x, x, x}, options.attention),
                 options.attention.executor,
                 [&](const TensorView<T, 4>& tokens, Index first) { rope->rotate(tokens, first); });
  const UnfoldedRows<T> kv(layer, heads.rows, options.attention);
  return attended_heads(heads.queries(), kv.key, kv.value, ExtraKeys<T>(), rope.has_value(), mods, options);
}

/// Whether attention over cached rows takes fewer multiply-adds in the absorbed form. Per head, let q be the number of
/// queries of a sequence and n that of its rows. Absorbing maps q queries by W_uk and q results by W_uv, with scores of
/// rank + rope_dim features and values of rank; unfolding maps n rows by both, with scores and values of a head:
///
///     absorbed:  q * rank * (nope_dim + v_head_dim) + q * n * (2 * rank + rope_dim)
///     unfolded:  n * rank * (nope_dim + v_head_dim) + q * n * (nope_dim + rope_dim + v_head_dim)
///
/// With DeepSeek-V3's sizes, up to 170 queries over many rows are absorbed, and a prompt without earlier rows is
/// unfolded. Masks are not considered, since they drop the same pairs from both.
template <class T, class X, class Number>
bool absorbs(const LatentParameters<T>& layer, const X& x, const Shape<4>& shape, const KvView<Number>& rows) {
  const LatentAttentionConfig& c = layer.config();
  const auto map = static_cast<double>(c.latent.rank * layer.kv_dim()),
             pair = static_cast<double>(2 * c.latent.rank - layer.kv_dim());
  double more = 0;  // multiply-adds of the absorbed form, minus those of the unfolded form
  QueryRows<X>::for_each(x, shape, rows.size(), [&](Index sequence, Index, const Range& queries) {
    const auto q = static_cast<double>(queries.size()), n = static_cast<double>(rows.length(sequence));
    more += (q - n) * map + q * n * pair;
  });
  return more < 0;
}

/// Calls use(head, options of a task) for each head, as tasks of `flops` in total.
template <class Use>
void for_each_latent_head(Index heads, double flops, const Options& options, const Use& use) {
  Options of_task = options;
  of_task.executor = serial();
  Workers({flops}, options.executor).run(heads, [&](Index head, int) { use(head, of_task); });
}

/// Absorbed queries (batch, len, heads * (rank + rope_dim)): those of a head times W_uk, followed by the rotated
/// features. Rows of W_uk are added up as single queries add up values, so that W_uk is read in place.
template <class T>
Tensor<T, 3> absorbed_queries(const LatentParameters<T>& layer, const Tensor<T, 3>& query, const Options& options) {
  using Number = computed_t<T>;
  constexpr Index kTogether = 16;
  const LatentAttentionConfig& c = layer.config();
  const Index rank = c.latent.rank, tokens = query.dim(0) * query.dim(1), from_row = query.dim(2);
  auto absorbed = Tensor<T, 3>::uninitialized({query.dim(0), query.dim(1), c.heads * layer.row()});
  const KernelFamily<Number>& family = kernel_family<Number, dtype_of<T> != DType::native>(vectors_of(isa_of(options)));
  const double flops = 2.0 * static_cast<double>(tokens * c.heads) * static_cast<double>(c.nope_dim * rank);
  for_each_latent_head(c.heads, flops, options, [&](Index h, const Options&) {
    auto weights = Tensor<Number, 2>::uninitialized({kTogether, c.nope_dim}),
         out = Tensor<Number, 2>::uninitialized({kTogether, rank});
    Array<Number, kTogether> rescale = {};
    TileMemory<Number> m{};
    m.scores = weights.data(), m.row = c.nope_dim, m.out = out.data(), m.rescale = rescale;
    for (Index first = 0; first < tokens; first += kTogether) {
      const Index count = std::min(kTogether, tokens - first);
      const T* const from = query.data() + first * from_row + h * layer.qk_dim();
      T* const to = absorbed.data() + first * c.heads * layer.row() + h * layer.row();
      family.pack_rows({reinterpret_cast<const std::byte*>(from), dtype_of<T>, from_row, 1}, count, c.nope_dim,
                       m.scores);
      std::fill_n(m.out, count * rank, Number(0));  // rescale multiplies it
      Prefetcher nothing;
      family.decode.value_of(dtype_of<T>)(m, count,
                                          {reinterpret_cast<const std::byte*>(layer.kv_b(h)), dtype_of<T>, rank, 1},
                                          c.nope_dim, rank, nothing);
      family.unpack_rows(m.out, count, rank, {reinterpret_cast<std::byte*>(to), dtype_of<T>, c.heads * layer.row(), 1});
      for (Index i = 0; i < count; ++i)
        std::copy_n(from + i * from_row + c.nope_dim, c.latent.rope_dim, to + i * c.heads * layer.row() + rank);
    }
  });
  return absorbed;
}

/// Attention of rotated queries over cached rows, with queries multiplied by W_uk and results by W_uv in place of the
/// rows (DeepSeek-V2, section 2.1.2).
template <class T, class X, class M>
HeadResults<T> attended_absorbed(const LatentParameters<T>& layer, const X& x, const Tensor<T, 3>& query,
                                 const KvView<computed_t<T>>& rows, const M& mods, const MultiHeadOptions& options) {
  const LatentAttentionConfig& c = layer.config();
  Tensor<T, 3> absorbed = absorbed_queries(layer, query, options.attention);
  HeadResults<T> r =
      attended_sequences(x, features_of(absorbed, c.heads, {0, layer.row()}), ExtraKeys<T>(), rows, mods, options);
  const Index rank = c.latent.rank, tokens = query.dim(0) * query.dim(1), joined_dim = c.heads * c.v_head_dim;
  auto joined = Tensor<T, 3>::uninitialized({query.dim(0), query.dim(1), joined_dim});
  const double flops = 2.0 * static_cast<double>(tokens * joined_dim) * static_cast<double>(rank);
  for_each_latent_head(c.heads, flops, options.attention, [&](Index h, const Options& of_task) {
    const Linear<T> up{layer.kv_b(h) + c.nope_dim * rank, nullptr, rank, c.v_head_dim, joined_dim};
    up({reinterpret_cast<const std::byte*>(r.joined.data() + h * rank), dtype_of<T>, c.heads * rank, 1},
       joined.data() + h * c.v_head_dim, tokens, of_task);
  });
  r.joined = std::move(joined);
  return r;
}

/// Attention of rotated queries over the keys and values of cached rows, which are unfolded page by page.
template <class T, class X, class M>
HeadResults<T> attended_unfolded(const LatentParameters<T>& layer, const X& x, const TensorView<T, 4>& queries,
                                 const KvView<computed_t<T>>& rows, const M& mods, const MultiHeadOptions& options) {
  using Number = computed_t<T>;
  constexpr Index kPage = kKeyTile;
  struct Page {
    Index sequence, begin, end;
  };
  std::vector<Page> pages;
  for (Index s = 0; s < rows.size(); ++s)
    for (Index begin = 0; begin < rows.length(s); begin += kPage)
      pages.push_back({s, begin, std::min(begin + kPage, rows.length(s))});
  const Index row = layer.row(), count = static_cast<Index>(pages.size());
  Tensor<T, 3> copies({count, kPage, row});
  const KernelFamily<Number>& family = rows.kernels_with_halves().choose(options.attention, Bf16Products::none).family;
  Workers({kFlopsToMove * static_cast<double>(copies.size())}, options.attention.executor)
      .run(count, [&](Index i, int) {
        const auto [sequence, begin, end] = pages[static_cast<std::size_t>(i)];
        auto numbers = Tensor<Number, 2>::uninitialized({kPage, row});
        pack_kv(family, rows.keys(sequence), 0, 0, {begin, end}, numbers.data());
        family.unpack_rows(numbers.data(), end - begin, row,
                           {reinterpret_cast<std::byte*>(&copies(i, 0, 0)), dtype_of<T>, row, 1});
      });
  const UnfoldedRows<T> kv(layer, copies, options.attention);
  KvView<Number> own(DTypeView<const Number>(kv.key), DTypeView<const Number>(kv.value), nullptr,
                     kKernelChoice<Number, dtype_of<T> != DType::native>);
  std::vector<Index> table;
  for (Index s = 0, next = 0; s < rows.size(); ++s) {
    table.clear();
    for (Index i = 0; i < rows.length(s); i += kPage) table.push_back(next++);
    own.add(table, rows.length(s), {}, rows.offset(s));
  }
  return attended_sequences(x, queries, ExtraKeys<T>(), own, mods, options);
}

/// The positions by which the tokens x are rotated: those after the rows of their sequence; for a tree(), plus depth.
template <class X, class Number>
std::vector<Index> next_positions(const X& x, const Shape<4>& shape, std::span<const Index> depths,
                                  const KvView<Number>& rows) {
  std::vector<Index> positions;
  const Index nodes = static_cast<Index>(depths.size());
  QueryRows<X>::for_each(x, shape, rows.size(), [&](Index s, Index, const Range& tokens) {
    const Index first = rows.positions(s)(rows.length(s));
    for (Index i = 0; i < tokens.size(); ++i)  // clamped because tree() rejects a wrong number of tokens only later
      positions.push_back(first + (nodes == 0 ? i : depths[static_cast<std::size_t>(std::min(i, nodes - 1))]));
  });
  return positions;
}

/// Appends the latent rows of tokens x to a cache, and computes attention over it. If it throws, the cache is as it was
/// before, except that tokens may have left a window.
template <class T, class X, class Cache, class M>
HeadResults<T> latent_attended_over(const LatentParameters<T>& layer, const X& x, const TensorView<const T, 3>& tokens,
                                    Cache& cache, const M& mods, const MultiHeadOptions& given) {
  const LatentAttentionConfig& c = layer.config();
  const MultiHeadOptions options = layer.scaled(given);
  check_features("x", tokens, c.embed_dim, "embed_dim");
  require(!options.heads, "a call over latent rows has no heads of keys and values; leave out MultiHeadOptions::heads");
  const KvView<computed_t<T>> before = cache.view();
  require(before.head_dim() == layer.row() && before.v_dim() == c.latent.rank, "the cache has keys of ",
          before.head_dim(), " and values of ", before.v_dim(), " features, but the layer has latent rows of ",
          c.latent.rank, " + ", c.latent.rope_dim, "; make_caches() returns caches that fit");
  const Shape<4> shape{tokens.dim(0), c.heads, tokens.dim(1), layer.qk_dim()};
  QueryRows<X>::check(x, shape, before.size());
  AppendUndo undo(cache);  // first, because its constructor slides windows
  LatentHeads<T> heads(layer, tokens, options.attention);
  if (c.rope) {
    const std::vector<Index> positions = next_positions(x, shape, tree_depths(mods), cache.view());
    for (const TensorView<T, 4>& part : {heads.query_to_rotate(), heads.key_to_rotate()})
      for_each_token_block(part, options.attention.executor, [&](const TensorView<T, 4>& some, Index b, Index begin) {
        const auto first = static_cast<std::size_t>(b * tokens.dim(1) + begin);
        c.rope->rotate(some, std::span(positions).subspan(first, static_cast<std::size_t>(some.dim(2))));
      });
  }
  const TensorView<T, 4> rows = features_of(heads.rows, 1, {0, layer.row()});
  if constexpr (requires { x.lens; })
    cache.append_latent(rows, x.lens);
  else
    cache.append_latent(rows);
  const KvView<computed_t<T>> all = cache.view();
  // With row_invariant, a result must not depend on the number of tokens, and equals that of a call without a cache.
  const bool absorbed = !options.attention.row_invariant && absorbs(layer, x, shape, all);
  HeadResults<T> r = absorbed ? attended_absorbed(layer, x, heads.query, all, mods, options)
                              : attended_unfolded(layer, x, heads.queries(), all, mods, options);
  undo.keep();
  return r;
}

}  // namespace attn::detail::inline ATTN_BUILT_FOR
