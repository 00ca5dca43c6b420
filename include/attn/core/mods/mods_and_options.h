// Distinguishes the mods from the options in the arguments of an entry point.
#pragma once

#include "attn/core/base/check.h"
#include "attn/mod.h"
#include "attn/options.h"

namespace attn::detail::inline ATTN_BUILT_FOR {

/// Whether no option is set.
inline bool is_default(const Options& options) {
  // Names all members, so that this fails to compile when one is added.
  const auto& [names_only, mask, attn_mask, causal, is_causal, dropout_p, enable_gqa, threads, scale, q_offset,
               q_offsets, kv_offset, interleaved_heads, accumulate, executor, workspace, compute, isa, normaliser,
               row_invariant] = options;
  return !scale && !q_offset && q_offsets.values.empty() && !kv_offset && !interleaved_heads && !accumulate &&
         executor.is_default() && workspace.empty() && compute == Compute::native && !isa &&
         !normaliser.sigmoid_bias() && !row_invariant;
}

/// The mods and the options among the last two arguments of every call, `const M& mods = {}, const Options& options =
/// {}`. Braces have no type, so M is its default, Options, in `f(q, k, v, {.scale = 0.5})` and in `f(q, k, v, {},
/// {.scale = 0.5})`.
template <class M>
struct ModsAndOptions {
  ModsAndOptions(const M& given_mods, const Options& given_options) : mods(given_mods), options(given_options) {}

  const M& mods;
  const Options& options;
};

/// Without mods, the options are the first of the two arguments, or the second after `{}`.
template <>
struct ModsAndOptions<Options> {
  /// @throws std::invalid_argument if both are set: a run-time error, because the types do not show which is set.
  ModsAndOptions(const Options& first, const Options& second) : options(one_of(first, second)) {}

  static constexpr Mods<> mods = {};
  const Options& options;

 private:
  static const Options& one_of(const Options& first, const Options& second) {
    if (is_default(second)) return first;
    require(is_default(first),
            "options are given twice, in place of mods and after them; give them once, as in {.scale = 0.5, .q_offset "
            "= 0}");
    return second;
  }
};

}  // namespace attn::detail::inline ATTN_BUILT_FOR
