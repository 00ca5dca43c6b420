// The oracles, compiled once.
#include "dropout_by_hand.h"
#include "jvp_oracle.h"

namespace attn::test {

Truth oracle(const Inputs& in, const Meaning& mod, const Numbers& numbers) {
  constexpr Real kInf = std::numeric_limits<Real>::infinity();
  const Sizes& s = in.sizes;
  const Real scale = numbers.scale ? *numbers.scale : 1 / std::sqrt(static_cast<Real>(s.head_dim));
  const Index first = numbers.first_position(s);
  const auto at = [](const std::vector<double>& x, Index i) { return Real(x[static_cast<std::size_t>(i)]); };

  Truth t;
  for (double x : in.v) t.largest_value = std::max(t.largest_value, std::abs(Real(x)));
  std::vector<Real> row(static_cast<std::size_t>(s.kv_len));
  std::vector<bool> kept(row.size());
  for (Index b = 0; b < s.batch; ++b)
    for (Index h = 0; h < s.heads; ++h) {
      const Index query_head = b * s.heads + h;
      const Index kv_head = b * s.kv_heads + h * s.kv_heads / s.heads;
      for (Index i = 0; i < s.q_len; ++i) {
        const Real sink = mod.sink ? mod.sink(h) : -kInf;
        Real max = sink;
        for (Index j = 0; j < s.kv_len; ++j) {
          Real dot = 0, size = 0;
          for (Index d = 0; d < s.head_dim; ++d) {
            const Real product = at(in.q, (query_head * s.q_len + i) * s.head_dim + d) *
                                 at(in.k, (kv_head * s.kv_len + j) * s.head_dim + d);
            dot += product;
            size += std::abs(product);
          }
          const Pair p{b, h, i, first + i, j};
          Real x = -kInf;
          if (!mod.keep || mod.keep(p)) x = mod.score ? mod.score(scale * dot, p) : scale * dot;
          row[static_cast<std::size_t>(j)] = x;
          kept[static_cast<std::size_t>(j)] = x != -kInf;
          if (x == -kInf) continue;
          max = std::max(max, x);
          t.largest_score = std::max({t.largest_score, std::abs(x), std::abs(scale * dot)});
          t.dot_condition = std::max(t.dot_condition, std::abs(scale) * size);
        }
        Real sum = sink == -kInf ? 0 : std::exp(sink - max);
        if (numbers.sigmoid_bias) {
          for (Real& x : row) {
            t.sigmoid_rests.push_back(1 / (1 + std::exp(x + *numbers.sigmoid_bias)));
            x = x == -kInf ? 0 : 1 / (1 + std::exp(-(x + *numbers.sigmoid_bias)));
          }
          sum = 1;
        } else {
          for (Real& x : row) sum += x = x == -kInf ? 0 : std::exp(x - max);
          t.lse.push_back(sum == 0 ? -kInf : max + std::log(sum));
        }
        for (Index j = 0; j < s.kv_len; ++j) {
          Real& x = row[static_cast<std::size_t>(j)];
          t.softmax.push_back(x = sum == 0 ? 0 : x / sum);
          const Pair p{b, h, i, first + i, j};
          const Real factor = mod.factor ? mod.factor(p) : 1, slope = mod.weight_slope ? mod.weight_slope(x, p) : 1;
          t.largest_factor = std::max({t.largest_factor, factor, slope});
          t.slopes.push_back(x * factor * slope);
          if (mod.weight && kept[static_cast<std::size_t>(j)]) x = mod.weight(x, p);
          t.weights.push_back(x *= factor);
        }
        for (Index e = 0; e < s.v_dim; ++e) {
          Real y = 0;
          for (Index j = 0; j < s.kv_len; ++j)
            if (row[static_cast<std::size_t>(j)] != 0)
              y += row[static_cast<std::size_t>(j)] * at(in.v, (kv_head * s.kv_len + j) * s.v_dim + e);
          t.out.push_back(y);
        }
      }
    }
  t.largest_value *= t.largest_factor;
  return t;
}

Real slope_of(const Meaning& mod, Real x, const Pair& p) {
  if (!mod.score) return 1;
  const Real h = 1e-4L * std::max<Real>(1, std::abs(x));
  const auto f = [&](Real by) { return mod.score(x + by * h, p); };
  return (8 * (f(1) - f(-1)) - (f(2) - f(-2))) / (12 * h);
}

GradientTruth gradient_oracle(const Inputs& in, const std::vector<double>& grad_out,
                              const std::vector<double>& grad_lse, const Meaning& mod, const Numbers& numbers) {
  const Sizes& s = in.sizes;
  const Truth forward = oracle(in, mod, numbers);
  const Real scale = numbers.scale ? *numbers.scale : 1 / std::sqrt(static_cast<Real>(s.head_dim));
  const Index first = numbers.first_position(s);
  GradientTruth t;
  t.query.assign(in.q.size(), 0), t.key.assign(in.k.size(), 0), t.value.assign(in.v.size(), 0);
  std::vector<Real> key_size(in.k.size(), 0), value_size(in.v.size(), 0);
  const auto at = [](const auto& x, Index i) -> decltype(auto) { return x[static_cast<std::size_t>(i)]; };
  const auto to = [](auto& x, Index i) -> Real& { return x[static_cast<std::size_t>(i)]; };
  for (Index b = 0; b < s.batch; ++b)
    for (Index h = 0; h < s.heads; ++h) {
      const Index head = b * s.heads + h, kv_head = b * s.kv_heads + h * s.kv_heads / s.heads;
      for (Index i = 0; i < s.q_len; ++i) {
        const Index row = head * s.q_len + i;
        const auto product = [&](Index j) {  // grad_out * value
          Real sum = 0;
          for (Index c = 0; c < s.v_dim; ++c)
            sum += Real(at(grad_out, row * s.v_dim + c)) * Real(at(in.v, (kv_head * s.kv_len + j) * s.v_dim + c));
          return sum;
        };
        Real delta = 0, delta_size = 0;
        for (Index j = 0; j < s.kv_len; ++j)
          if (const Real zw = at(forward.slopes, row * s.kv_len + j); zw != 0)
            delta += zw * product(j), delta_size += std::abs(zw * product(j));
        if (!grad_lse.empty()) delta -= at(grad_lse, row);
        if (numbers.sigmoid_bias) delta = delta_size = 0;  // sigmoid weights are independent of each other
        std::vector<Real> query_size(static_cast<std::size_t>(s.head_dim), 0);
        for (Index j = 0; j < s.kv_len; ++j) {
          const Real w = at(forward.softmax, row * s.kv_len + j), zw = at(forward.slopes, row * s.kv_len + j),
                     multiplier = at(forward.weights, row * s.kv_len + j);
          if (w == 0) continue;
          Real dot = 0;
          const Index key = (kv_head * s.kv_len + j) * s.head_dim, value = (kv_head * s.kv_len + j) * s.v_dim;
          for (Index d = 0; d < s.head_dim; ++d) dot += Real(at(in.q, row * s.head_dim + d)) * Real(at(in.k, key + d));
          const Real slope = scale * slope_of(mod, scale * dot, {b, h, i, first + i, j});
          const Real rest = numbers.sigmoid_bias ? at(forward.sigmoid_rests, row * s.kv_len + j) : 1;
          const Real dp = product(j), g = (rest * zw * dp - w * delta) * slope,
                     g_size = (rest * zw * std::abs(dp) + w * (std::abs(delta) + delta_size)) * std::abs(slope);
          for (Index c = 0; c < s.v_dim; ++c) {
            to(t.value, value + c) += multiplier * Real(at(grad_out, row * s.v_dim + c));
            to(value_size, value + c) += multiplier * std::abs(Real(at(grad_out, row * s.v_dim + c)));
          }
          for (Index d = 0; d < s.head_dim; ++d) {
            const Real q = at(in.q, row * s.head_dim + d), k = at(in.k, key + d);
            to(t.query, row * s.head_dim + d) += g * k;
            to(query_size, d) += g_size * std::abs(k);
            to(t.key, key + d) += g * q;
            to(key_size, key + d) += g_size * std::abs(q);
          }
        }
        for (Real size : query_size) t.size_query = std::max(t.size_query, size);
      }
    }
  for (Real size : key_size) t.size_key = std::max(t.size_key, size);
  for (Real size : value_size) t.size_value = std::max(t.size_value, size);
  return t;
}

TangentTruth jvp_oracle(const Inputs& in, const Inputs& direction, const Meaning& mod, const Numbers& numbers) {
  const Sizes& s = in.sizes;
  const Truth forward = oracle(in, mod, numbers);
  const Real scale = numbers.scale ? *numbers.scale : 1 / std::sqrt(static_cast<Real>(s.head_dim));
  const Index first = numbers.first_position(s);
  const auto at = [](const auto& x, Index i) { return static_cast<Real>(x[static_cast<std::size_t>(i)]); };
  TangentTruth t;
  for (Index b = 0; b < s.batch; ++b)
    for (Index h = 0; h < s.heads; ++h)
      for (Index i = 0; i < s.q_len; ++i) {
        const Index row = (b * s.heads + h) * s.q_len + i, kv_head = b * s.kv_heads + h * s.kv_heads / s.heads;
        std::vector<Real> growth(static_cast<std::size_t>(s.kv_len), 0), growth_size = growth;
        Real mean = 0, mean_size = 0;
        for (Index j = 0; j < s.kv_len; ++j) {
          const Real w = at(forward.softmax, row * s.kv_len + j);
          if (w == 0) continue;
          Real dot = 0, grown = 0, size = 0;
          for (Index d = 0; d < s.head_dim; ++d) {
            const Index query = row * s.head_dim + d, key = (kv_head * s.kv_len + j) * s.head_dim + d;
            dot += at(in.q, query) * at(in.k, key);
            grown += at(direction.q, query) * at(in.k, key) + at(in.q, query) * at(direction.k, key);
            size += std::abs(at(direction.q, query) * at(in.k, key)) + std::abs(at(in.q, query) * at(direction.k, key));
          }
          // The derivative of a sigmoid is independent of the other keys.
          const Real rest = numbers.sigmoid_bias ? at(forward.sigmoid_rests, row * s.kv_len + j) : 1;
          const Real slope = rest * scale * slope_of(mod, scale * dot, {b, h, i, first + i, j});
          growth[static_cast<std::size_t>(j)] = slope * grown;
          growth_size[static_cast<std::size_t>(j)] = std::abs(slope) * size;
          mean += w * slope * grown;
          mean_size += w * std::abs(slope) * size;
        }
        if (numbers.sigmoid_bias) mean = mean_size = 0;
        for (Index c = 0; c < s.v_dim; ++c) {
          Real sum = 0, size = 0;
          for (Index j = 0; j < s.kv_len; ++j) {
            const Real w = at(forward.weights, row * s.kv_len + j);
            if (w == 0) continue;
            const Index value = (kv_head * s.kv_len + j) * s.v_dim + c;
            sum += w * ((at(growth, j) - mean) * at(in.v, value) + at(direction.v, value));
            size +=
                w * ((at(growth_size, j) + mean_size) * std::abs(at(in.v, value)) + std::abs(at(direction.v, value)));
          }
          t.tangent.push_back(sum);
          t.size = std::max(t.size, size);
        }
      }
  return t;
}

FourWords threefry_by_hand(FourWords x, const FourWords& key, int rounds) {
  constexpr int kRotations[8][2] = {{10, 26}, {11, 21}, {13, 27}, {23, 5}, {6, 20}, {17, 11}, {25, 10}, {18, 20}};
  std::array<std::uint32_t, 5> keys{key[0], key[1], key[2], key[3], 0x1bd11bda};
  for (std::uint32_t k : key) keys[4] ^= k;
  const auto inject = [&](std::uint32_t n) {
    for (std::size_t i = 0; i < 4; ++i) x[i] += keys[(n + i) % 5];
    x[3] += n;
  };
  inject(0);
  for (int round = 0; round < rounds; ++round) {
    for (std::size_t i = 0; i < 2; ++i) {
      std::uint32_t &a = x[2 * i], &b = x[(round % 2 == 0 ? 2 * i + 1 : 3 - 2 * i)];
      const int bits = kRotations[round % 8][i];
      a += b;
      b = static_cast<std::uint32_t>((std::uint64_t(b) << bits) | (std::uint64_t(b) >> (32 - bits))) ^ a;
    }
    if (round % 4 == 3) inject(static_cast<std::uint32_t>(round + 1) / 4);
  }
  return x;
}

std::uint32_t dropout_word(std::uint64_t seed, std::int64_t batch, std::int64_t head, std::int64_t q, std::int64_t kv) {
  const auto low = [](std::int64_t x) { return static_cast<std::uint32_t>(x & 0xffffffff); };
  const auto high = [](std::int64_t x) { return static_cast<std::uint32_t>(x >> 32 & 0xffffffff); };
  const std::int64_t four = kv < 0 ? (kv - 3) / 4 : kv / 4;  // rounds down
  const FourWords words = threefry_by_hand({low(four), high(four), low(q), high(q)},
                                           {static_cast<std::uint32_t>(seed % 0x100000000),
                                            static_cast<std::uint32_t>(seed / 0x100000000), low(batch), low(head)},
                                           13);
  return words[static_cast<std::size_t>(kv - 4 * four)];
}

long double dropout_factor(double p, std::uint64_t seed, std::int64_t batch, std::int64_t head, std::int64_t q,
                           std::int64_t kv) {
  const long double words = std::round(p * 4294967296.0L);
  return dropout_word(seed, batch, head, q, kv) < words ? 0 : 1 / (1 - static_cast<long double>(p));
}

}  // namespace attn::test
