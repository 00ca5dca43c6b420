// Layer 2: every named mod.
#pragma once

#include "attn/mods/alibi.h"
#include "attn/mods/bias.h"
#include "attn/mods/causal.h"
#include "attn/mods/full.h"
#include "attn/mods/keep.h"
#include "attn/mods/key_lengths.h"
#include "attn/mods/sliding_window.h"
#include "attn/mods/softcap.h"
