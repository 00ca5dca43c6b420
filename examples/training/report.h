// An HTML report about a training run.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include <attn/attn.h>

#include "loss_curve.h"

namespace training {

/// Text that the model generated after some number of steps.
struct Sample {
  attn::Index step;
  std::string text;  ///< any number of lines
};

/// The attention weights of a model, in all of its layers.
struct AttentionMaps {
  std::string title;
  std::vector<std::string> rows, columns;           ///< labels of queries and of keys
  std::vector<attn::Tensor<float, 4>> layers = {};  ///< weights of each layer, (1, heads, queries, keys)
};

struct Report {
  std::string title;
  std::string introduction;
  std::vector<std::pair<std::string, std::string>> summary;  ///< names and values: parameters, losses, speed
  LossCurve losses;
  std::vector<Sample> samples;
  std::vector<AttentionMaps> maps;
};

/// Returns the page, a single HTML file without dependencies. Readers can step through its samples and maps. All text
/// is UTF-8, and is escaped.
/// @throws std::invalid_argument if weights are not those of one sequence, or do not match their labels.
std::string report_html(const Report& report);

}  // namespace training
