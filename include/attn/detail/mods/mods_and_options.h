// Tells the mods and the options of an entry point apart.
#pragma once

#include "attn/detail/base/check.h"
#include "attn/mod.h"
#include "attn/options.h"

namespace attn::detail {
inline namespace ATTN_BUILT_FOR {

/// Whether nothing is set.
inline bool is_default(const Options& options) {
  // Names all members, so that this does not compile until it knows a new one.
  const auto& [names_only, mask, scale, q_offset, q_offsets, kv_offset, accumulate, executor, workspace, compute, isa,
               normaliser] = options;
  return !scale && !q_offset && q_offsets.values.empty() && !kv_offset && !accumulate && executor.is_default() &&
         workspace.empty() && compute == Compute::native && !isa && !normaliser.sigmoid_bias();
}

/// The last two arguments of every call, `const M& mods = {}, const Options& options = {}`, told apart. Braces have no
/// type, so M is its default, Options, in `f(q, k, v, {.scale = 0.5})` and in `f(q, k, v, {}, {.scale = 0.5})`.
template <class M>
struct ModsAndOptions {
  ModsAndOptions(const M& given_mods, const Options& given_options) : mods(given_mods), options(given_options) {}

  const M& mods;
  const Options& options;
};

/// Without mods: options are the first of the two, or the second after `{}`.
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
            "options are given twice, in place of mods and after them; give all of them once, as in {.scale = 0.5, "
            ".q_offset = 0}");
    return second;
  }
};

}  // namespace ATTN_BUILT_FOR
}  // namespace attn::detail
