// expect: attn::block_sparse: the map must hold bool (true = keep)
#include <attn/attn.h>

#ifdef ATTN_KO
using Element = float;
#else
using Element = bool;
#endif

int main() { attn::block_sparse(attn::Tensor<Element, 2>({2, 2}), 4, 4); }
