// MultiHeadAttention: projections, heads and output projection, with the error bounds propagated from step to step.
#include "families.h"
#include "tensor_call.h"

namespace fuzz {
namespace {

template <class R>
struct WithError {
  using Matrix = typename Expected<R>::Matrix;
  Matrix is, error;
};

/// Computes x * Wᵀ + b, with one row of W per output.
template <class T, class R>
WithError<R> projected(const WithError<R>& x, const typename Expected<R>::Matrix& w, const std::vector<R>& bias) {
  const R eps = std::numeric_limits<Computed<T>>::epsilon();
  WithError<R> y;
  y.is = x.is * w.transpose();
  y.error = (eps * (2 + std::sqrt(static_cast<R>(w.cols())))) * (x.is.cwiseAbs() * w.cwiseAbs().transpose()) +
            x.error * w.cwiseAbs().transpose();
  for (Index i = 0; i < y.is.rows(); ++i)
    for (Index j = 0; j < y.is.cols(); ++j) {
      if (!bias.empty()) y.is(i, j) += bias[static_cast<std::size_t>(j)];
      y.error(i, j) += (2 * eps + static_cast<R>(Rounding<T>::relative)) * std::abs(y.is(i, j)) +
                       static_cast<R>(Rounding<T>::absolute);
    }
  return y;
}

template <class T>
void layer(Case& c, double most) {
  using R = Exact<T>;
  using Matrix = typename Expected<R>::Matrix;
  Random& r = c.random;
  Sizes s;
  s.kv_heads = r.of<Index>({1, 2, 3});
  s.heads = s.kv_heads * r.of<Index>({1, 1, 2, 4});
  s.head_dim = s.v_dim = r.of<Index>({1, 2, 3, 5, 8, 16, 20, 32});
  Lens l{r.length(100), r.length(100), 0};
  const bool same = r.percent(50);  // self-attention: all inputs are the same object
  if (same) l.kv_len = l.q_len;
  const Index batch = r.from(1, 2), embed = s.heads * s.head_dim;
  while (static_cast<double>(batch * s.heads * l.q_len) * static_cast<double>(l.kv_len * s.head_dim) > most)
    l.q_len = l.q_len / 2 + 1, l.kv_len = same ? l.q_len : l.kv_len / 2;
  l.q_offset = l.kv_len - l.q_len;
  s.each.assign(static_cast<std::size_t>(batch), l);
  attn::MultiHeadConfig config;
  config.embed_dim = embed, config.heads = s.heads, config.kv_heads = s.kv_heads, config.bias = r.percent(70),
  config.seed = r.bits();
  const bool other_dims = !same && r.percent(40);
  if (other_dims) config.key_dim = r.from(1, 40), config.value_dim = r.from(1, 40);
  attn::MultiHeadAttention<T> mha(config);
  if (config.bias)
    for (const char* name : {"in_proj_bias", "out_proj.bias"})
      for (Index i = 0; i < mha.bias(name).dim(0); ++i) mha.bias(name)(i) = number<T>(r.normal());
  c.text << ' ' << name_of<T>() << " E=" << embed << " H=" << s.heads << '/' << s.kv_heads << " B=" << batch
         << " N=" << l.q_len << " M=" << l.kv_len << (same ? " self" : "") << " dims=" << mha.config().key_dim << ','
         << mha.config().value_dim;

  const auto input = [&](Index len, Index dim) {
    Guard4<T> x(r, {1, batch, len, dim}, Role::input);
    x.fill([&](Index, Index, Index, Index) { return r.normal(); });
    x.finish();
    return x;
  };
  const Guard4<T> x = input(l.q_len, embed), y = input(l.kv_len, mha.config().key_dim),
                  z = input(l.kv_len, mha.config().value_dim);
  const auto rank3 = [](const Guard4<T>& g) {
    const auto& t = g.view();
    return TensorView<const T, 3>(t.data(), {t.dim(1), t.dim(2), t.dim(3)}, {t.stride(1), t.stride(2), t.stride(3)});
  };
  attn::MultiHeadOptions options;
  options.attention = c.options();
  options.weights = r.percent(10);
  const bool naive = options.weights || r.percent(10);
  if (naive) options.path = attn::Path::naive;

  // Rows of a parameter, by its name.
  const auto rows = [&](const char* name, Index first, Index count) {
    const auto w = std::as_const(mha).weight(name);
    Matrix m(count, w.dim(1));
    for (Index i = 0; i < count; ++i)
      for (Index j = 0; j < w.dim(1); ++j) m(i, j) = static_cast<R>(static_cast<Computed<T>>(w(first + i, j)));
    return m;
  };
  const auto biases = [&](const char* name, Index first, Index count) {
    std::vector<R> b;
    for (Index i = 0; config.bias && i < count; ++i)
      b.push_back(static_cast<R>(static_cast<Computed<T>>(std::as_const(mha).bias(name)(first + i))));
    return b;
  };
  const Index kv_embed = s.kv_heads * s.head_dim;
  const bool is_packed = mha.config().key_dim == embed && mha.config().value_dim == embed;
  const auto weight = [&](int i) {
    const Index first = i == 0 ? 0 : i == 1 ? embed : embed + kv_embed, count = i == 0 ? embed : kv_embed;
    constexpr const char* kNames[] = {"q_proj_weight", "k_proj_weight", "v_proj_weight"};
    return std::pair(is_packed ? rows("in_proj_weight", first, count) : rows(kNames[i], 0, count),
                     biases("in_proj_bias", first, count));
  };
  const auto call = [&](const auto& mods, const Meanings& meanings) {
    for (const Meaning& m : meanings) c.text << " | " << m.text;
    const auto result =
        same ? mha(rank3(x), rank3(x), rank3(x), mods, options) : mha(rank3(x), rank3(y), rank3(z), mods, options);
    ++c.calls;
    Precision precision = naive ? naive_precision<T>() : flash_precision_of<Computed<T>>();
    // Only the layer knows whether products of the heads are computed in bf16.
    if (!naive && *options.attention.isa >= attn::Isa::avx512_bf16 && std::is_same_v<T, Eigen::bfloat16>)
      precision.multiply_in_bf16();
    for (Index b = 0; b < batch; ++b) {
      Sequence<R> one{
          b,  s.heads, s.kv_heads, s.head_dim, s.v_dim, l, c.oracle_scale(1 / std::sqrt(static_cast<Wide>(s.head_dim))),
          {}, {},      {}};
      const auto head_rows = [&](const Guard4<T>& g, int which, Index heads, std::vector<R>& is,
                                 std::vector<R>& error) {
        const auto& t = g.view();
        WithError<R> in{Matrix(t.dim(2), t.dim(3)), Matrix::Zero(t.dim(2), t.dim(3))};
        for (Index i = 0; i < t.dim(2); ++i)
          for (Index j = 0; j < t.dim(3); ++j) in.is(i, j) = static_cast<R>(static_cast<Computed<T>>(t(0, b, i, j)));
        const auto w = weight(which);
        const WithError<R> p = projected<T>(in, w.first, w.second);
        for (Index h = 0; h < heads; ++h)
          for (Index i = 0; i < p.is.rows(); ++i)
            for (Index d = 0; d < s.head_dim; ++d)
              is.push_back(p.is(i, h * s.head_dim + d)), error.push_back(p.error(i, h * s.head_dim + d));
      };
      head_rows(x, 0, s.heads, one.q, one.q_error);
      head_rows(same ? x : y, 1, s.kv_heads, one.k, one.k_error);
      head_rows(same ? x : z, 2, s.kv_heads, one.v, one.v_error);
      WithError<R> heads{Matrix(l.q_len, embed), Matrix(l.q_len, embed)};
      for (Index h = 0; h < s.heads; ++h) {
        const Expected<R> e = attend(one, h, meanings, precision);
        heads.is.middleCols(h * s.head_dim, s.head_dim) = e.out;
        heads.error.middleCols(h * s.head_dim, s.head_dim) =
            e.out_error + (static_cast<R>(Rounding<T>::relative) * e.out.cwiseAbs()).eval() +
            Matrix::Constant(l.q_len, s.head_dim, static_cast<R>(Rounding<T>::absolute));
        for (Index i = 0; options.weights && i < l.q_len; ++i)
          for (Index j = 0; j < l.kv_len; ++j)
            judge_number(static_cast<R>(static_cast<Computed<T>>(result.weights(b, h, i, j))), e.weights(i, j),
                         e.weights_error(i, j), Rounding<T>::relative, Rounding<T>::absolute, "layer weights", b, h, i,
                         j);
      }
      const WithError<R> out =
          projected<T>(heads, rows("out_proj.weight", 0, embed), biases("out_proj.bias", 0, embed));
      double share = 0;
      for (Index i = 0; i < l.q_len; ++i)
        for (Index j = 0; j < embed; ++j)
          share = std::max(share, judge_number(static_cast<R>(static_cast<Computed<T>>(result.out(b, i, j))),
                                               out.is(i, j), out.error(i, j), 0.0, 0.0, "layer", b, Index(0), i, j));
      c.used("layer", share);
    }
  };
  if (r.percent(30)) return call(attn::Mods<>(), {});
  with_all_mods(c, s, call);
}

}  // namespace

void multi_head(Case& c) {
  const Index kind = c.random.from(0, 9);
  if (kind < 7) return layer<float>(c, 1e6);
  if (kind < 8) return layer<double>(c, 2e5);
  layer<Eigen::bfloat16>(c, 1e6);
}

}  // namespace fuzz
