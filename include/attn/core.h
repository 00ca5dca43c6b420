// Includes the core of attn: attention over tensors, its gradients and weights, and all mods.
#pragma once

#include "attn/core/base/requirements.h"
#if __cplusplus >= 202002L  // an older standard gets one error, not hundreds

#include "attn/attention.h"
#include "attn/attention_weights.h"
#include "attn/backward.h"
#include "attn/merge.h"
#include "attn/mods.h"
#include "attn/version.h"

#endif
