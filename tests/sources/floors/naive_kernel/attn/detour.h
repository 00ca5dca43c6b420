// The detour.
#pragma once

#include "attn/detail/flash/flash.h"
