// A call whose rows of scores are shifted by constants, or whose keys share a common component: every path to its
// results, each judged by the naive path's error in the same scalars.
#pragma once

#include <algorithm>
#include <mutex>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include "shifted_judge.h"

namespace fuzz::shifted {

/// The mods of a call.
enum class Kind { none, lambda, bias, bias_causal, strided, fixed, learned };

template <class Q, class K, class V>
class Call {
 public:
  using T = Computed<Q>;
  static constexpr bool kNarrowQuery = kIsNarrow<Q>;

  Call(Case& c, Report& report, Kind kind)
      : c_(c),
        r_(c.random),
        report_(report),
        kind_(kind),
        decodes_(r_.percent(12)),
        g_(sizes()),
        q_(query_shape(g_.head_dim), r_.percent(30)),
        k_(key_shape(g_.head_dim), r_.percent(30)),
        v_(key_shape(g_.v_dim), r_.percent(30)),
        grad_out_(query_shape(g_.v_dim), r_.percent(30)),
        to_q_(query_shape(g_.head_dim), false),
        to_k_(key_shape(g_.head_dim), false),
        to_v_(key_shape(g_.v_dim), false) {
    report_.scalars = std::is_same_v<Q, K> && std::is_same_v<Q, V> ? name<Q>() : "mixed";
    c.text << ' ' << name<Q>() << ',' << name<K>() << ',' << name<V>();
    options_ = c.options();
    draw_numbers();
    draw_mods();
    correct_ = correct_values(g_, !decodes_);
    // The relative error of exponentials grows as they get smaller (exp(Vec)), which matters where a sink has nearly
    // all the weight.
    const Wide smallest = -std::log(static_cast<Wide>(std::numeric_limits<T>::min()));
    slack_ = (is_exact_ ? 0 : score_unit(g_)) + 0.35L * std::min(correct_.below_sink, smallest);
  }

  void run() {
    switch (kind_) {
      case Kind::none:
        return check(attn::Mods<>());
      case Kind::lambda:
        return check_lambda();
      case Kind::bias:
        return check(attn::bias(constants_.view()));
      case Kind::bias_causal: {
        const auto mods = attn::bias(constants_.view()) | attn::causal();
        check(mods);
        check_parts(mods, mods);
        check_weights(mods);
        check_caches(mods);
        return check_jvp(mods);
      }
      case Kind::strided:
        return check(attn::strided_sparse(stride_) | attn::bias(constants_.view()));
      case Kind::fixed:
        return check(attn::fixed_sparse(stride_, summary_) | attn::bias(constants_.view()));
      case Kind::learned:
        return check_learned();
    }
  }

 private:
  // ---- drawing

  CallValues sizes() {
    CallValues g;
    g.batch = r_.percent(70) ? 1 : 2;
    g.kv_heads = r_.percent(60) ? 1 : 2;
    g.heads = g.kv_heads * (r_.percent(60) ? 1 : r_.from(2, 3));
    g.q_len = decodes_         ? r_.from(1, 3)
              : r_.percent(40) ? r_.from(1, 12)
              : r_.percent(90) ? r_.from(13, 150)
                               : r_.from(151, 300);
    g.kv_len = decodes_         ? r_.from(1, 3000)
               : r_.percent(25) ? r_.from(1, 12)
               : r_.percent(50) ? g.q_len
                                : r_.from(13, 260);
    if (kind_ == Kind::strided || kind_ == Kind::fixed) {  // long enough for a second pass
      decodes_ = false, g.batch = g.heads = g.kv_heads = 1;
      g.q_len = g.kv_len = r_.percent(70) ? r_.from(120, 400) : r_.from(20, 119);
    }
    const auto dim = [&] { return r_.percent(60) ? r_.of<Index>({1, 4, 8, 16, 32, 64}) : r_.from(1, 40); };
    g.head_dim = dim(), g.v_dim = dim();
    const double pairs = static_cast<double>(g.batch * g.heads * g.q_len * g.kv_len);
    while (g.head_dim > 4 && pairs * static_cast<double>(g.head_dim + g.v_dim) > 4e5) g.head_dim /= 2;
    while (g.v_dim > 2 && pairs * static_cast<double>(g.head_dim + g.v_dim) > 4e5) g.v_dim /= 2;
    g.rounded = [](Wide x) { return static_cast<Wide>(static_cast<T>(x)); };
    c_.text << " q(" << g.batch << ',' << g.heads << ',' << g.q_len << ',' << g.head_dim << ") kv(" << g.kv_heads << ','
            << g.kv_len << ',' << g.v_dim << ')';
    return g;
  }
  attn::Shape<4> query_shape(Index dim) const { return {g_.batch, g_.heads, g_.q_len, dim}; }
  attn::Shape<4> key_shape(Index dim) const { return {g_.batch, g_.kv_heads, g_.kv_len, dim}; }

