// Every instruction that is not left to the compilers, on operands in memory.
#include <cstring>
#include <utility>

#include "attn/cache/dot_kernels.h"
#include "attn/core/simd/avx512.h"
#include "attn/core/simd/half_vec.h"
#include "units.h"

namespace attn::test {
inline namespace ATTN_BUILT_FOR {

using detail::Avx512Instructions;
using V = detail::Vec<float, 64>;
using D = detail::Vec<double, 64>;
using Half = detail::HalfVec<64>;
template <int Bytes>
using Vnni = detail::VnniInstructions<Bytes>;

template <class X>
void read(X& x, const Lanes& from) {
  std::memcpy(&x, &from, sizeof(x));
}
template <class X>
Lanes lanes_of(const X& x) {
  Lanes to = {};
  std::memcpy(&to, &x, sizeof(x));
  return to;
}

// Each instruction is a kernel, which may be compiled for a set that the function around it lacks.
template <auto kKernel, detail::VectorSet kSet = detail::VectorSet::avx512>
Lanes run(const Lanes& a, const Lanes& b, const Lanes& c) {
  Lanes to = {};
  detail::compiled<kSet, kKernel>(a, b, c, to);
  return to;
}
#define ATTN_KERNEL(name)                                                                               \
  ATTN_TARGET_AVX512 inline void name([[maybe_unused]] const Lanes& a, [[maybe_unused]] const Lanes& b, \
                                      [[maybe_unused]] const Lanes& c, Lanes& to)

ATTN_KERNEL(round_to_bf16) {
  V low, high;
  read(low, a);
  read(high, b);
  Avx512Instructions::round_to_bf16(low, high);
  to = lanes_of(low);
}
ATTN_KERNEL(add_products) {
  V x, y, sum;
  read(x, a);
  read(y, b);
  read(sum, c);
  Avx512Instructions::add_products(sum, x, y);
  to = lanes_of(sum);
}
template <int kPredicate>
ATTN_KERNEL(any) {
  for (int i = 0; i < V::kLanes; ++i) {
    V x{}, y{};
    read(x, a);
    read(y, b);
    for (int j = 0; j < V::kLanes; ++j)
      if (j != i) x.raw[j] = 2, y.raw[j] = kPredicate == Avx512Instructions::kEqual ? 1 : 3;  // not in these lanes
    to.bits[i] = Avx512Instructions::any<kPredicate>(x, y);
  }
}
ATTN_KERNEL(take_fraction) {
  V x, f;
  read(x, a);
  Avx512Instructions::take_fraction(f, x);
  to = lanes_of(f);
}
ATTN_KERNEL(scale_by_power) {
  V p, x;
  read(p, a);
  read(x, b);
  Avx512Instructions::scale_by_power(p, x);
  to = lanes_of(p);
}
ATTN_KERNEL(replace_lower_words) {
  V x, from;
  Avx512Instructions::Words index;
  read(x, a);
  read(from, b);
  read(index, c);
  Avx512Instructions::replace_lower_words(x, from, index);
  to = lanes_of(x);
}
ATTN_KERNEL(load_and_insert_sixteen) {
  V x;
  const auto* const from = reinterpret_cast<const std::byte*>(&a) + c.bits[0] % 48;
  Avx512Instructions::load_sixteen(x.raw, from);
  Avx512Instructions::insert_sixteen<1>(x.raw, &b.bits[0]);
  Avx512Instructions::insert_sixteen<3>(x.raw, from + 1);
  to = lanes_of(x);
}
template <int Bytes>
ATTN_INLINE void round(const Lanes& a, const Lanes&, const Lanes&, Lanes& to) {
  typename Vnni<Bytes>::V x;
  typename Vnni<Bytes>::Ints rounded;
  read(x, a);
  Vnni<Bytes>::round(rounded, x);
  to = lanes_of(rounded);
}
template <int Bytes>
ATTN_INLINE void load_four(const Lanes& a, const Lanes&, const Lanes& c, Lanes& to) {
  typename Vnni<Bytes>::Ints x;
  Vnni<Bytes>::load_four(x, reinterpret_cast<const std::byte*>(&a) + c.bits[0] % 60);
  to = lanes_of(x);
}
template <int Bytes>
ATTN_INLINE void add_dots(const Lanes& a, const Lanes& b, const Lanes& c, Lanes& to) {
  typename Vnni<Bytes>::Ints x, y, sum;
  read(x, a);
  read(y, b);
  read(sum, c);
  Vnni<Bytes>::add_dots(sum, x, y);
  to = lanes_of(sum);
}
template <auto kWiden>
ATTN_KERNEL(widen) {
  to = lanes_of(kWiden(reinterpret_cast<const std::byte*>(&a)));
}
template <auto kNarrow>
ATTN_KERNEL(narrow) {
  V x;
  read(x, a);
  kNarrow(reinterpret_cast<std::byte*>(&to), x);
}
template <class X>
ATTN_KERNEL(multiply_add) {
  X x, y, z;
  read(x, a);
  read(y, b);
  read(z, c);
  to = lanes_of(X::multiply_add(x.raw, y.raw, z.raw));
}

std::vector<Instruction> instructions() {
  constexpr auto kAvx2 = detail::VectorSet::avx2;
  return {{"vcvtne2ps2bf16", run<round_to_bf16>},
          {"vdpbf16ps", run<add_products>, 4},
          {"vcmpps, equal", run<any<Avx512Instructions::kEqual>>},
          {"vcmpps, not less or equal", run<any<Avx512Instructions::kNotLessEqual>>},
          {"vreduceps", run<take_fraction>, 4},
          {"vscalefps", run<scale_by_power>, 4},
          {"vpermw", run<replace_lower_words>},
          {"vinserti32x4", run<load_and_insert_sixteen>},
          {"vcvtps2dq", run<round<64>>},
          {"vpbroadcastd", run<load_four<64>>},
          {"vpdpbusd", run<add_dots<64>>},
          {"vcvtps2dq, 32 bytes", run<round<32>, kAvx2>, 0, Isa::avx2},
          {"vpbroadcastd, 32 bytes", run<load_four<32>, kAvx2>, 0, Isa::avx2},
          {"vpdpbusd, 32 bytes", run<add_dots<32>, kAvx2>, 0, Isa::avx2_vnni},
          {"vcvtph2ps", run<widen<Half::widen_f16>>},
          {"vpmovzxwd", run<widen<Half::widen_bf16>>},
          {"vpmovsxbd", run<widen<Half::widen_i8>>},
          {"vcvtps2ph", run<narrow<Half::narrow_f16>>},
          {"rounding to bf16", run<narrow<Half::narrow_bf16>>},
          {"vfmaddps", run<multiply_add<V>>, 4},
          {"vfmaddpd", run<multiply_add<D>>, 8}};
}

}  // namespace ATTN_BUILT_FOR

#if defined(ATTN_SOFTWARE_AVX512)
std::vector<Instruction> software_instructions() { return instructions(); }
#else
std::vector<Instruction> hardware_instructions() { return instructions(); }
#endif

}  // namespace attn::test
