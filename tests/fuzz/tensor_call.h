// A call over tensors: random sizes, values and strides, through any entry point, judged by the oracle.
#pragma once

#include <span>
#include <string>
#include <utility>
#include <vector>

#include "judge.h"
#include "random_mods.h"
#include "support/any_mods.h"

namespace fuzz {

/// Random sizes of a call with at most `most` multiplications; most are small.
Sizes random_sizes(Case& c, double most);

/// A random distribution of a call's values.
class ValueDistribution {
 public:
  explicit ValueDistribution(Case& c, bool narrow);
  double q(Random& r) const;
  double k(Random& r, Index j) const;
  double v(Random& r) const;

 private:
  Index kind_;
  double size_, value_, offset_;
};

/// Fills query, key and value, sometimes with NaN and infinities, and forbids writing to them.
template <class Q, class K, class V>
void fill(Case& c, Guard4<Q>& q, Guard4<K>& k, Guard4<V>& v) {
  Random& r = c.random;
  constexpr bool narrow = Rounding<Q>::kNarrow || Rounding<K>::kNarrow || Rounding<V>::kNarrow;
  const ValueDistribution distribution(c, narrow);
  q.fill([&](Index, Index, Index, Index) { return distribution.q(r); });
  k.fill([&](Index, Index, Index j, Index) { return distribution.k(r, j); });
  v.fill([&](Index, Index, Index, Index) { return distribution.v(r); });
  if (r.percent(18)) {
    constexpr double kInf = std::numeric_limits<double>::infinity(), kNan = std::numeric_limits<double>::quiet_NaN();
    const auto poison = [&](const auto& t, double with) {
      if (t.view().size() == 0) return;
      const auto at = [&](int d) { return r.from(0, t.view().dim(d) - 1); };
      for (Index i = r.from(1, 5); i > 0; --i) {
        const Index b = at(0), h = at(1), row = at(2), column = at(3);
        using X = typename std::remove_cvref_t<decltype(t.view())>::Scalar;
        t.view()(b, h, row, column) = number<X>(with);
      }
    };
    const Index whom = r.from(0, 9);
    // An infinite key may give a score of -inf. Whether that drops a pair with a NaN value is specified only for scores
    // that a mod makes -inf.
    const bool values = whom < 7, keys = whom >= 4 && whom < 9, queries = whom == 9;
    const double of_keys = values ? kNan : r.of({kNan, kInf, -kInf}), of_values = r.of({kNan, kInf, -kInf});
    if (keys) poison(k, of_keys);
    if (values) poison(v, of_values);
    if (queries) poison(q, kNan);
    c.text << " poison" << (keys ? " keys" : "") << (values ? " values" : "") << (queries ? " queries" : "");
  }
  q.finish(), k.finish(), v.finish();
}

template <class Q, class K, class V>
std::vector<Sequence<Exact<Q>>> sequences_of(const Sizes& s, Wide scale, const Guard4<Q>& q, const Guard4<K>& k,
                                             const Guard4<V>& v) {
  using R = Exact<Q>;
  std::vector<Sequence<R>> all;
  for (Index b = 0; b < s.batch(); ++b) {
    const auto one = [b](const auto& t) {
      auto shape = t.shape();
      shape[0] = 1;
      return packed<R>(t.part(t.size() == 0 ? 0 : b * t.stride(0), shape, t.strides()));
    };
    all.push_back(
        {b, s.heads, s.kv_heads, s.head_dim, s.v_dim, s.of(b), scale, one(q.input()), one(k.input()), one(v.input())});
  }
  return all;
}

/// The results for batch element b, packed.
template <class R, class T, int Rank>
std::vector<R> of_batch(const TensorView<T, Rank>& t, Index b) {
  auto shape = t.shape();
  shape[0] = 1;
  return packed<R>(t.part(t.size() == 0 ? 0 : b * t.stride(0), shape, t.strides()));
}

/// The precision of a flash call. It is lower if products are computed in bf16: this rounds weights, and also queries,
/// keys and values if bf16 was requested.
template <class Q, class K, class V, class M>
Precision flash_precision(const Q& q, const K& k, const V& v, const M& mods, const attn::Options& options) {
  using T = Computed<typename Q::Scalar>;
  Precision p = flash_precision_of<T>();
  if (*options.isa < attn::Isa::avx512_bf16 || sizeof(T) != sizeof(float)) return p;
  if (!attn::explain(q, k, v, mods, options).in_bf16) return p;
  p.multiply_in_bf16();
  // Two factors are rounded, each with a relative error of up to 2^-8.
  if (options.compute == attn::Compute::bf16) p.scores = 0x1.01p-7, p.values = 0x1p-8;
  return p;
}
/// The naive path rounds weights to the scalar of the query.
template <class Q>
Precision naive_precision() {
  Precision p = precision_of<Computed<Q>>();
  p.weights = Rounding<Q>::relative;
  p.weights_tiny = Rounding<Q>::absolute;
  return p;
}

/// A workspace of exactly the requested size, for some calls.
template <class Bytes>
Guarded workspace(Case& c, attn::Options& options, const Bytes& bytes) {
  if (!c.random.percent(40)) return {};
  const std::size_t size = bytes(options);
  Guarded memory(size, c.random.percent(60), 0xff);
  options.workspace = {memory.data(), size};
  c.text << " workspace=" << size;
  return memory;
}

/// Makes calls with tensors of Q, K, V and results in O.
template <class Q, class K = Q, class V = Q, class O = Q>
class TensorCall {
 public:
  using T = Computed<Q>;
  using R = Exact<Q>;

