// The old name of attn/cached_attention.h.
#pragma once

#include "attn/cached_attention.h"
