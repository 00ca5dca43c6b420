// A header that includes itself through its neighbour.
#pragma once

#include "attn/core/b.h"
