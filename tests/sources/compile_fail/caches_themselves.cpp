// expect: attn: KvCaches hold the keys of several layers: pass step.layer(l) of caches.step({a, b}, tokens), or, to
// expect: only read them, caches.view(l, {a, b})
#include <attn/attn.h>

int main() {
  attn::KvCaches<float> caches({.layers = 2, .head_dim = 8, .pages = 4});
  const attn::Index a = caches.add();
  const attn::Tensor<float, 4> q({1, 1, 1, 8});
#ifdef ATTN_KO
  attn::attention(q, caches);
#else
  attn::attention(q, caches.view(0, {a}));
#endif
}
