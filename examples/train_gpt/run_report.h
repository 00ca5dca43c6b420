// The report and the loss curve of a training run.
#pragma once

#include "report.h"
#include "run.h"

namespace train_gpt {

training::LossCurve loss_curve(const State& state);

/// Builds the page: losses, samples, a summary, and attention maps for a part of the validation text and for generated
/// text.
training::Report report(State& state, const Text& text, const Outcome& outcome);

}  // namespace train_gpt
