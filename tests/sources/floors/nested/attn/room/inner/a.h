// A room inside another, on a floor of its own.
#pragma once

#include "attn/room/b.h"
