// A header that names its neighbour without the folder.
#pragma once

#include "near.h"
