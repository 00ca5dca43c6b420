#include "tensor_call.h"

namespace fuzz {

Sizes random_sizes(Case& c, double most) {
  Random& r = c.random;
  Sizes s;
  s.head_dim = r.features();
  s.v_dim = r.percent(50) ? s.head_dim : r.features();
  s.kv_heads = r.of<Index>({1, 1, 1, 2, 2, 3});
  Index group = r.of<Index>({1, 1, 1, 2, 3, 4, 8}), batch = r.of<Index>({1, 1, 2, 2, 3});
  Lens l{r.length(300), r.length(300), 0};
  const Index kind = r.from(0, 99);
  if (kind < 12) l.q_len = 1;                                                      // decoding
  if (kind < 3) group = r.of<Index>({32, 33, 64, 128}), l.kv_len = r.length(130);  // heads that become a tile's queries
  if (kind == 12) l.q_len = r.from(1, 3), l.kv_len = r.from(1000, 3000);
  if (kind == 12 && r.percent(30)) {  // more than one stretch of sums
    l.kv_len = r.from(4000, 14000);
    s.head_dim = std::min<Index>(s.head_dim, 16), s.v_dim = std::min<Index>(s.v_dim, 16);
  }
  if (kind == 13) l.kv_len = r.from(0, 3), l.q_len = r.from(1000, 3000);
  if (kind >= 14 && kind < 24) l.kv_len = l.q_len;
  const auto work = [&] {
    return static_cast<double>(batch * s.kv_heads * group * l.q_len) * static_cast<double>(l.kv_len) *
           static_cast<double>(s.head_dim + s.v_dim + 20);
  };
  if (work() > most) batch = 1;
  if (work() > most) s.kv_heads = 1;
  if (work() > most) group = std::min<Index>(group, 2);
  while (work() > most && l.q_len > 1) l.q_len = (l.q_len + 1) / 2;
  s.heads = s.kv_heads * group;
  l.q_offset = l.kv_len - l.q_len;
  if (r.percent(20)) l.q_offset = r.of<Index>({0, l.q_offset + r.from(-70, 70), r.from(-10, 200), 1000000});
  if (kind == 24) batch = 0;
  s.each.assign(static_cast<std::size_t>(batch), l);
  c.text << " B=" << batch << " H=" << s.heads << '/' << s.kv_heads << " N=" << l.q_len << " M=" << l.kv_len
         << " D=" << s.head_dim << ',' << s.v_dim << " offset=" << l.q_offset;
  return s;
}

ValueDistribution::ValueDistribution(Case& c, bool narrow) {
  Random& r = c.random;
  kind_ = r.from(0, 99);
  size_ = narrow ? r.uniform(5, 60) : r.percent(30) ? r.uniform(300, 30000) : r.uniform(5, 300);
  value_ = r.of({1.0, 1.0, 0.01, 100.0});
  offset_ = r.of({0.0, 0.0, 0.0, 3.0});
  c.text << " distribution=" << kind_;
}

double ValueDistribution::q(Random& r) const {
  const double x = r.normal();
  if (kind_ >= 40 && kind_ < 50) return size_ * x;                           // huge scores
  if (kind_ >= 50 && kind_ < 58) return x < 0 ? -x : x;                      // of one sign
  if (kind_ >= 58 && kind_ < 65) return static_cast<double>(r.from(-2, 2));  // exact
  if (kind_ >= 65 && kind_ < 70) return 0;
  if (kind_ >= 70 && kind_ < 76) return 1e-6 * x;  // denormal in half
  return x;
}
double ValueDistribution::k(Random& r, Index j) const {
  const double x = r.normal();
  if (kind_ >= 50 && kind_ < 58) return x < 0 ? -x : x;
  if (kind_ >= 58 && kind_ < 65) return static_cast<double>(r.from(-2, 2));
  if (kind_ >= 76 && kind_ < 80) return 0.5;                                // all keys are equal
  if (kind_ >= 80 && kind_ < 88) return 0.02 * static_cast<double>(j) * x;  // the largest score grows tile by tile
  if (kind_ >= 88 && kind_ < 94) return (j < 3 ? 8 : 0.2) * x;              // few large keys, then small ones
  return x;
}
double ValueDistribution::v(Random& r) const {
  const double x = r.normal();
  if (kind_ >= 58 && kind_ < 65) return static_cast<double>(r.from(-9, 9));
  return value_ * (x + offset_);
}

}  // namespace fuzz
