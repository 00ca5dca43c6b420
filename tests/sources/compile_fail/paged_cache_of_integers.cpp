// expect: attn: a cache must hold float, double, long double, 16-bit floats, attn::Float8E4M3
#include <attn/attn.h>

#ifdef ATTN_KO
using Scalar = int;
#else
using Scalar = float;
#endif

int main() { const attn::PagedKvCache<Scalar> cache({.pages = 1, .head_dim = 4}); }
