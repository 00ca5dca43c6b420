// A header that includes upwards.
#pragma once

#include "attn/high.h"
