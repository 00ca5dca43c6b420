// Layer 1: a header that includes upwards.
#pragma once

#include "attn/high.h"
