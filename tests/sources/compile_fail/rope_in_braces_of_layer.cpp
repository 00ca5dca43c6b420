// expect: attn: the rope option of a cache or layer is an attn::Rope object: write .rope = attn::Rope({.head_dim = 64})
#include <attn/attn.h>

int main() {
#ifdef ATTN_KO
  attn::MultiHeadAttention<float> layer({.embed_dim = 16, .heads = 2, .rope = {.head_dim = 8}});
#else
  attn::MultiHeadAttention<float> layer({.embed_dim = 16, .heads = 2, .rope = attn::Rope({.head_dim = 8})});
#endif
}
