// Where a model looked, as a picture.
#pragma once

#include "translate.h"

namespace translation {

/// The mean of each decoder layer's heads, as SVG: a row for each English piece, a column for each Chinese character.
std::string attention_map_svg(const Look& look);

}  // namespace translation
