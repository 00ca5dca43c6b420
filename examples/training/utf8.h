// Text as Unicode letters, as the example transliterate has it.
#pragma once

#include "../transliterate/utf8.h"

namespace training {

using transliterate::code_point;
using transliterate::code_point_name;
using transliterate::is_space;
using transliterate::letter_length;
using transliterate::letters_of;

}  // namespace training