  /// Most queries and keys are multiples of 1/8, so that all scores are exact, and adding the constant rounds them
  /// identically on every path. Others are arbitrary.
  void draw_numbers() {
    is_exact_ = r_.percent(70);
    const Index part = r_.from(0, 99);
    const double common = part < 50 ? 0 : part < 65 ? 4 : part < 85 ? 30 : -30;
    const bool biased = part >= 40 && part < 50;  // some features of all keys, as from a projection's bias
    const double of_values = r_.percent(60) ? 0 : r_.of({1.0, 4.0, 30.0, 100.0});
    if (common != 0) c_.text << " keys+" << common;
    if (biased) c_.text << " keys[:3]+60";
    if (of_values != 0) c_.text << " values+" << of_values;
    if (!is_exact_) c_.text << " any scores";
    has_common_part_ = common != 0 || biased;
    const auto number = [&] {
      const double x = r_.normal();
      return static_cast<Wide>(is_exact_ ? std::round(8 * std::clamp(x, -2.0, 2.0)) / 8 : x);
    };
    g_.q = q_.fill([&](Index, Index, Index) { return number(); });
    g_.k = k_.fill([&](Index, Index, Index c) { return number() + common + (biased && c < 3 ? 60 : 0); });
    g_.v = v_.fill([&](Index, Index, Index) { return r_.normal() + of_values; });
    g_.grad_out = grad_out_.fill([&](Index, Index, Index) { return r_.normal(); });
    const auto normal = [&](Index, Index, Index) { return r_.normal(); };
    g_.to_q = to_q_.fill(normal), g_.to_k = to_k_.fill(normal), g_.to_v = to_v_.fill(normal);
    grad_lse_ = Tensor<T, 3>({g_.batch, g_.heads, g_.q_len});
    if (kind_ != Kind::none && r_.percent(25)) {
      for (Index i = 0; i < grad_lse_.size(); ++i) grad_lse_.data()[i] = static_cast<T>(r_.normal());
      c_.text << " grad_lse";
    }
    g_.grad_lse = elements_of(grad_lse_);
    if (is_exact_) {
      // A power of two near 1/sqrt(head_dim).
      options_.scale = std::exp2(std::round(-std::log2(static_cast<double>(g_.head_dim)) / 2));
      g_.scale = *options_.scale;
    } else {
      g_.scale = 1 / std::sqrt(static_cast<Wide>(g_.head_dim));
    }
    g_.q_offset = g_.kv_len - g_.q_len;
    if (r_.percent(15)) g_.q_offset = r_.from(-4, g_.kv_len + 4), options_.q_offset = g_.q_offset;
  }

