// KvCache, through random histories of appending, truncating and reordering.
#include "cache_call.h"
#include "families.h"

namespace fuzz {

CachePlan random_cache(Case& c) {
  Random& r = c.random;
  CachePlan plan{r.of<Index>({1, 1, 2, 3}), 0, r.features(), 0, std::nullopt};
  plan.heads = plan.kv_heads * (r.percent(5) ? r.of<Index>({32, 64}) : r.of<Index>({1, 1, 2, 4, 8}));
  plan.v_dim = r.percent(60) ? plan.head_dim : r.features();
  if (plan.head_dim > 1 && r.percent(40)) {
    attn::RopeConfig config;
    config.head_dim = plan.head_dim;
    config.rotary_dim = 2 * r.from(1, plan.head_dim / 2);
    config.pairs = r.percent(50) ? attn::RopePairs::halves : attn::RopePairs::interleaved;
    config.base = r.of({100.0, 10000.0, 500000.0});
    plan.rope.emplace(config);
  }
  c.text << " H=" << plan.heads << '/' << plan.kv_heads << " D=" << plan.head_dim << ',' << plan.v_dim
         << (plan.rope ? " rope" : "");
  return plan;
}

void turn(const attn::Rope& rope, Index position, double* x, double* largest) {
  const Index dim = rope.config().rotary_dim, half = dim / 2;
  const bool halves = rope.config().pairs == attn::RopePairs::halves;
  for (Index i = 0; i < half; ++i) {
    const Index a = halves ? i : 2 * i, b = halves ? i + half : 2 * i + 1;
    const double angle = static_cast<double>(position) *
                         std::pow(rope.config().base, -2 * static_cast<double>(i) / static_cast<double>(dim));
    const double cos = std::cos(angle), sin = std::sin(angle), xa = x[a], xb = x[b];
    x[a] = xa * cos - xb * sin, x[b] = xa * sin + xb * cos;
    largest[a] = largest[b] = std::abs(xa) + std::abs(xb);
  }
}

namespace {

template <class T, class Q, class X>
void history(Case& c) {
  Random& r = c.random;
  const CachePlan plan = random_cache(c);
  attn::KvCacheConfig config;
  config.batch = r.from(1, 4);
  config.kv_heads = plan.kv_heads, config.head_dim = plan.head_dim, config.v_dim = plan.v_dim, config.rope = plan.rope;
  config.capacity = r.of<Index>({0, 1, 5, 64, 100});
  if (r.percent(20)) config.max_capacity = std::max<Index>(config.capacity, 90);
  attn::KvCache<T> cache(config);
  std::vector<Tokens> tokens(static_cast<std::size_t>(config.batch));
  const auto longest = [&] {
    std::size_t most = 0;
    for (const Tokens& t : tokens) most = std::max(most, t.size());
    return static_cast<Index>(most);
  };
  const auto pick = [&] { return static_cast<std::size_t>(r.from(0, config.batch - 1)); };
  c.text << ' ' << (sizeof(T) == 1 ? "int8" : "cache") << " batch=" << config.batch << ' ';
  for (Index step = r.from(1, 8); step > 0; --step) {
    const Index what = r.from(0, 9);
    const Index count = r.percent(50) ? r.from(0, 3) : r.percent(2) ? r.from(500, 2500) : r.length(130);
    if (what < 6 && longest() + count > config.max_capacity) {
      const Appended<X> more(c, plan, config.batch, config.max_capacity + 1);
      try {
        cache.append(more.k.input(), more.v.input());
        fail("the cache grew beyond max_capacity");
      } catch (const std::length_error&) {
      }
      continue;
    }
    if (what < 3) {
      c.text << " append" << count;
      const Appended<X> more(c, plan, config.batch, count);
      cache.append(more.k.input(), more.v.input());
      for (std::size_t i = 0; i < tokens.size(); ++i) more.append_to(tokens[i], static_cast<Index>(i), 0, count);
    } else if (what < 5) {
      std::vector<Index> lens;
      Index sum = 0;
      for (std::size_t i = 0; i < tokens.size(); ++i) sum += lens.emplace_back(r.from(0, count));
      c.text << " append" << listed(lens);
      const Appended<X> more(c, plan, 1, sum);
      cache.append(more.k.input(), more.v.input(), lens);
      sum = 0;
      for (std::size_t i = 0; i < tokens.size(); ++i) more.append_to(tokens[i], 0, sum, lens[i]), sum += lens[i];
    } else if (what < 6) {
      const auto to = pick();
      c.text << " append" << count << "to" << to;
      const Appended<X> more(c, plan, 1, count);
      cache.append(static_cast<Index>(to), more.k.input(), more.v.input());
      more.append_to(tokens[to], 0, 0, count);
    } else if (what < 7) {
      const auto of = pick();
      const Index length = r.from(0, static_cast<Index>(tokens[of].size()));
      c.text << " truncate" << of << "to" << length;
      cache.truncate(static_cast<Index>(of), length);
      tokens[of].resize(static_cast<std::size_t>(length));
    } else if (what < 9) {
      std::vector<Index> from;
      for (std::size_t i = 0; i < tokens.size(); ++i) from.push_back(static_cast<Index>(pick()));
      c.text << " reorder" << listed(from);
      cache.reorder(from);
      const std::vector<Tokens> old = tokens;
      for (std::size_t i = 0; i < tokens.size(); ++i) tokens[i] = old[static_cast<std::size_t>(from[i])];
    } else if (r.percent(30)) {
      c.text << " copied";
      attn::KvCache<T> copy(cache);
      cache.clear();
      cache = std::move(copy);
    } else if (r.percent(30)) {
      cache.clear();
      for (Tokens& t : tokens) t.clear();
      c.text << " clear";
    }
  }
  std::vector<Sequence<double>> all;
  for (Index i = 0; i < config.batch; ++i) {
    const Tokens& own = tokens[static_cast<std::size_t>(i)];
    if (cache.length(i) != static_cast<Index>(own.size()))
      fail("sequence ", i, " has ", cache.length(i), " tokens, not ", own.size());
    const auto k = cache.keys(i), v = cache.values(i);
    const auto scale = [&](bool value, Index h, Index j) -> double {
      if constexpr (sizeof(T) == 1) return value ? cache.value_scales()(i, h, j) : cache.key_scales()(i, h, j);
      return 1;
    };
    const auto number = [&](bool value, Index h, Index j, Index x) {
      const T& n = value ? v(0, h, j, x) : k(0, h, j, x);
      return scale(value, h, j) * static_cast<double>(static_cast<float>(n));
    };
    read_back<T>(plan, own, number, scale, all.emplace_back());
  }
  attend_to<Q>(c, plan, cache, std::move(all));
}

}  // namespace

void caches(Case& c) {
  const Index kind = c.random.from(0, 9);
  if (kind < 4) return history<float, float, float>(c);
  if (kind < 6) return history<Eigen::half, float, float>(c);
  if (kind < 7) return history<Eigen::bfloat16, Eigen::bfloat16, Eigen::bfloat16>(c);
  history<std::int8_t, float, float>(c);
}

}  // namespace fuzz
