// expect: attn: the rope of a cache or of a layer is an object, which both have: .rope = attn::Rope({.head_dim = 64})
#include <attn/attn.h>

int main() {
#ifdef ATTN_KO
  attn::MultiHeadAttention<float> layer({.embed_dim = 16, .heads = 2, .rope = {.head_dim = 8}});
#else
  attn::MultiHeadAttention<float> layer({.embed_dim = 16, .heads = 2, .rope = attn::Rope({.head_dim = 8})});
#endif
}
