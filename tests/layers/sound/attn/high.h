// Layer 2: a higher header.
#pragma once

#include <vector>

#include "attn/low.h"
