// The kernels of calls over a cache whose elements have a type that no tensor has.
#pragma once

#include "attn/core/flash/choose_kernels.h"

namespace attn::detail::inline ATTN_BUILT_FOR {

/// kernel_family() for float, whose kernels read keys and values of type kStored as well.
template <DType kStored>
const KernelFamily<float>& cached_family(VectorSet vectors) {
  return with_vectors<float>(vectors, []<VectorSet kSet>() -> const KernelFamily<float>& {
    static const KernelFamily<float> family = [] {
      using Decode = DecodeKernels<float, kVectorBytes<kSet>, kVectorRegisters<kSet>, kStored>;
      KernelFamily<float> all = kernel_family<float>(kSet);
      all.decode.products[static_cast<int>(kStored)] = {compiled<kSet, Decode::score>, compiled<kSet, Decode::value>};
      all.pack_rows = compiled<kSet, PackingKernels<float, kVectorBytes<kSet>, true, kStored>::pack_rows>;
      return all;
    }();
    return family;
  });
}
template <DType kStored>
const KernelFamily<float>& cached_sigmoids(VectorSet vectors) {
  return with_vectors<float>(vectors, []<VectorSet kSet>() -> const KernelFamily<float>& {
    static const KernelFamily<float> family = with_sigmoid(cached_family<kStored>(kSet), kSet);
    return family;
  });
}
/// Products are never rounded to bf16, because kernels for bf16 do not read kStored.
template <DType kStored>
ChosenKernels<float> choose_cached(const Options& options, Bf16Products) {
  const VectorSet vectors = vectors_of(isa_of(options));
  const KernelFamily<float>& family = cached_family<kStored>(vectors);
  return {family, family, vectors, Amx::unsupported};
}

template <DType kStored>
inline constexpr KernelChoice<float> kCachedChoice = {choose_cached<kStored>, cached_sigmoids<kStored>};

/// The kernels for keys and values of type kStored.
template <class T, DType kStored>
constexpr const KernelChoice<T>& kernels_over_cache() {
  if constexpr (kStored < DType::i8)
    return kKernelChoice<T, kStored != DType::native>;
  else
    return kCachedChoice<kStored>;
}

}  // namespace attn::detail::inline ATTN_BUILT_FOR
