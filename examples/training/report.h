// A page about a training run.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include <attn/attn.h>

#include "loss_curve.h"

namespace training {

/// What the model wrote after some number of steps.
struct Sample {
  attn::Index step;
  std::string text;  ///< any number of lines
};

/// Where a model looked, in all of its layers.
struct AttentionMaps {
  std::string title;
  std::vector<std::string> rows, columns;           ///< what stands beside each query and above each key
  std::vector<attn::Tensor<float, 4>> layers = {};  ///< weights of each layer, (1, heads, queries, keys)
};

struct Report {
  std::string title;
  std::string introduction;
  std::vector<std::pair<std::string, std::string>> figures;  ///< names and values: parameters, losses, speed
  LossCurve losses;
  std::vector<Sample> samples;
  std::vector<AttentionMaps> maps;
};

/// Makes the page, one file of HTML that needs no other. Its samples and maps can be stepped through. All text is UTF-8
/// and is shown as it is, whatever it holds.
/// @throws std::invalid_argument if weights are not those of one text, or do not match their labels.
std::string report_html(const Report& report);

}  // namespace training
