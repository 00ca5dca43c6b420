// The old name of attn/attention_weights.h.
#pragma once

#include "attn/attention_weights.h"
