// Results derived from log-sum-exps: weights tile by tile, sums over them, and merged parts of the keys.
#include <mutex>

#include "families.h"
#include "tensor_call.h"

namespace fuzz {
namespace {

/// Checks that for_each_weight_tile() visits each weight once, and that sums agree with the tiles.
template <class T>
class WeightCall {
 public:
  using R = Exact<T>;

  WeightCall(Case& c, double most)
      : c_(c),
        sizes_(random_sizes(c, most)),
        l_(sizes_.batch() > 0 ? sizes_.each[0] : Lens{1, 1, 0}),
        q_(c.random, {sizes_.batch(), sizes_.heads, l_.q_len, sizes_.head_dim}, Role::input),
        k_(c.random, {sizes_.batch(), sizes_.kv_heads, l_.kv_len, sizes_.head_dim}, Role::input),
        v_(c.random, {sizes_.batch(), sizes_.kv_heads, l_.kv_len, sizes_.v_dim}, Role::input) {
    fill(c, q_, k_, v_);
    options_ = c.options();
    scale_ = c.draw_scale(options_, sizes_.head_dim);
    options_.q_offset = l_.q_offset;
  }
  const Sizes& sizes() const { return sizes_; }

  template <class M>
  void make(const M& mods, const Meanings& meanings) {
    for (const Meaning& m : meanings) c_.text << " | " << m.text;
    const auto q = q_.input();
    const auto k = k_.input();
    const auto r = attn::attention(q, k, v_.input(), mods, options_);
    const Index n = l_.q_len, m = l_.kv_len;
    Tensor<T, 4> weights({sizes_.batch(), sizes_.heads, n, m});
    std::mutex mutex;
    Tensor<unsigned char, 4> seen(weights.shape());
    attn::for_each_weight_tile(
        q, k, r.lse, mods,
        [&](const auto& tile) {
          const std::lock_guard lock(mutex);
          if (tile.rows.begin < 0 || tile.rows.end > n || tile.keys.begin < 0 || tile.keys.end > m ||
              tile.weights.dim(0) != tile.rows.size() || tile.weights.dim(1) != tile.keys.size())
            fail("a tile of rows ", tile.rows.begin, "..", tile.rows.end, ", keys ", tile.keys.begin, "..",
                 tile.keys.end);
          for (Index i = tile.rows.begin; i < tile.rows.end; ++i)
            for (Index j = tile.keys.begin; j < tile.keys.end; ++j) {
              if (seen(tile.batch, tile.head, i, j)++ > 0) fail("the weight (", i, ", ", j, ") was visited twice");
              weights(tile.batch, tile.head, i, j) = tile.weights(i - tile.rows.begin, j - tile.keys.begin);
            }
        },
        options_);
    ++c_.calls;
    Precision precision = flash_precision_of<T>();
    precision.weights_from_lse = true;
    for (const Sequence<R>& s : sequences_of(sizes_, scale_, q_, k_, v_))
      judge(c_, s, meanings, precision, Results<R>{{}, {}, of_batch<R>(weights.view(), s.batch)}, "tiles");
    if (c_.random.percent(60)) check_sums(mods, r.lse, weights);
    if (c_.random.percent(60)) check_top(mods, r.lse, weights);
  }

 private:
  template <class M>
  void check_sums(const M& mods, const Tensor<T, 3>& lse, const Tensor<T, 4>& w) {
    const auto mass = attn::attention_mass(q_.input(), k_.input(), lse, mods, options_);
    const auto entropy = attn::entropy(q_.input(), k_.input(), lse, mods, options_);
    c_.calls += 2;
    const Wide eps = std::numeric_limits<T>::epsilon();
    const auto near = [&](T is, Wide sum, Wide size, Index count, const char* what) {
      if (std::isnan(sum) ? !std::isnan(is) : !(std::abs(is - sum) <= eps * (8 + static_cast<Wide>(count)) * size))
        fail(what, " is ", is, ", the tiles give ", sum);
    };
    for (Index b = 0; b < w.dim(0); ++b)
      for (Index h = 0; h < w.dim(1); ++h) {
        for (Index j = 0; j < w.dim(3); ++j) {
          Wide sum = 0;
          for (Index i = 0; i < w.dim(2); ++i) sum += w(b, h, i, j);
          near(mass(b, h, j), sum, sum, w.dim(2), "attention_mass");
        }
        for (Index i = 0; i < w.dim(2); ++i) {
          Wide sum = 0, size = 0;
          for (Index j = 0; j < w.dim(3); ++j) {
            const Wide x = w(b, h, i, j);
            if (x == 0) continue;
            sum -= x * std::log(x), size += std::abs(x * std::log(x)) + x;
          }
          near(entropy(b, h, i), sum, size, w.dim(3), "entropy");
        }
      }
  }