  explicit TensorCall(Case& c, double most = 2e6)
      : c_(c),
        sizes_(random_sizes(c, most)),
        q_(c.random, {sizes_.batch(), sizes_.heads, len().q_len, sizes_.head_dim}, Role::input),
        k_(c.random, {sizes_.batch(), sizes_.kv_heads, len().kv_len, sizes_.head_dim}, Role::input),
        v_(c.random, {sizes_.batch(), sizes_.kv_heads, len().kv_len, sizes_.v_dim}, Role::input) {
    fill(c, q_, k_, v_);
    c.text << ' ' << name_of<Q>() << ',' << name_of<K>() << ',' << name_of<V>() << "->" << name_of<O>();
    options_ = c.options();
    scale_ = c.draw_scale(options_, sizes_.head_dim);
    if (len().q_offset != len().kv_len - len().q_len || c.random.percent(20)) options_.q_offset = len().q_offset;
    if (sizes_.batch() > 0 && c.random.percent(8)) {
      options_.q_offset.reset();
      std::vector<Index> offsets;
      for (Lens& l : sizes_.each) offsets.push_back(l.q_offset = c.random.from(-20, l.kv_len + 5));
      options_.q_offsets = offsets;
      c.text << " offsets" << listed(offsets);
    }
    if (sizeof(T) == sizeof(float) && c.random.percent(15)) options_.compute = attn::Compute::bf16;
  }

  const Sizes& sizes() const { return sizes_; }

  template <class M>
  void make(const M& mods, const Meanings& meanings) {
    for (const Meaning& m : meanings) c_.text << " | " << m.text;
    const auto q = q_.input();
    const auto k = k_.input();
    const auto v = v_.input();
    const Guarded memory =
        workspace(c_, options_, [&](const auto& o) { return attn::workspace_bytes(q, k, v, mods, o); });
    const Precision precision = flash_precision(q, k, v, mods, options_);
    const Index api = c_.random.from(0, 99);
    ++c_.calls;
    if (api < 50) {
      into(mods, meanings, precision);
    } else if (api < 65) {
      Guard4<O> out = output();
      c_.text << " into without lse";
      attn::attention_into(out.view(), q, k, v, mods, options_);
      out.check_gaps("out");
      judge_all<O>(out.view(), {}, {}, meanings, precision, "flash");
    } else if (api < 85) {
      c_.text << " attention";
      const auto r = attn::attention(q, k, v, mods, options_);
      judge_all<Q>(r.out.view(), r.lse.view(), {}, meanings, precision, "flash");
    } else if (api < 93) {
      c_.text << " naive";
      const auto r = attn::naive_attention(q, k, v, mods, options_);
      judge_all<Q>(r.out.view(), r.lse.view(), r.weights.view(), meanings, naive_precision<Q>(), "naive");
    } else {
      c_.text << " naive into";
      Guard4<O> out = output();
      attn::naive_attention_into(out.view(), q, k, v, mods, options_);
      out.check_gaps("out");
      judge_all<O>(out.view(), {}, {}, meanings, naive_precision<Q>(), "naive");
    }
  }

