// A header of another package.
#pragma once

#include "attn/high.h"
