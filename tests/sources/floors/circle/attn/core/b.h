// The neighbour.
#pragma once

#include "attn/core/a.h"
