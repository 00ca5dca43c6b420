// Includes all of attn except openmp.h, mpi.h and instantiate*.h.
#pragma once

#include "attn/core/base/requirements.h"
#if __cplusplus >= 202002L  // an older standard gets one error, not hundreds

#include "attn/additive_attention.h"
#include "attn/additive_backward.h"
#include "attn/causal_conv.h"
#include "attn/core.h"
#include "attn/delta_rule.h"
#include "attn/gated_attention.h"
#include "attn/jvp.h"
#include "attn/kv_cache.h"
#include "attn/kv_caches.h"
#include "attn/latent_attention.h"
#include "attn/lightning_indexer.h"
#include "attn/linear.h"
#include "attn/linear_attention.h"
#include "attn/multi_head.h"
#include "attn/paged_kv_cache.h"
#include "attn/positions.h"
#include "attn/recurrent_backward.h"
#include "attn/recurrent_state_backward.h"
#include "attn/rope.h"

#endif
