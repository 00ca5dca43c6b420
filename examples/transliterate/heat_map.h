// Heat maps of attention weights, as SVG.
#pragma once

#include <string>
#include <vector>

#include <attn/attn.h>

#include "vocabulary.h"

namespace transliterate {

/// One panel of a heat map: the weight of each source letter (a row) for each target letter (a column).
struct Panel {
  std::string title;
  Word source, target;
  attn::Tensor<float, 2> weights;  // (target, source)
};

/// Returns all panels as one SVG picture with a common colour scale. Text is escaped; combining marks are shown on a
/// dotted circle, invisible characters by their code points.
/// @throws std::invalid_argument if a panel's weights are not (target letters, source letters).
std::string heat_map_svg(const std::string& title, const std::string& explanation, const std::vector<Panel>& panels);

}  // namespace transliterate
