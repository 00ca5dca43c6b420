// 16-bit floats, mixed with each other and with float.
#include "families.h"
#include "tensor_call.h"

namespace fuzz {
namespace {

template <class Q, class K, class V, class O>
void mixed(Case& c) {
  TensorCall<Q, K, V, O> call(c);
  if (c.random.percent(30)) return call.into(attn::Mods<>(), {});
  with_all_mods(c, call.sizes(), [&](const auto& mods, const Meanings& meanings) { call.into(mods, meanings); });
}

}  // namespace

void tensors_mixed(Case& c) {
  using H = Eigen::half;
  using B = Eigen::bfloat16;
  switch (c.random.from(0, 9)) {
    case 0:
      return mixed<H, H, H, H>(c);
    case 1:
      return mixed<B, B, B, B>(c);
    case 2:
      return mixed<float, H, H, float>(c);
    case 3:
      return mixed<float, B, B, float>(c);
    case 4:
      return mixed<H, float, B, float>(c);
    case 5:
      return mixed<B, H, float, H>(c);
    case 6:
      return mixed<float, float, float, H>(c);
    case 7:
      return mixed<B, B, B, float>(c);
#if ATTN_HAS_FLOAT16
    case 8:
      return mixed<Float16, H, Float16, Float16>(c);
#endif
    default:
      return mixed<float, float, B, B>(c);
  }
}

void tensors_half(Case& c) {
  const auto run = [&](auto&& call) {
    with_all_mods(c, call.sizes(), [&](const auto& mods, const Meanings& meanings) { call.make(mods, meanings); });
  };
  if (c.random.percent(50)) return run(TensorCall<Eigen::half>(c));
  run(TensorCall<Eigen::bfloat16>(c));
}

}  // namespace fuzz
