// Layer 2: a header beside the higher one.
#pragma once

#include "attn/high.h"
