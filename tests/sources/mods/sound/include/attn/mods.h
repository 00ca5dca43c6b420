#include "attn/mods/diagonal.h"
#include "attn/mods/twice.h"
