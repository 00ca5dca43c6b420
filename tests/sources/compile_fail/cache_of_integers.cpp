// expect: attn: a cache must hold float, double, long double, 16-bit floats or std::int8_t
#include <attn/attn.h>

#ifdef ATTN_KO
using Scalar = int;
#else
using Scalar = float;
#endif

int main() { const attn::KvCache<Scalar> cache({.head_dim = 4}); }
