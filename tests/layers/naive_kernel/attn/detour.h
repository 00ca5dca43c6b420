// Layer 3: the detour.
#pragma once

#include "attn/flash.h"
