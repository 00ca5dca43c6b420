// Only macros, and nothing that is documented.
#pragma once

#define ATTN_EMPTY
