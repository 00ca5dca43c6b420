// A header of the core that includes another package.
#pragma once

#include "attn/cache/pages.h"
