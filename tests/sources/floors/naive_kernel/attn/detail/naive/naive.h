// The definition, which reaches a kernel by a detour.
#pragma once

#include "attn/detour.h"
