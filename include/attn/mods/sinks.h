// sinks(): a logit per head that is added only to the denominator of the softmax.
#pragma once

#include <limits>
#include <utility>

#include "attn/core/mods/learned_mods.h"

namespace attn {

/// Adds a learned logit per query head to the denominator of the softmax only: weights are e^score / (e^logit + sum of
/// e^score) and sum to less than 1 (Xiao et al. 2024, section 3.3; with logits of 0 it is the "softmax off by one").
/// Other mods do not change the logit. A head with a logit of -inf has no sink.
///
/// lse includes the logit. A row without keys has an output of 0 and its head's logit as lse. If results are merged,
/// only one of them may include the sinks; a call that accumulates (Options::accumulate) ignores them, because the
/// first call already includes them.
/// @throws std::invalid_argument for a logit that is NaN or +inf, and from the attention call unless there is one logit
/// per head.
inline auto sinks(Numbers given_logits) {
  detail::ShortList<double>& logits = given_logits.values;
  for (std::size_t h = 0; h < logits.size(); ++h)
    detail::require(logits[h] <= std::numeric_limits<float>::max(), "sinks[", h,
                    "] must be finite as a float, or -inf, but is ", logits[h]);
  return bind_mod([logits = std::move(logits)](const Problem& problem) {
    const Index given = static_cast<Index>(logits.size());
    detail::require(given == problem.heads, "sinks has ", given, " logits for ", problem.heads, " heads");
    const auto logit = [all = logits.data()](Index head) { return all[head]; };
    return SinkMod<decltype(logit)>{{}, logit};
  });
}

/// sinks() with learned logits: the backward pass adds their gradients to `grad`, which has one element per head and
/// must outlive the mod.
template <class G>
auto sinks(Numbers given_logits, G&& grad) {
  sinks(given_logits);  // checks the logits
  auto gradient = detail::gradient_tensor(std::forward<G>(grad), "sinks");
  return bind_mod([logits = std::move(given_logits.values), gradient](const Problem& problem) {
    detail::check_by_head("sinks", static_cast<Index>(logits.size()), gradient, problem);
    return SinkMod<detail::LearnedLogit<decltype(gradient)>>{{}, {logits.data(), gradient}};
  });
}

}  // namespace attn
