// A picture of a translation's attention weights.
#pragma once

#include "translate.h"

namespace translation {

/// Returns an SVG with the mean of each decoder layer's heads: a row per English piece, a column per Chinese character.
std::string attention_map_svg(const AttendedTranslation& attended);

}  // namespace translation
