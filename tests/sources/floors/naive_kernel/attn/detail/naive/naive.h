// The definition, which includes a kernel indirectly.
#pragma once

#include "attn/detour.h"