  void draw_mods() {
    if (kind_ == Kind::lambda && r_.percent(25)) g_.cap = cap_ = r_.of({5.0, 20.0});
    draw_constants();
    // Capped scores are not exact, nor are scores of arbitrary values.
    g_.added.resize(static_cast<std::size_t>(g_.batch * g_.heads * g_.q_len * g_.kv_len));
    spread_constants();
    if (cap_ != 0) is_exact_ = false;
    if (!is_exact_ && !is_clear(g_, 8 * std::numeric_limits<T>::epsilon())) {
      std::fill(constants_.x.begin(), constants_.x.end(), T(0));
      spread_constants();
      report_.constant = "0";
      c_.text << " c=0 instead";
    }
    stride_ = r_.from(2, 12), summary_ = r_.from(0, std::min<Index>(stride_, 2));
    mask_ = {r_.of({MaskKind::all, MaskKind::causal, MaskKind::window, MaskKind::scattered}), r_.from(0, 40)};
    if (kind_ == Kind::lambda)
      c_.text << (mask_.kind == MaskKind::all      ? ""
                  : mask_.kind == MaskKind::causal ? " causal"
                  : mask_.kind == MaskKind::window ? " window"
                                                   : " scattered");
    if (kind_ == Kind::strided) c_.text << " strided_sparse(" << stride_ << ')';
    if (kind_ == Kind::fixed) c_.text << " fixed_sparse(" << stride_ << ',' << summary_ << ')';
    if (kind_ == Kind::lambda || kind_ == Kind::learned) draw_sinks();
    if (kind_ == Kind::lambda && r_.percent(25)) draw_dropout();
    g_.kept.resize(g_.added.size());
    each_pair([&](Index b, Index h, Index i, Index j) { g_.kept[g_.pair(b, h, i, j)] = keeps(b, h, i, j); });
  }

  void draw_constants() {
    constexpr double kMost = std::numeric_limits<T>::max();
    // For double, a sum near 1e9 is rounded twice by the oracle, first to long double, unless the score has few digits.
    constexpr bool kIsLong = sizeof(T) > sizeof(float);
    const double size = kind_ == Kind::none       ? 0
                        : !is_exact_ || cap_ != 0 ? r_.of({0.0, kIsLong ? 0.0 : 1e9, kMost})
                                                  : r_.of({0.0, 1e2, 1e4, 1e4, 1e6, 1e6, 1e9, 1e9, kMost, kMost});
    const double constant = r_.percent(50) ? size : -size;
    const Index choice = r_.from(0, 99);
    std::string what = "all rows";
    if (size == 0 || choice < 30) {
      constants_.x = {static_cast<T>(constant)};
    } else if (choice < 75) {  // a constant for some rows, or a different one for each
      constants_.shape = {g_.batch, g_.heads, g_.q_len, 1};
      const bool own = choice >= 60;
      what = own ? "a different one per row" : "some rows";
      for (Index i = 0; i < g_.batch * g_.heads * g_.q_len; ++i) {
        const Index chance = r_.from(0, 99);
        const double drawn = own ? constant * r_.of({1.0, -1.0, 0.5, 0.01, 0.0}) : chance < 50 ? constant : 0.0;
        constants_.x.push_back(static_cast<T>(drawn));
      }
    } else {  // padding; causal rows may see nothing else
      constants_.shape = {g_.batch, 1, 1, g_.kv_len};
      what = "padded keys";
      for (Index b = 0; b < g_.batch; ++b) {
        const Index padding = r_.from(0, g_.kv_len);
        for (Index j = 0; j < g_.kv_len; ++j)
          constants_.x.push_back(j < padding ? static_cast<T>(-std::abs(constant)) : T(0));
      }
    }
    std::ostringstream text;
    text.precision(1);
    if (size == kMost)
      text << "max";
    else
      text << size;
    report_.constant = text.str();
    if (kind_ != Kind::none) c_.text << " c=" << (constant < 0 ? "-" : "") << text.str() << ' ' << what;
  }
  void spread_constants() {
    each_pair([&](Index b, Index h, Index i, Index j) {
      g_.added[g_.pair(b, h, i, j)] = static_cast<Wide>(constants_.at(b, h, i, j));
    });
  }
  void draw_sinks() {
    const Index how = r_.from(0, 99);
    if (kind_ == Kind::lambda && how < 60) return;
    c_.text << " sinks";
    // Sinks are near the scores, or, in half of the calls whose rows all have the same constant, near the shifted
    // scores.
    const Wide beside = constants_.x.size() == 1 && std::abs(constants_.x[0]) < 2e9 && how % 2 == 0
                            ? static_cast<Wide>(constants_.x[0])
                            : 0;
    for (Index h = 0; h < g_.heads; ++h)
      g_.sinks.push_back(static_cast<Wide>(static_cast<float>(beside + static_cast<Wide>(r_.normal()))));
  }
  void draw_dropout() {
    rate_ = r_.of({0.25, 0.5}), seed_ = r_.bits();
    c_.text << " dropout(" << rate_ << ')';
    // Determines the dropped weights: with zero queries and keys all weights are equal.
    const Tensor<float, 4> q({g_.batch, g_.heads, g_.q_len, 1}), kv({g_.batch, g_.heads, g_.kv_len, 1});
    const auto r = attn::naive_attention(q, kv, kv, attn::Mods<>() | attn::dropout(rate_, seed_),
                                         Options{.q_offset = g_.q_offset});
    for (const Wide w : elements_of(r.weights)) g_.factor.push_back(w == 0 ? 0 : 1 / (1 - static_cast<Wide>(rate_)));
  }

