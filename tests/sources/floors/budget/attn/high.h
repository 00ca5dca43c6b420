// A header that is too long.
#pragma once

#include "attn/core/low.h"
