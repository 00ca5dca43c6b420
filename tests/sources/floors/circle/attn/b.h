// The neighbour.
#pragma once

#include "attn/a.h"
