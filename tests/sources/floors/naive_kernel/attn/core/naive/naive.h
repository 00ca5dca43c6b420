// The definition, which includes a kernel indirectly.
#pragma once

#include "attn/core/detour.h"
