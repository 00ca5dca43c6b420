// Layer 3: the definition, which reaches a kernel by a detour.
#pragma once

#include "attn/detour.h"
