// The detour.
#pragma once

#include "attn/core/flash/flash.h"
