// Attention weights as a picture.
#pragma once

#include <string>
#include <vector>

#include <attn/attn.h>

#include "vocabulary.h"

namespace transliterate {

/// One square of a heat map: how much each target letter (a column) looked at each source letter (a row).
struct Panel {
  std::string title;
  Word source, target;
  attn::Tensor<float, 2> weights;  // (target, source)
};

/// All panels as one SVG picture with a common colour scale. Text is escaped; marks and characters that cannot be seen
/// by themselves are shown on a dotted circle or by their number.
/// @throws std::invalid_argument if a panel's weights are not (target letters, source letters).
std::string heat_map_svg(const std::string& title, const std::string& explanation, const std::vector<Panel>& panels);

}  // namespace transliterate
