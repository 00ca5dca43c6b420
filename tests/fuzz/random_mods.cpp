#include "random_mods.h"

#include <algorithm>
#include <limits>
#include <memory>

namespace fuzz {
namespace {

using attn::test::ErasedRows;

/// A tensor of elements of size sizeof(T), in guarded memory.
template <class T>
struct GuardedMemory : attn::test::Memory {
  Guard4<T> tensor;

  GuardedMemory(Random& random, const Shape<4>& shape, Role role) : tensor(random, shape, role) {
    first = tensor.view().data();
    strides = tensor.view().strides();
  }
  void filled() override { tensor.finish(); }
};

std::shared_ptr<attn::test::Memory> guarded_memory(Random& random, const Shape<4>& shape, std::size_t bytes,
                                                   bool may_repeat) {
  const Role role = may_repeat ? Role::input : Role::output;
  if (bytes == sizeof(bool)) return std::make_shared<GuardedMemory<bool>>(random, shape, role);
  if (bytes == sizeof(float)) return std::make_shared<GuardedMemory<float>>(random, shape, role);
  return std::make_shared<GuardedMemory<double>>(random, shape, role);
}

}  // namespace

attn::test::Setting setting_of(Case& c, const Sizes& s) {
  attn::test::Setting setting{
      {s.batch(), s.heads, s.kv_heads, 0, 0, s.head_dim, s.v_dim}, {}, c.random, true, s.each, s.has_rope};
  if (s.batch() > 0) {
    setting.sizes.q_len = setting.sizes.kv_len = std::numeric_limits<Index>::max();
    setting.numbers.q_offset = s.each[0].q_offset;
  }
  for (const Lens& l : s.each) {
    setting.sizes.q_len = std::min(setting.sizes.q_len, l.q_len);
    setting.sizes.kv_len = std::min(setting.sizes.kv_len, l.kv_len);
  }
  setting.memory = [&random = c.random](const Shape<4>& shape, std::size_t bytes, bool may_repeat) {
    return guarded_memory(random, shape, bytes, may_repeat);
  };
  return setting;
}

ScoreRow random_score(Case& c, const Sizes& s) {
  return c.random.pick(attn::test::random_rows(setting_of(c, s), &ErasedRows::scores));
}
GroupedRow random_grouped(Case& c, const Sizes& s) {
  return c.random.pick(attn::test::random_rows(setting_of(c, s), &ErasedRows::grouped));
}
OtherRow random_other(Case& c, const Sizes& s) {
  return c.random.pick(attn::test::random_rows(setting_of(c, s), &ErasedRows::others));
}

ListedRow random_lists(Case& c, const Sizes& s) {
  Random& r = c.random;
  const attn::test::Setting setting = setting_of(c, s);
  Index q_len = s.batch() > 0 ? s.each[0].q_len : 1;
  for (const Lens& l : s.each) q_len = l.q_len == q_len ? q_len : 1;
  const Index batch = r.percent(50) ? 1 : s.batch(), heads = r.of<Index>({1, s.kv_heads, s.heads}),
              rows = r.percent(60) ? q_len : 1, longest = setting.longest(),
              columns = r.from(0, std::min<Index>(r.percent(80) ? longest / 5 + 1 : longest, 200));
  const bool has_runs = r.percent(30);
  Index drawn = 0, next = 0;
  const auto draw = [&] {
    const Index b = drawn++ / (heads * rows * columns),
                keys = batch == 1 ? setting.sizes.kv_len : s.each[static_cast<std::size_t>(b)].kv_len;
    next = has_runs && next + 1 < keys && r.percent(90) ? next + 1 : r.from(-1, keys - 1);
    return next;
  };
  const attn::test::Held<Index> t(setting, {batch, heads, rows, columns}, draw, batch == 1);
  const Index group = s.heads / heads;
  return {"select" + t.text(), attn::select(t.view()), {[t, group](const Pair& p) {
            for (Index i = 0; i < t.dim(3); ++i)
              if (t(p.batch, p.head / group, p.row, i) == p.kv) return true;
            return false;
          }}};
}

MaskRow random_mask(Case& c, const Sizes& s, int depth) {
  const Index kind = depth > 0 ? c.random.from(0, 99) : 0;
  if (kind < 70) return c.random.pick(attn::test::random_rows(setting_of(c, s), &ErasedRows::masks));
  const auto keeps = [](const MaskRow& row) {
    return [keep = row.meaning.keep](const Pair& p) { return !keep || keep(p); };
  };
  const auto made = [](const std::string& name, const auto& mod, const auto& keep) {
    return MaskRow{name, attn::test::erased_mask(mod), {.keep = keep}};
  };
  const MaskRow a = random_mask(c, s, depth - 1);
  const auto x = keeps(a);
  if (kind < 80)
    return made("not_(" + a.name + ")", attn::not_(checked<false>(a.mod)), [x](const Pair& p) { return !x(p); });
  const MaskRow b = random_mask(c, s, depth - 1);
  const auto y = keeps(b);
  const std::string both = "(" + a.name + "," + b.name + ")";
  if (kind < 90)
    return made("any_of" + both, attn::any_of(checked<false>(a.mod), checked<true>(b.mod)),
                [x, y](const Pair& p) { return x(p) || y(p); });
  return made("all_of" + both, attn::all_of(checked<true>(a.mod), checked<false>(b.mod)),
              [x, y](const Pair& p) { return x(p) && y(p); });
}

}  // namespace fuzz