  /// Calls only the overload of attention_into() with log-sum-exps, so that there are few instantiations per type of
  /// mods.
  template <class M>
  void into(const M& mods, const Meanings& meanings, const Precision& precision) {
    Guard4<O> out = output();
    const Shape<4> rows{sizes_.batch(), sizes_.heads, len().q_len, 1};
    Guard4<T> lse_memory(c_.random, rows, Role::output);
    const auto& l = lse_memory.view();
    const TensorView<T, 3> lse(l.data(), {rows[0], rows[1], rows[2]}, {l.stride(0), l.stride(1), l.stride(2)});
    c_.text << " into";
    if (options_.workspace.size() > 0 && c_.random.percent(10)) check_workspace(out, lse, mods);
    call_into(out.view(), lse, mods, options_);
    out.check_gaps("out");
    lse_memory.check_gaps("lse");
    judge_all<O>(out.view(), lse, {}, meanings, precision, "flash");
    if (!c_.random.percent(10)) return;
    // Other executors give the same bits.
    Tensor<O, 4> again(out.shape());
    Tensor<T, 3> lse_again({rows[0], rows[1], rows[2]});
    attn::Options other = options_;
    other.workspace = {};
    other.executor = c_.random.percent(50) ? attn::serial() : Case::pool(3);
    call_into(again.view(), lse_again.view(), mods, other);
    ++c_.calls;
    const auto differs = [](auto a, auto b) { return !(a == b) && !(a != a && b != b); };
    out.each([&](Index b, Index h, Index i, Index x) {
      if (differs(static_cast<T>(out.view()(b, h, i, x)), static_cast<T>(again(b, h, i, x))))
        fail("out (", b, ", ", h, ", ", i, ", ", x, ") depends on the executor");
      if (x == 0 && differs(lse(b, h, i), lse_again(b, h, i)))
        fail("lse (", b, ", ", h, ", ", i, ") depends on the executor");
    });
  }
  template <class M>
  void into(const M& mods, const Meanings& meanings) {
    for (const Meaning& m : meanings) c_.text << " | " << m.text;
    const auto q = q_.input();
    const auto k = k_.input();
    const auto v = v_.input();
    const Guarded memory = workspace(c_, options_, [&](const auto& o) {
      if constexpr (std::is_same_v<M, attn::test::AnyMods<Q>>)
        return mods.workspace_bytes(q, k, v, o);
      else
        return attn::workspace_bytes(q, k, v, mods, o);
    });
    ++c_.calls;
    if constexpr (std::is_same_v<M, attn::test::AnyMods<Q>>)  // AnyMods never uses products in bf16
      into(mods, meanings, flash_precision(q, k, v, attn::Mods<>(), options_));
    else
      into(mods, meanings, flash_precision(q, k, v, mods, options_));
  }

 private:
  template <class M>
  void call_into(const TensorView<O, 4>& out, const TensorView<T, 3>& lse, const M& mods,
                 const attn::Options& options) {
    if constexpr (std::is_same_v<M, attn::test::AnyMods<Q>>)
      mods.flash(out, lse, q_.input(), k_.input(), v_.input(), options);
    else
      attn::attention_into(out, lse, q_.input(), k_.input(), v_.input(), mods, options);
  }

  /// A workspace one byte too small is refused before anything is written.
  template <class M>
  void check_workspace(const Guard4<O>& out, const TensorView<T, 3>& lse, const M& mods) {
    attn::Options less = options_;
    less.workspace = less.workspace.first(less.workspace.size() - 1);
    try {
      call_into(out.view(), lse, mods, less);
    } catch (const std::invalid_argument&) {
      return;
    }
    fail("a workspace of ", less.workspace.size(), " bytes was accepted, one less than requested");
  }

  Lens len() const { return sizes_.batch() > 0 ? sizes_.each[0] : Lens{3, 5, 2}; }
  Guard4<O> output() { return {c_.random, {sizes_.batch(), sizes_.heads, len().q_len, sizes_.v_dim}, Role::output}; }

  template <class X>
  void judge_all(const TensorView<const X, 4>& out, const TensorView<const T, 3>& lse,
                 const TensorView<const Q, 4>& weights, const Meanings& meanings, const Precision& precision,
                 const char* path) {
    for (const Sequence<R>& s : sequences_of(sizes_, scale_, q_, k_, v_)) {
      Results<R> results{of_batch<R>(out, s.batch), {}, {}};
      if (lse.data()) results.lse = of_batch<R>(lse, s.batch);
      if (weights.data()) results.weights = of_batch<R>(weights, s.batch);
      results.out_relative = Rounding<X>::relative, results.out_absolute = Rounding<X>::absolute;
      judge(c_, s, meanings, precision, results, path);
    }
  }

  Case& c_;
  Sizes sizes_;
  Guard4<Q> q_;
  Guard4<K> k_;
  Guard4<V> v_;
  attn::Options options_;
  Wide scale_ = 1;
};

}  // namespace fuzz