  template <class F>
  void each_pair(const F& f) const {
    for (Index b = 0; b < g_.batch; ++b)
      for (Index h = 0; h < g_.heads; ++h)
        for (Index i = 0; i < g_.q_len; ++i)
          for (Index j = 0; j < g_.kv_len; ++j) f(b, h, i, j);
  }
  bool keeps(Index b, Index h, Index i, Index j) const {
    const Index q = g_.q_offset + i, behind = q - j;
    switch (kind_) {
      case Kind::none:
      case Kind::bias:
        return true;
      case Kind::lambda:
        return mask_(Position{b, h, q, j});
      case Kind::bias_causal:
      case Kind::learned:
        return behind >= 0;
      case Kind::strided:
        return behind >= 0 && (behind <= stride_ || behind % stride_ == 0);
      case Kind::fixed: {
        const auto block = [&](Index x) { return (x >= 0 ? x : x - stride_ + 1) / stride_; };
        return behind >= 0 && (block(q) == block(j) || j - block(j) * stride_ >= stride_ - summary_);
      }
    }
    return false;
  }

  // ---- judging

  /// Whether products may be computed in bf16, which rounds weights.
  bool may_round() const {
    constexpr bool kIsBfloat16 = std::is_same_v<Q, Eigen::bfloat16> && std::is_same_v<K, Q> && std::is_same_v<V, Q>;
    return kIsBfloat16 && options_.isa.value_or(attn::default_isa()) >= attn::Isa::avx512_bf16;
  }

  void judge(const std::string& call_name, const char* tensor, const std::vector<Wide>& is,
             const std::vector<Wide>& naive, const Part& right, double factor, Rounding stored = {}) {
    const std::string_view of = tensor;
    if (may_round() && of == "lse") stored.absolute += 1.1e-4;
    if (may_round() && of == "out") stored.relative = std::max(stored.relative, kRounding<V>.relative);
    // Products round weights and gradients of scores, too. Where their terms cancel, the sum of the roundings is more
    // than the rounding of the result. It is at most 4 roundings of the root of the sum of the terms' squares for up to
    // 16 terms, and for more, with independent roundings, in all but one of 10^9 results.
    if (may_round() && of.substr(0, 5) == "grad_") {
      stored.absolute += static_cast<double>(4 * right.root) * stored.relative;
      stored.relative *= 2;
    }
    Judge<Q>{c_, report_, slack_, has_common_part_}.of(call_name, tensor, is, naive, right, factor, stored);
  }

  template <class M>
  void check(const M& mods) {
    const auto q = q_.in();
    const auto k = k_.in();
    const auto v = v_.in();
    const auto r = attn::attention(q, k, v, mods, options_);
    const auto n = attn::naive_attention(q, k, v, mods, options_);
    naive_out_ = elements_of(n.out), naive_lse_ = elements_of(n.lse), naive_weights_ = elements_of(n.weights);
    judge("attention", "out", elements_of(r.out), naive_out_, correct_.out, 2, kRounding<Q>);
    judge("attention", "lse", elements_of(r.lse), naive_lse_, correct_.lse, 2);
    c_.calls += 1;
    lse_ = r.lse;
    if (r_.percent(40)) {
      Tensor<T, 4> out(query_shape(g_.v_dim));
      Tensor<T, 3> lse({g_.batch, g_.heads, g_.q_len});
      attn::attention_into(out, lse, q, k, v, mods, options_);
      judge("attention_into", "out", elements_of(out), naive_out_, correct_.out, 2);
      judge("attention_into", "lse", elements_of(lse), naive_lse_, correct_.lse, 2);
      c_.calls += 1;
    }
    if (decodes_) return;
    if constexpr (std::is_same_v<M, attn::Mods<>>) {
      backward("attention_backward", attn::attention_backward(grad_out_.in(), q, k, v, r, mods, options_),
               attn::naive_attention_backward(grad_out_.in(), q, k, v, mods, options_));
    } else {
      const attn::Result into{grad_out_.in(), TensorView<const T, 3>(grad_lse_.view())};
      backward("attention_backward", attn::attention_backward(into, q, k, v, r, mods, options_),
               attn::naive_attention_backward(into, q, k, v, mods, options_));
    }
  }

