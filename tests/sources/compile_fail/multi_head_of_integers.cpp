// expect: attn: T of a layer such as MultiHeadAttention<T> must be float, double, long double or a 16-bit float
#include <attn/attn.h>

#ifdef ATTN_KO
using Scalar = int;
#else
using Scalar = float;
#endif

int main() { const attn::MultiHeadAttention<Scalar> layer({.embed_dim = 4, .heads = 2}); }
