// A higher header.
#pragma once

#include <vector>
#include "attn/low/low.h"
#include "attn/peer.h"