  template <class Is, class Naive>
  void backward(const char* call_name, const Is& is, const Naive& naive) {
    naive_query_ = elements_of(naive.query), naive_key_ = elements_of(naive.key),
    naive_value_ = elements_of(naive.value);
    c_.calls += 1;
    judge_gradients(call_name, elements_of(is.query), elements_of(is.key), elements_of(is.value));
  }
  void judge_gradients(const std::string& call_name, const std::vector<Wide>& query, const std::vector<Wide>& key,
                       const std::vector<Wide>& value) {
    judge(call_name, "grad_query", query, naive_query_, correct_.query, kGradients, kRounding<Q>);
    judge(call_name, "grad_key", key, naive_key_, correct_.key, kGradients, kRounding<K>);
    judge(call_name, "grad_value", value, naive_value_, correct_.value, kGradients, kRounding<V>);
  }

  void check_lambda() {
    const auto mods_with = [&](const std::vector<Wide>& sinks) {
      std::vector<double> logits(static_cast<std::size_t>(g_.heads), -std::numeric_limits<double>::infinity());
      for (std::size_t h = 0; h < sinks.size(); ++h) logits[h] = static_cast<double>(sinks[h]);
      return attn::score_mod(Shift<T>{&constants_, cap_, g_.q_offset}) | attn::mask_mod(mask_) | attn::sinks(logits) |
             attn::dropout(rate_, seed_);
    };
    const auto mods = mods_with(g_.sinks);
    check(mods);
    check_parts(mods, mods_with({}));
    check_weights(mods);
    check_caches(mods);
    check_jvp(mods);
  }

  void check_learned() {
    Tensor<T, 4> grad(constants_.shape), naive_grad(constants_.shape);
    Tensor<T, 1> of_sinks({g_.heads}), naive_of_sinks({g_.heads});
    std::vector<double> logits;
    for (const Wide x : g_.sinks) logits.push_back(static_cast<double>(x));
    const auto constants = constants_.view();
    const auto mods_into = [&](Tensor<T, 4>& of_constants, Tensor<T, 1>& of_logits) {
      return attn::bias(constants, of_constants) | attn::causal() | attn::sinks(logits, of_logits);
    };
    const auto mods = mods_into(grad, of_sinks), naive_mods = mods_into(naive_grad, naive_of_sinks);
    const auto r = attn::attention(q_.in(), k_.in(), v_.in(), mods, options_);
    const auto n = attn::naive_attention(q_.in(), k_.in(), v_.in(), naive_mods, options_);
    judge("attention with sinks", "out", elements_of(r.out), elements_of(n.out), correct_.out, 2, kRounding<Q>);
    judge("attention with sinks", "lse", elements_of(r.lse), elements_of(n.lse), correct_.lse, 2);
    c_.calls += 1;
    if (decodes_) return;
    const attn::Result into{grad_out_.in(), TensorView<const T, 3>(grad_lse_.view())};
    backward("backward with learned sinks and bias",
             attn::attention_backward(into, q_.in(), k_.in(), v_.in(), r, mods, options_),
             attn::naive_attention_backward(into, q_.in(), k_.in(), v_.in(), naive_mods, options_));
    judge("backward with learned sinks and bias", "sinks", elements_of(of_sinks), elements_of(naive_of_sinks),
          correct_.sinks, kGradients);
    Part sums;
    std::vector<Wide> sizes(constants_.x.size(), 0);
    sums.x = sizes;
    each_pair([&](Index b, Index h, Index i, Index j) {
      const Index where[] = {b, h, i, j};
      Index at = 0;
      for (std::size_t d = 0; d < 4; ++d) at = at * constants_.shape[d] + (constants_.shape[d] == 1 ? 0 : where[d]);
      sums.x[static_cast<std::size_t>(at)] += correct_.pairs[g_.pair(b, h, i, j)];
      sizes[static_cast<std::size_t>(at)] += correct_.pair_sizes[g_.pair(b, h, i, j)];
    });
    for (const Wide size : sizes) sums.size = std::max(sums.size, size);
    judge("backward with learned sinks and bias", "bias", elements_of(grad), elements_of(naive_grad), sums, kGradients);
  }

