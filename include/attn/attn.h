// Layer 5: everything.
#pragma once

#include "attn/attention.h"
#include "attn/kv_cache.h"
#include "attn/merge.h"
#include "attn/multi_head.h"
#include "attn/paged_kv_cache.h"
#include "attn/rope.h"
#include "attn/version.h"
#include "attn/weights.h"
