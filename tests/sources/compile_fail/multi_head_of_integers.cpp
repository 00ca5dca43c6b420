// expect: attn: MultiHeadAttention<T> computes with T = float, double, long double, or floats
#include <attn/attn.h>

#ifdef ATTN_KO
using Scalar = int;
#else
using Scalar = float;
#endif

int main() { const attn::MultiHeadAttention<Scalar> layer({.embed_dim = 4, .heads = 2}); }
