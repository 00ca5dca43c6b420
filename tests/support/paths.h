// Calls of the library's two paths on the same inputs in any layout, with results as plain vectors.
#pragma once

#include "any_mods.h"
#include "attn/attn.h"
#include "compare.h"
#include "emulation.h"
#include "strided.h"

namespace attn::test {

/// Query, key and value, each in its own memory.
template <class T>
struct Arguments {
  Sizes sizes;
  Strided<T> q, k, v;

  explicit Arguments(const Inputs& in, Layout q_layout = Layout::bhsd, Layout k_layout = Layout::bhsd,
                     Layout v_layout = Layout::bhsd)
      : sizes(in.sizes),
        q(q_layout, {sizes.batch, sizes.heads, sizes.q_len, sizes.head_dim}, in.q),
        k(k_layout, {sizes.batch, sizes.kv_heads, sizes.kv_len, sizes.head_dim}, in.k),
        v(v_layout, {sizes.batch, sizes.kv_heads, sizes.kv_len, sizes.v_dim}, in.v) {}
};

/// Runs the flash path into an output of the given layout, and expects that nothing is written outside its elements.
template <class T>
Computed<T> flash(Arguments<T>& a, const AnyMods<T>& mods, const attn::Options& options = {},
                  Layout out_layout = Layout::bhsd) {
  const Sizes& s = a.sizes;
  Strided<T> out(out_layout, {s.batch, s.heads, s.q_len, s.v_dim});
  // As rank 4, (batch, heads, q_len, 1), so that lse has strides as well.
  Strided<Wide<T>> lse(out_layout, {s.batch, s.heads, s.q_len, 1});
  const auto lse4 = lse.view();
  const attn::TensorView<Wide<T>, 3> lse3(lse4.data(), {s.batch, s.heads, s.q_len},
                                          {lse4.stride(0), lse4.stride(1), lse4.stride(2)});
  mods.flash(out.view(), lse3, a.q.cview(), a.k.cview(), a.v.cview(), options);
  EXPECT_TRUE(out.gaps_untouched() && lse.gaps_untouched());
  return {out.read(), lse.read()};
}
template <class T, class M = attn::Mods<>>
Computed<T> flash(Arguments<T>& a, const M& mods = {}, const attn::Options& options = {},
                  Layout out_layout = Layout::bhsd) {
  return flash(a, AnyMods<T>(mods), options, out_layout);
}

template <class T>
Computed<T> naive(Arguments<T>& a, const AnyMods<T>& mods, const attn::Options& options = {},
                  std::vector<T>* weights = nullptr) {
  const auto r = mods.naive(a.q.cview(), a.k.cview(), a.v.cview(), options);
  const auto plain = []<class S, int rank>(const attn::Tensor<S, rank>& tensor) {
    return tensor.size() == 0 ? std::vector<S>() : std::vector<S>(tensor.data(), tensor.data() + tensor.size());
  };
  if (weights) *weights = plain(r.weights);
  return {plain(r.out), plain(r.lse)};
}
template <class T, class M = attn::Mods<>>
Computed<T> naive(Arguments<T>& a, const M& mods = {}, const attn::Options& options = {},
                  std::vector<T>* weights = nullptr) {
  return naive(a, AnyMods<T>(mods), options, weights);
}

inline attn::Options options_of(const Numbers& numbers) {
  attn::Options options{.scale = numbers.scale, .q_offset = numbers.q_offset, .executor = attn::serial()};
  if (numbers.sigmoid_bias) options.normaliser = attn::Normaliser::sigmoid(*numbers.sigmoid_bias);
  return options;
}

/// The available instruction sets that have separate kernels for tensors without 16-bit elements.
inline std::vector<attn::Isa> instruction_sets() {
  std::vector<attn::Isa> sets;
  for (attn::Isa isa : {attn::Isa::generic, attn::Isa::avx2, attn::Isa::avx512})
    if (attn::available(isa)) sets.push_back(isa);
  return sets;
}

/// `sets` and the available ones with integer dot products, which only affect 8-bit caches. The latter are omitted
/// while the matrix unit is emulated, because the emulation makes them available whatever the processor supports.
inline std::vector<attn::Isa> integer_instruction_sets(std::vector<attn::Isa> sets = instruction_sets()) {
  if (emulates_matrix_unit()) return sets;
  for (attn::Isa isa : {attn::Isa::avx2_vnni, attn::Isa::avx512_vnni})
    if (attn::available(isa)) sets.push_back(isa);
  return sets;
}

/// The available instruction sets with separate kernels for bf16, including products by vectors and on the matrix unit.
/// While the matrix unit is emulated, only that one: the other sets are tested in a separate run.
inline std::vector<attn::Isa> all_instruction_sets() {
  if (emulates_matrix_unit()) return {attn::Isa::amx};
  std::vector<attn::Isa> sets = instruction_sets();
  for (attn::Isa isa : {attn::Isa::avx512_bf16, attn::Isa::amx})
    if (attn::available(isa)) sets.push_back(isa);
  return sets;
}

/// The instruction sets with separate kernels for T, or for queries of T over a cache of S.
template <class T, class S = T>
std::vector<attn::Isa> sets_for() {
  const std::vector<attn::Isa> sets = sizeof(T) == 2 ? all_instruction_sets() : instruction_sets();
  return sizeof(S) == 1 ? integer_instruction_sets(sets) : sets;
}

/// A head_dim and v_dim that all kernels for a cache of S support; integer dot products need whole vectors.
template <class S>
constexpr attn::Index kDimOfKernels = sizeof(S) == 1 ? 64 : 32;

}  // namespace attn::test
