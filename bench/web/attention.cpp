// A WebAssembly module with one call, attention(), which JavaScript makes over arrays in the module's memory.
#include <algorithm>
#include <cstddef>
#include <cstdlib>

#include "attn/attn.h"

#define EXPORTED(name) extern "C" __attribute__((export_name(#name)))

/// Returns memory for `count` floats.
EXPORTED(allocate) float* allocate(std::size_t count) {
  constexpr std::size_t kLine = 64;
  const std::size_t bytes = std::max<std::size_t>(count, 1) * sizeof(float);
  return static_cast<float*>(std::aligned_alloc(kLine, (bytes + kLine - 1) / kLine * kLine));
}
EXPORTED(release) void release(float* memory) { std::free(memory); }

/// out = attention(q, k, v) over contiguous arrays (batch, heads, len, dim).
EXPORTED(attend)
void attend(float* out, const float* q, const float* k, const float* v, int batch, int heads, int q_len, int kv_len,
            int dim, bool is_causal) {
  const auto view = [&]<class T>(T* data, int len) { return attn::TensorView<T, 4>(data, {batch, heads, len, dim}); };
  const auto call = [&](const auto& mods) {
    attn::attention_into(view(out, q_len), view(q, q_len), view(k, kv_len), view(v, kv_len), mods);
  };
  if (is_causal)
    call(attn::causal());
  else
    call(attn::Mods<>{});
}
