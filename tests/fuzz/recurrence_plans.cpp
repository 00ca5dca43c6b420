// Random sizes and masks of recurrences.
#include "recurrence_call.h"

namespace fuzz {
namespace {

Index edge_of_chunk(Random& r) {
  return r.percent(50) ? r.of<Index>({0, 1, 2, 15, 16, 17, 31, 33, 63, 64, 65, 127, 128, 129, 191, 193})
                       : r.length(300);
}

}  // namespace

RecurrentPlan random_recurrence(Case& c, bool gated) {
  Random& r = c.random;
  RecurrentPlan p{};
  p.gated = gated;
  p.batch = r.of<Index>({1, 1, 2, 3}), p.kv_heads = r.of<Index>({1, 1, 2, 3, 8});
  Index group = r.of<Index>({1, 1, 2, 4});
  p.head_dim = r.features(), p.v_dim = r.percent(50) ? p.head_dim : r.features();
  p.q_len = p.kv_len = edge_of_chunk(r);
  if (r.percent(20)) p.q_len = p.kv_len = 1;
  const bool is_long = r.percent(10);
  if (is_long) {  // several segments
    p.q_len = p.kv_len = r.from(1025, 3800);
    p.head_dim = r.from(1, 7), p.v_dim = r.from(1, 7), p.kv_heads = r.from(1, 2);
  }
  if (!gated && r.percent(50)) (r.percent(50) ? p.q_len : p.kv_len) = is_long ? r.from(0, 3800) : edge_of_chunk(r);
  const auto work = [&] {
    const Index states = p.batch * p.kv_heads;
    return static_cast<double>(states * (2 * p.kv_len + group * p.q_len)) * static_cast<double>(p.head_dim * p.v_dim);
  };
  constexpr double kMost = 1.2e6;
  if (work() > kMost) p.batch = std::min<Index>(p.batch, 2), group = std::min<Index>(group, 2);
  if (work() > kMost) p.kv_heads = std::min<Index>(p.kv_heads, 2);
  if (work() > kMost && !is_long) p.v_dim = std::min<Index>(p.v_dim, r.from(1, 20));
  if (work() > kMost && !is_long) p.head_dim = std::min<Index>(p.head_dim, r.from(1, 40));
  if (work() > kMost) p.batch = group = 1;
  p.heads = p.kv_heads * group;
  p.causal = gated || r.percent(65);
  p.has_state = r.percent(40);
  if (r.percent(40)) p.lengths = r.lengths(std::vector<Index>(static_cast<std::size_t>(p.batch), p.kv_len));
  p.q_offsets.assign(static_cast<std::size_t>(p.batch), gated ? 0 : p.kv_len - p.q_len);
  if (!p.has_state && p.q_len <= p.kv_len && r.percent(25)) {
    Index id = r.from(0, 3), left = 0;
    for (Index j = 0; j < p.kv_len; ++j) {
      if (left-- == 0) id += r.from(1, 2), left = r.percent(50) ? r.from(0, 8) : r.from(0, 100);
      p.ids.push_back(id);
    }
  }
  if (!gated && r.percent(30)) {
    const bool each = p.given_offsets = r.percent(40);
    p.given_offset = !each;
    Index one = 0;
    for (std::size_t b = 0; b < p.q_offsets.size(); ++b) {
      if (b == 0 || each) one = p.ids.empty() ? r.from(-70, p.kv_len + 20) : r.from(0, p.kv_len - p.q_len);
      p.q_offsets[b] = one;
    }
  }
  if (p.has_state && p.causal && p.q_len == p.kv_len && !p.given_offset && !p.given_offsets &&
      r.percent(is_long ? 20 : 60))
    for (Index at = 0; at < p.kv_len;) {
      at += r.percent(50) ? 1 : r.percent(10) ? 0 : edge_of_chunk(r);
      if (at < p.kv_len && p.cuts.size() < 40) p.cuts.push_back(at);
    }
  p.cuts.push_back(p.kv_len);
  c.text << " B=" << p.batch << " H=" << p.heads << '/' << p.kv_heads << " N=" << p.q_len << " M=" << p.kv_len
         << " D=" << p.head_dim << ',' << p.v_dim << (p.causal ? " causal" : "") << (p.has_state ? " state" : "");
  if (!p.lengths.empty()) c.text << " lengths" << listed(p.lengths);
  if (!p.ids.empty()) c.text << " documents" << listed(p.ids);
  if (p.given_offset || p.given_offsets) c.text << " offsets" << listed(p.q_offsets);
  if (p.cuts.size() > 1) c.text << " cuts" << listed(p.cuts);
  return p;
}

}  // namespace fuzz
