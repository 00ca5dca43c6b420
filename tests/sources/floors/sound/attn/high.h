// A higher header.
#pragma once

#include <vector>
#include "attn/core/low.h"
