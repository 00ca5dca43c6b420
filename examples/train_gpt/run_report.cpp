#include "run_report.h"

#include <algorithm>

#include "decimals.h"

namespace train_gpt {

namespace {

constexpr std::size_t kMapLength = 32;  // characters; more would be too small to see

using training::grouped;

training::AttentionMaps attention_of(const State& state, const std::string& title, std::vector<std::int32_t> tokens) {
  const auto most = std::min(kMapLength, static_cast<std::size_t>(state.options.model.context));
  tokens.resize(std::min(tokens.size(), most));
  nn::Tokens batch({1, static_cast<Index>(tokens.size())});
  std::copy(tokens.begin(), tokens.end(), batch.data());
  training::AttentionMaps maps{title, {}, {}, {}};
  for (const std::int32_t token : tokens) maps.rows.push_back(state.vocabulary.character(token));
  maps.columns = maps.rows;
  state.model(batch, &maps.layers);
  return maps;
}

}  // namespace

training::LossCurve loss_curve(const State& state) {
  training::LossCurve curve{{state.losses.begin(), state.losses.end()}, {}};
  if (state.options.model.dropout > 0) {
    curve.training_name = "each step, with dropout";
    curve.validation_name = "validation, without";
  }
  for (const auto& [step, loss] : state.validation) curve.validation.push_back({step, static_cast<double>(loss)});
  return curve;
}

training::Report report(State& state, const Text& text, const Outcome& outcome) {
  const Options& o = state.options;
  const std::string source = text.file().empty() ? text.name() : text.file().filename().string();
  training::Report page{.title = "A GPT learns to write",
                        .introduction = "Trained on " + source + ", character by character.",
                        .summary = {},
                        .losses = loss_curve(state),
                        .samples = {},
                        .maps = {}};
  using training::fixed;
  const std::string training_loss = state.losses.empty() ? "none" : training::last_losses_text(page.losses.training);
  const bool resumed = outcome.steps < state.step;
  page.summary = {
      {"validation loss", outcome.interrupted ? "not yet" : fixed(outcome.validation_loss, 3)},
      {"training loss", training_loss},
      {"steps", grouped(state.step) + " of " + grouped(o.steps)},
      {"time",
       fixed(outcome.seconds, 1) + " s" + (resumed ? " for the last " + grouped(outcome.steps) + " steps" : "")},
      {"speed", grouped(static_cast<Index>(outcome.tokens_per_second)) + " characters/s"},
      {"parameters", grouped(nn::count_parameters<float>(state.model))},
      {"model", std::to_string(o.model.layers) + " layers, " + std::to_string(o.model.heads) + " heads, " +
                    std::to_string(o.model.features) + " features"},
      {"context", grouped(o.model.context) + " characters"},
      {"batch", grouped(o.batch) + " sequences"},
      {"text", grouped(text.size()) + " characters, " + std::to_string(state.vocabulary.size()) + " distinct"}};
  for (const auto& [step, sample] : state.samples) page.samples.push_back({step, sample});
  const auto held_back = text.validation();
  page.maps.push_back(attention_of(state, "From the validation text", {held_back.begin(), held_back.end()}));
  if (!state.samples.empty())
    page.maps.push_back(attention_of(state, "Generated text", state.vocabulary.encode(state.samples.rbegin()->second)));
  return page;
}

}  // namespace train_gpt