  /// Splits the keys into parts whose results are merged, or accumulated in place, and whose gradients are summed.
  template <class M>
  void check_parts(const M& mods, const M& without_sinks) {
    std::vector<Index> ends;
    Index begin = 0;
    for (Index parts = r_.from(1, 3); parts > 0; --parts) ends.push_back(begin = r_.from(begin, g_.kv_len));
    ends.push_back(g_.kv_len);
    const auto each_part = [&](const auto& f) {
      Index from = 0;
      for (const Index& end : ends) {
        Options o = options_;
        o.q_offset = g_.q_offset, o.kv_offset = from, o.accumulate = &end != ends.data();
        f(from, end, o);
        from = end;
      }
    };
    if (r_.percent(40)) {
      auto all = attn::attention(q_.in(), k_.rows(0, ends[0]), v_.rows(0, ends[0]), mods, part_options(0));
      each_part([&](Index from, Index end, Options o) {
        if (!o.accumulate) return;
        o.accumulate = false;
        const auto part = attn::attention(q_.in(), k_.rows(from, end), v_.rows(from, end), without_sinks, o);
        all = attn::merge(std::move(all), part);
      });
      const double parts = kIsNarrow<Q> ? static_cast<double>(2 * ends.size()) : 1;  // each of which is rounded
      judge("merge", "out", elements_of(all.out), naive_out_, correct_.out, 2,
            Rounding{kRounding<Q>.relative * parts, kRounding<Q>.absolute * parts});
      judge("merge", "lse", elements_of(all.lse), naive_lse_, correct_.lse, 2);
      c_.calls += static_cast<Index>(ends.size());
    }
    if (r_.percent(40)) {
      Tensor<T, 4> out(query_shape(g_.v_dim));
      Tensor<T, 3> lse({g_.batch, g_.heads, g_.q_len});
      each_part([&](Index from, Index end, const Options& o) {
        attn::attention_into(out, lse, q_.in(), k_.rows(from, end), v_.rows(from, end), mods, o);
      });
      judge("accumulate", "out", elements_of(out), naive_out_, correct_.out, 2);
      judge("accumulate", "lse", elements_of(lse), naive_lse_, correct_.lse, 2);
      c_.calls += static_cast<Index>(ends.size());
    }
    // Parts of the keys cannot be summed again, so weights that the forward pass rounded show in gradients: as part of
    // what keys have in common and, for single queries on the matrix unit, of what values have in common.
    const bool rounding_shows = may_round() && (has_common_part_ || g_.q_len == 1);
    if (decodes_ || rounding_shows || !r_.percent(60)) return;
    // Gradients from out and lse in the computation's scalar, in one call or in one per part.
    Tensor<T, 4> out(query_shape(g_.v_dim));
    Tensor<T, 3> lse({g_.batch, g_.heads, g_.q_len});
    attn::attention_into(out, lse, q_.in(), k_.in(), v_.in(), mods, options_);
    Tensor<T, 4> query(query_shape(g_.head_dim)), key(key_shape(g_.head_dim)), value(key_shape(g_.v_dim));
    const attn::Result into{grad_out_.in(), TensorView<const T, 3>(grad_lse_.view())};
    if (r_.percent(50)) {
      attn::attention_backward_into(query.view(), key.view(), value.view(), into, q_.in(), k_.in(), v_.in(), out, lse,
                                    mods, options_);
      c_.calls += 1;
      judge_gradients("attention_backward_into", elements_of(query), elements_of(key), elements_of(value));
      return;
    }
    each_part([&](Index from, Index end, const Options& o) {
      const auto rows = [&](Tensor<T, 4>& t) {
        const auto all = t.view();
        auto shape = all.shape();
        shape[2] = end - from;
        return TensorView<T, 4>(all.data() + from * all.stride(2), shape, all.strides());
      };
      attn::attention_backward_into(query.view(), rows(key), rows(value), into, q_.in(), k_.rows(from, end),
                                    v_.rows(from, end), out, lse, mods, o);
      c_.calls += 1;
    });
    judge_gradients("backward in parts", elements_of(query), elements_of(key), elements_of(value));
  }
  Options part_options(Index from) const {
    Options o = options_;
    o.q_offset = g_.q_offset, o.kv_offset = from;
    return o;
  }

