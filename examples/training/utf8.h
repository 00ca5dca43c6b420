// UTF-8 text as code points, from the example transliterate.
#pragma once

#include "../transliterate/utf8.h"

namespace training {

using transliterate::code_point;
using transliterate::code_point_name;
using transliterate::is_space;
using transliterate::letter_length;
using transliterate::letters_of;

}  // namespace training
