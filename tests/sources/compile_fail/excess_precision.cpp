// with: -U__FLT_EVAL_METHOD__
// with: -D__FLT_EVAL_METHOD__=2
// expect: attn: this target computes floats with excess precision (x87): compile with -msse2 -mfpmath=sse
#include <attn/attn.h>
