// A training run as a page, and as a curve.
#pragma once

#include "report.h"
#include "run.h"

namespace train_gpt {

training::LossCurve loss_curve(const State& state);

/// Makes the page: losses, samples, figures, and where the model looks in a piece of the validation text and in one of
/// its own.
training::Report report(State& state, const Text& text, const Outcome& outcome);

}  // namespace train_gpt
