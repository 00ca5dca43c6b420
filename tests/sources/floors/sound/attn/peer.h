// Its neighbour, on the same floor.
#pragma once

#include "attn/low/low.h"
