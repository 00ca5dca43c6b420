// A header of a nested folder with its own floor.
#pragma once

#include "attn/room/b.h"
