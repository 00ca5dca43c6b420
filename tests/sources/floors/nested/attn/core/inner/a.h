// A header of a nested folder on a lower floor.
#pragma once

#include "attn/core/b.h"
