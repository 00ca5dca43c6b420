// expect: attn::KvView: tables must hold integers and have rank 2, with one row per sequence
#include <attn/attn.h>

#ifdef ATTN_KO
using Entry = float;
#else
using Entry = int;
#endif

int main() {
  const attn::Tensor<float, 4> pages({1, 1, 4, 2});
  const attn::Tensor<Entry, 2> tables({1, 1});
  const attn::KvView<float> batch(pages, pages, tables.view(), {3});
}
