// A header that includes itself by way of its neighbour.
#pragma once

#include "attn/b.h"
