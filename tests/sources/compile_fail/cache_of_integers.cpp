// expect: attn: a cache holds float, double, long double, floats of 16 bits, or std::int8_t
#include <attn/attn.h>

#ifdef ATTN_KO
using Scalar = int;
#else
using Scalar = float;
#endif

int main() { const attn::KvCache<Scalar> cache({.head_dim = 4}); }
