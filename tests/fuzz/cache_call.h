// Common parts of calls over caches and pages: the appended tokens, and the call that attends to them.
#pragma once

#include <optional>
#include <vector>

#include "tensor_call.h"

namespace fuzz {

/// A token's keys and values as appended, with all heads concatenated.
struct Token {
  std::vector<double> k, v;
};
using Tokens = std::vector<Token>;

/// The sizes and the rope of a cache.
struct CachePlan {
  Index kv_heads, heads, head_dim, v_dim;
  std::optional<attn::Rope> rope;
};
CachePlan random_cache(Case& c);

/// Rotates the features of one head by the definition; `largest` receives the magnitudes to which errors are relative.
void turn(const attn::Rope& rope, Index position, double* x, double* largest);

/// Returns an element as stored in the cache, after checking that it differs from the appended one only by rounding: to
/// T, and in the rotation (relative to `size`).
template <class T>
double checked_number(double is, double expected, double size, double scale) {
  double allowed = 4 * static_cast<double>(std::numeric_limits<float>::epsilon()) * size;
  if constexpr (std::is_same_v<T, std::int8_t>)
    allowed += 0.5001 * scale;
  else
    allowed += Rounding<T>::relative * std::abs(expected) + Rounding<T>::absolute;
  if (!(std::abs(is - expected) <= allowed)) fail("the cache holds ", is, " instead of ", expected);
  return is;
}

/// Random tokens to append, each tensor in its own memory: (batch, kv_heads, tokens, dim).
template <class X>
struct Appended {
  Guard4<X> k, v;

