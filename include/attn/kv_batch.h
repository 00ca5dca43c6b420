// The old name of attn/kv_view.h.
#pragma once

#include "attn/kv_view.h"
