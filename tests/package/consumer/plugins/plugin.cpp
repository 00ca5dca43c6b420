// A plug-in whose interface consists of pointers and sizes, without types of attn or Eigen.
#include <attn/attn.h>

#if defined(__GNUC__)
#define PLUGIN_API extern "C" __attribute__((visibility("default")))
#else
#define PLUGIN_API extern "C"
#endif

/// out = causal attention of heads x tokens x dim row-major floats, on two threads.
/// @throws std::invalid_argument for a negative dim.
PLUGIN_API void plugin_attention(float* out, const float* query, const float* key, const float* value, long heads,
                                 long tokens, long dim);

void plugin_attention(float* out, const float* query, const float* key, const float* value, long heads, long tokens,
                      long dim) {
  static const attn::Executor executor = attn::threads(2);
  auto result = attn::bhsd(out, 1, heads, tokens, dim);
  attn::attention_into(result, attn::bhsd(query, 1, heads, tokens, dim), attn::bhsd(key, 1, heads, tokens, dim),
                       attn::bhsd(value, 1, heads, tokens, dim), attn::causal(), {.executor = executor});
}