  template <class M>
  void check_weights(const M& mods) {
    if (!r_.percent(50)) return;
    const auto q = q_.in();
    const auto k = k_.in();
    const Index n = g_.q_len, m = g_.kv_len;
    std::vector<Wide> tiles(correct_.weights.x.size(), 0);
    std::mutex mutex;
    attn::for_each_weight_tile(
        q, k, lse_, mods,
        [&](const auto& t) {
          const std::lock_guard lock(mutex);
          for (Index i = t.rows.begin; i < t.rows.end; ++i)
            for (Index j = t.keys.begin; j < t.keys.end; ++j)
              tiles[g_.pair(t.batch, t.head, i, j)] = widened(t.weights(i - t.rows.begin, j - t.keys.begin));
        },
        options_);
    judge("for_each_weight_tile", "weights", tiles, naive_weights_, correct_.weights, 2);
    const auto mass_of = [&](const std::vector<Wide>& w) {
      std::vector<Wide> mass(static_cast<std::size_t>(g_.batch * g_.heads * m), 0);
      each_pair([&](Index b, Index h, Index i, Index j) {
        mass[static_cast<std::size_t>((b * g_.heads + h) * m + j)] += w[g_.pair(b, h, i, j)];
      });
      return mass;
    };
    Part mass{mass_of(correct_.weights.x)};
    mass.size = *std::max_element(mass.x.begin(), mass.x.end());
    judge("attention_mass", "mass", elements_of(attn::attention_mass(q, k, lse_, mods, options_)),
          mass_of(naive_weights_), mass, 2);
    const auto entropy_of = [&](const std::vector<Wide>& w, Wide* size) {
      std::vector<Wide> all(static_cast<std::size_t>(g_.batch * g_.heads * n), 0);
      std::vector<Wide> sizes = all;
      each_pair([&](Index b, Index h, Index i, Index j) {
        const Wide x = w[g_.pair(b, h, i, j)];
        if (x == 0) return;
        all[g_.row(b, h, i)] -= x * std::log(x), sizes[g_.row(b, h, i)] += std::abs(x * std::log(x)) + x;
      });
      for (const Wide x : sizes) *size = std::max(*size, x);
      return all;
    };
    Part entropy;
    Wide unused = 0;
    entropy.x = entropy_of(correct_.weights.x, &entropy.size);
    judge("entropy", "entropy", elements_of(attn::entropy(q, k, lse_, mods, options_)),
          entropy_of(naive_weights_, &unused), entropy, 2);
    const Index count = r_.from(1, 6);
    const auto top_of = [&](const std::vector<Wide>& w) {
      std::vector<Wide> top;
      for (Index row = 0; row < g_.batch * g_.heads * n; ++row) {
        std::vector<Wide> all(w.begin() + row * m, w.begin() + (row + 1) * m);
        std::sort(all.begin(), all.end(), std::greater<>());
        all.resize(static_cast<std::size_t>(count), 0);
        top.insert(top.end(), all.begin(), all.end());
      }
      return top;
    };
    Part top{top_of(correct_.weights.x), correct_.weights.size};
    judge("top_k_weights", "weights", elements_of(attn::top_k_weights(q, k, lse_, count, mods, options_).weights),
          top_of(naive_weights_), top, 2);
    c_.calls += 4;
  }