  Appended(Case& c, const CachePlan& plan, Index batch, Index tokens)
      : k(c.random, {batch, plan.kv_heads, tokens, plan.head_dim}, Role::input),
        v(c.random, {batch, plan.kv_heads, tokens, plan.v_dim}, Role::input) {
    k.fill([&](Index, Index, Index, Index) { return c.random.normal(); });
    v.fill([&](Index, Index, Index, Index) { return c.random.normal(); });
    k.finish(), v.finish();
  }
  Token token(Index batch, Index row) const {
    Token t;
    for (Index h = 0; h < k.shape()[1]; ++h) {
      for (Index x = 0; x < k.shape()[3]; ++x)
        t.k.push_back(static_cast<double>(static_cast<Computed<X>>(k.view()(batch, h, row, x))));
      for (Index x = 0; x < v.shape()[3]; ++x)
        t.v.push_back(static_cast<double>(static_cast<Computed<X>>(v.view()(batch, h, row, x))));
    }
    return t;
  }
  void append_to(Tokens& tokens, Index batch, Index first, Index count) const {
    for (Index i = 0; i < count; ++i) tokens.push_back(token(batch, first + i));
  }
};

/// Reads keys and values of a sequence back with number(is_value, head, token, x) and scale(is_value, head, token), and
/// checks them against the appended tokens.
template <class T, class Number, class Scale>
void read_back(const CachePlan& plan, const Tokens& tokens, const Number& number, const Scale& scale,
               Sequence<double>& s) {
  const Index d = plan.head_dim, e = plan.v_dim, m = static_cast<Index>(tokens.size());
  std::vector<double> x, size;
  for (Index h = 0; h < plan.kv_heads; ++h)
    for (Index j = 0; j < m; ++j) {
      const Token& t = tokens[static_cast<std::size_t>(j)];
      x.assign(t.k.begin() + h * d, t.k.begin() + (h + 1) * d);
      size.resize(x.size());
      for (std::size_t i = 0; i < x.size(); ++i) size[i] = plan.rope ? std::abs(x[i]) : 0;
      if (plan.rope) turn(*plan.rope, j, x.data(), size.data());
      for (Index i = 0; i < d; ++i)
        s.k.push_back(checked_number<T>(number(false, h, j, i), x[static_cast<std::size_t>(i)],
                                        size[static_cast<std::size_t>(i)], scale(false, h, j)));
      for (Index i = 0; i < e; ++i)
        s.v.push_back(
            checked_number<T>(number(true, h, j, i), t.v[static_cast<std::size_t>(h * e + i)], 0, scale(true, h, j)));
    }
}

/// Attends to sequences: `cache` is a cache or a batch of sequences, `all` contains their keys and values. kListed: to
/// listed keys of them.
template <class Q, bool kListed = false, class Cache>
void attend_to(Case& c, const CachePlan& plan, const Cache& cache, std::vector<Sequence<double>> all) {
  Random& r = c.random;
  const Index batch = static_cast<Index>(all.size());
  const bool is_ragged = batch == 0 || r.percent(50);
  std::vector<Index> lens;
  Index total = 0;
  const Index common = r.percent(50) ? 1 : r.from(0, 70);
  for (Index b = 0; b < batch; ++b) {
    lens.push_back(!is_ragged ? common : r.percent(50) ? 1 : r.length(130));
    total += lens.back();
  }
  Guard4<Q> q(r, {is_ragged ? 1 : batch, plan.heads, is_ragged ? total : common, plan.head_dim}, Role::input);
  q.fill([&](Index, Index, Index, Index) { return r.normal(); });
  q.finish();
  c.text << (is_ragged ? " ragged" : " queries") << listed(lens);
  attn::Options options = c.options();
  const Wide scale = c.draw_scale(options, plan.head_dim);
  std::vector<Index> offsets;
  if (r.percent(10)) {
    options.q_offset = r.from(-5, 100);
  } else if (r.percent(10)) {
    for (Index b = 0; b < batch; ++b) offsets.push_back(r.from(-5, 100));
    options.q_offsets = offsets;
    c.text << " offsets" << listed(offsets);
  }

  Sizes sizes{plan.heads, plan.kv_heads, plan.head_dim, plan.v_dim, {}, plan.rope.has_value()};
  Index first = 0;
  for (Index b = 0; b < batch; ++b) {
    Sequence<double>& s = all[static_cast<std::size_t>(b)];
    const Index n = lens[static_cast<std::size_t>(b)],
                m = static_cast<Index>(s.k.size()) / (plan.kv_heads * plan.head_dim);
    s.batch = b, s.heads = plan.heads, s.kv_heads = plan.kv_heads, s.head_dim = plan.head_dim, s.v_dim = plan.v_dim;
    s.lens = {n, m, offsets.empty() ? options.q_offset.value_or(m - n) : offsets[static_cast<std::size_t>(b)]},
    s.scale = scale;
    for (Index h = 0; h < plan.heads; ++h)
      for (Index i = 0; i < n; ++i) {
        std::vector<double> x, size;
        for (Index d = 0; d < plan.head_dim; ++d) {
          x.push_back(
              static_cast<double>(static_cast<float>(q.view()(is_ragged ? 0 : b, h, is_ragged ? first + i : i, d))));
          size.push_back(std::abs(x.back()));
        }
        if (plan.rope) turn(*plan.rope, s.lens.q_offset + i, x.data(), size.data());
        s.q.insert(s.q.end(), x.begin(), x.end());
        for (double most : size)
          if (plan.rope) s.q_error.push_back(4 * static_cast<double>(std::numeric_limits<float>::epsilon()) * most);
      }
    sizes.each.push_back(s.lens);
    first += n;
  }

  const auto call = [&](const auto& mods, const Meanings& meanings) {
    for (const Meaning& m : meanings) c.text << " | " << m.text;
    Guard4<Q> out(r, {q.shape()[0], plan.heads, q.shape()[2], plan.v_dim}, Role::output);
    Guard4<float> lse_memory(r, {q.shape()[0], plan.heads, q.shape()[2], 1}, Role::output);
    const auto& l = lse_memory.view();
    const TensorView<float, 3> lse(l.data(), {l.dim(0), l.dim(1), l.dim(2)}, {l.stride(0), l.stride(1), l.stride(2)});
    Precision precision = flash_precision_of<float>();
    const auto with = [&](const auto& query) {
      const Guarded memory =
          workspace(c, options, [&](const auto& o) { return attn::workspace_bytes(query, cache, mods, o); });
      // Products of some sequences of a batch may be computed in bf16, and those of others not.
      if (std::is_same_v<Q, Eigen::bfloat16> && *options.isa >= attn::Isa::avx512_bf16) {
        precision.multiply_in_bf16();
        if (plan.rope) precision.scores = 0x1.01p-8;  // rotated queries are rounded once more
      }
      // Products of weights and scales are 24-bit integers, relative to the largest of them.
      if (cache.view().choose_dots() &&
          (*options.isa == attn::Isa::avx2_vnni || *options.isa >= attn::Isa::avx512_vnni))
        precision.values = 0x1p-22;
      ++c.calls;
      attn::attention_into(out.view(), lse, query, cache, mods, options);
    };
    if (is_ragged)
      with(attn::ragged(q.input(), lens));
    else
      with(q.input());
    out.check_gaps("out"), lse_memory.check_gaps("lse");
    Index at = 0;
    for (const Sequence<double>& s : all) {
      const auto rows = [&](const auto& t) {
        auto shape = t.shape();
        shape[0] = 1, shape[2] = s.lens.q_len;
        const Index offset = is_ragged ? at * t.stride(2) : s.batch * t.stride(0);
        return packed<double>(t.part(t.size() == 0 ? 0 : offset, shape, t.strides()));
      };
      Results<double> results{rows(out.view()), rows(lse), {}};
      results.out_relative = Rounding<Q>::relative, results.out_absolute = Rounding<Q>::absolute;
      judge(c, s, meanings, precision, results, "cached");
      at += s.lens.q_len;
    }
  };
  if constexpr (kListed) {
    with_listed_mods(c, sizes, call);
  } else {
    if (r.percent(30)) return call(attn::Mods<>(), {});
    with_all_mods(c, sizes, call);
  }
}

}  // namespace fuzz
