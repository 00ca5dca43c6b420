// A header that includes one of a higher floor.
#pragma once

#include "attn/high.h"
