// Function templates that a program of many units compiles in one unit; see attn/instantiate.h.
#pragma once

namespace attn::detail {

/// Part of the names of the functions that attn/instantiate.h compiles, so that a linker error, "undefined reference to
/// …", says how to fix it.
struct include_attn_instantiate_h_in_one_unit;

}  // namespace attn::detail

/// Instantiates the function template `name<T, …>`; `keyword` is `extern` for a declaration, empty for a definition.
#define ATTN_INSTANTIATE_ONE(keyword, T, name, ...) \
  keyword template decltype(name<T __VA_OPT__(, ) __VA_ARGS__>) name<T __VA_OPT__(, ) __VA_ARGS__>;

/// Follows a function template: units that define ATTN_EXTERN_TEMPLATES do not compile name<T, …> for the scalar types.
#ifdef ATTN_EXTERN_TEMPLATES
#define ATTN_COMPILED_ONCE(...)                     \
  ATTN_INSTANTIATE_ONE(extern, float, __VA_ARGS__)  \
  ATTN_INSTANTIATE_ONE(extern, double, __VA_ARGS__) \
  ATTN_INSTANTIATE_ONE(extern, long double, __VA_ARGS__)
#else
#define ATTN_COMPILED_ONCE(...)
#endif