  template <class M>
  void check_jvp(const M& mods) {
    if (decodes_ || !r_.percent(40)) return;
    const auto jvp = attn::attention_jvp(q_.in(), k_.in(), v_.in(), to_q_.in(), to_k_.in(), to_v_.in(), mods, options_);
    const auto naive =
        attn::naive_attention_jvp(q_.in(), k_.in(), v_.in(), to_q_.in(), to_k_.in(), to_v_.in(), mods, options_);
    judge("attention_jvp", "out", elements_of(jvp.out), naive_out_, correct_.out, 2, kRounding<Q>);
    judge("attention_jvp", "tangent", elements_of(jvp.tangent), elements_of(naive.tangent), correct_.tangent, 2,
          kRounding<Q>);
    c_.calls += 1;
  }

  /// The same keys and values in a cache, and in pages.
  template <class M>
  void check_caches(const M& mods) {
    if constexpr (std::is_same_v<K, V>) {
      if (!r_.percent(decodes_ ? 60 : 25)) return;
      const auto judged = [&](const char* call_name, const auto& cache) {
        const auto r = attn::attention(q_.in(), cache, mods, options_);
        judge(call_name, "out", elements_of(r.out), naive_out_, correct_.out, 2, kRounding<Q>);
        judge(call_name, "lse", elements_of(r.lse), naive_lse_, correct_.lse, 2);
        c_.calls += 1;
      };
      if (r_.percent(50)) {
        attn::KvCache<K> cache(
            {.batch = g_.batch, .kv_heads = g_.kv_heads, .head_dim = g_.head_dim, .v_dim = g_.v_dim});
        cache.append(k_.in(), v_.in());
        return judged("KvCache", cache);
      }
      const Index page = r_.of<Index>({16, 48, 64});
      attn::PagedKvCache<K> pages({.pages = g_.batch * (g_.kv_len / page + 1),
                                   .page_size = page,
                                   .kv_heads = g_.kv_heads,
                                   .head_dim = g_.head_dim,
                                   .v_dim = g_.v_dim});
      std::vector<Index> sequences;
      for (Index b = 0; b < g_.batch; ++b) sequences.push_back(pages.add());
      pages.append(sequences, k_.in(), v_.in());
      judged("PagedKvCache", pages.view(sequences));
    }
  }

  static constexpr double kGradients = kNarrowQuery ? 4 : 2;

  Case& c_;
  Random& r_;
  Report& report_;
  const Kind kind_;
  bool decodes_;
  CallValues g_;
  Numbers<Q> q_;
  Numbers<K> k_;
  Numbers<V> v_;
  Numbers<Q> grad_out_;
  Numbers<Q> to_q_;
  Numbers<K> to_k_;
  Numbers<V> to_v_;
  Options options_;
  bool is_exact_ = true, has_common_part_ = false;
  Wide slack_ = 0;
  Constants<T> constants_;
  double cap_ = 0, rate_ = 0;
  std::uint64_t seed_ = 0;
  Index stride_ = 1, summary_ = 0;
  Mask mask_;
  Tensor<T, 3> grad_lse_, lse_;
  CorrectValues correct_;
  std::vector<Wide> naive_out_, naive_lse_, naive_weights_, naive_query_, naive_key_, naive_value_;
};

/// Makes one call with the given scalars and random mods.
template <class Q, class K = Q, class V = Q>
void run_call(Case& c) {
  Report report;
  const Index kind = c.random.from(0, 99);
  Call<Q, K, V>(c, report,
                kind < 12   ? Kind::none
                : kind < 50 ? Kind::lambda
                : kind < 60 ? Kind::bias
                : kind < 78 ? Kind::bias_causal
                : kind < 84 ? Kind::strided
                : kind < 88 ? Kind::fixed
                            : Kind::learned)
      .run();
  std::string misses;
  for (const std::string& miss : report.misses) misses += (misses.empty() ? "" : "\n  ") + miss;
  if (!misses.empty()) fail(misses);
}

}  // namespace fuzz::shifted