  template <class M>
  void check_top(const M& mods, const Tensor<T, 3>& lse, const Tensor<T, 4>& w) {
    const Index count = c_.random.from(0, 6);
    const auto top = attn::top_k_weights(q_.input(), k_.input(), lse, count, mods, options_);
    ++c_.calls;
    const auto before = [](T a, T b) { return std::isnan(a) ? !std::isnan(b) : a > b; };
    for (Index b = 0; b < w.dim(0); ++b)
      for (Index h = 0; h < w.dim(1); ++h)
        for (Index i = 0; i < w.dim(2); ++i) {
          std::vector<Index> keys;
          for (Index j = 0; j < w.dim(3); ++j)
            if (w(b, h, i, j) != 0) keys.push_back(j);
          std::stable_sort(keys.begin(), keys.end(),
                           [&](Index x, Index y) { return before(w(b, h, i, x), w(b, h, i, y)); });
          keys.resize(std::min(keys.size(), static_cast<std::size_t>(count)));
          keys.resize(static_cast<std::size_t>(count), -1);
          for (Index x = 0; x < count; ++x) {
            const Index key = keys[static_cast<std::size_t>(x)];
            const T want = key < 0 ? T(0) : w(b, h, i, key), is = top.weights(b, h, i, x);
            if (top.keys(b, h, i, x) != key || (is != want && !(std::isnan(is) && std::isnan(want))))
              fail("top ", x, " of query ", i, " is key ", top.keys(b, h, i, x), " with ", is, ", not ", key, " with ",
                   want);
          }
        }
  }

  Case& c_;
  Sizes sizes_;
  Lens l_;
  Guard4<T> q_, k_, v_;
  attn::Options options_;
  Wide scale_ = 1;
};

}  // namespace

void weights(Case& c) {
  const auto run = [&](auto&& call) {
    if (c.random.percent(20)) return call.make(attn::Mods<>(), {});
    with_all_mods(c, call.sizes(), [&](const auto& mods, const Meanings& meanings) { call.make(mods, meanings); });
  };
  if (c.random.percent(75)) return run(WeightCall<float>(c, 1e6));
  run(WeightCall<double>(c, 3e5));
}

/// Attends to parts of the keys, each in a call in which the part's first key has position 0, and merges the results.
void merges(Case& c) {
  const Sizes s = random_sizes(c, 1e6);
  const Lens l = s.batch() > 0 ? s.each[0] : Lens{1, 1, 0};
  Guard4<float> q(c.random, {s.batch(), s.heads, l.q_len, s.head_dim}, Role::input),
      k(c.random, {s.batch(), s.kv_heads, l.kv_len, s.head_dim}, Role::input),
      v(c.random, {s.batch(), s.kv_heads, l.kv_len, s.v_dim}, Role::input);
  fill(c, q, k, v);
  attn::Options options = c.options();
  const Wide scale = c.draw_scale(options, s.head_dim);
  const Index left = c.random.percent(30) ? 1000000 : c.random.from(0, 100),
              right = c.random.percent(50) ? 0 : c.random.from(0, 400);
  const double cap = 30;
  const auto mods = attn::sliding_window(left, right) | attn::softcap(cap);
  const Meanings meanings = {{"sliding_window(" + std::to_string(left) + "," + std::to_string(right) + ")",
                              {.keep = [=](const Pair& p) { return p.kv >= p.q - left && p.kv <= p.q + right; }}},
                             {"softcap(30)", {.score = [=](Wide x, const Pair&) { return cap * std::tanh(x / cap); }}}};
  Guard4<float> out(c.random, {s.batch(), s.heads, l.q_len, s.v_dim}, Role::output),
      lse_memory(c.random, {s.batch(), s.heads, l.q_len, 1}, Role::output);
  const auto& lm = lse_memory.view();
  const TensorView<float, 3> lse(lm.data(), {s.batch(), s.heads, l.q_len}, {lm.stride(0), lm.stride(1), lm.stride(2)});
  const Index parts = c.random.from(2, 4);
  c.text << " in " << parts << " parts"
         << " | " << meanings[0].text << " | softcap(30)";
  Index begin = 0;
  for (Index part = 0; part < parts; ++part) {
    const Index end = part + 1 == parts ? l.kv_len : c.random.from(begin, l.kv_len);
    const auto keys = [&](const TensorView<const float, 4>& t) {
      auto shape = t.shape();
      shape[2] = end - begin;
      return t.part(t.size() == 0 ? 0 : begin * t.stride(2), shape, t.strides());
    };
    options.q_offset = l.q_offset - begin;
    ++c.calls;
    if (part == 0) {
      attn::attention_into(out.view(), lse, q.input(), keys(k.input()), keys(v.input()), mods, options);
    } else {
      const auto r = attn::attention(q.input(), keys(k.input()), keys(v.input()), mods, options);
      attn::merge_into(out.view(), lse, r.out, r.lse);
    }
    begin = end;
  }
  out.check_gaps("out"), lse_memory.check_gaps("lse");
  // Each part's log-sum-exp, below 40 with this cap, is rounded, and determines the part's weight.
  Precision precision = flash_precision_of<float>();
  precision.weights = 6 * precision.eps * static_cast<Wide>(parts) * 40;
  precision.lse = 6 * precision.eps * static_cast<Wide>(parts);
  for (const Sequence<double>& one : sequences_of(s, scale, q, k, v))
    judge(c, one, meanings, precision, {of_batch<double>(out.view(), one.batch), of_batch<double>(lse, one.batch), {}},
          "merged");
}

}  // namespace fuzz
