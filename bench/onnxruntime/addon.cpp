// A Node.js addon with one function, attend(), which calls attn over typed arrays.
//
//     attend(out, q, k, v, {type, batch, heads, kvHeads, qLen, kvLen, dim, causal, threads, headsFirst})
//
// out and q are (batch, len, heads, dim); k and v are (batch, len, heads, dim), or (batch, heads, len, dim) if
// headsFirst. type is 'float32' or 'float16'.
#include <node_api.h>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <map>
#include <stdexcept>
#include <string>

#include "attn/attention.h"
#include "attn/parallel.h"

namespace {

void check(napi_status status) {
  if (status != napi_ok) throw std::runtime_error("attend: wrong arguments; see addon.cpp");
}

/// The memory of a typed array, which must have `count` elements of `bytes` bytes.
void* memory_of(napi_env env, napi_value array, std::size_t count, std::size_t bytes) {
  napi_typedarray_type type{};
  std::size_t length = 0, offset = 0;
  void* data = nullptr;
  napi_value buffer{};
  check(napi_get_typedarray_info(env, array, &type, &length, &data, &buffer, &offset));
  if (type != (bytes == 2 ? napi_uint16_array : napi_float32_array) || length != count)
    throw std::runtime_error("attend: a typed array has " + std::to_string(length) + " elements instead of " +
                             std::to_string(count) + ", or another type");
  return data;
}

attn::Index integer(napi_env env, napi_value options, const char* name) {
  napi_value value{};
  std::int64_t n = 0;
  check(napi_get_named_property(env, options, name, &value));
  check(napi_get_value_int64(env, value, &n));
  return n;
}

bool flag(napi_env env, napi_value options, const char* name) {
  napi_value value{};
  bool is_set = false;
  check(napi_get_named_property(env, options, name, &value));
  check(napi_get_value_bool(env, value, &is_set));
  return is_set;
}

/// Threads are started once for each number of them, as a session of ONNX Runtime starts its own.
const attn::Executor& threads(int count) {
  static std::map<int, attn::Executor> pools;
  return pools.try_emplace(count, attn::threads(count)).first->second;
}

template <class T>
void attend(napi_env env, const napi_value* arrays, napi_value options) {
  const auto at = [&](const char* name) { return integer(env, options, name); };
  const attn::Index batch = at("batch"), heads = at("heads"), kv_heads = at("kvHeads"), q_len = at("qLen"),
                    kv_len = at("kvLen"), dim = at("dim");
  const auto memory = [&](int i, attn::Index count) {
    return static_cast<T*>(memory_of(env, arrays[i], static_cast<std::size_t>(count), sizeof(T)));
  };
  const attn::Index rows = batch * q_len * heads, keys = batch * kv_len * kv_heads;
  const auto out = attn::bshd(memory(0, rows * dim), batch, q_len, heads, dim);
  const auto q = attn::bshd<const T>(memory(1, rows * dim), batch, q_len, heads, dim);
  const auto cached = [&](int i) {
    const T* const data = memory(i, keys * dim);
    return flag(env, options, "headsFirst") ? attn::bhsd(data, batch, kv_heads, kv_len, dim)
                                            : attn::bshd(data, batch, kv_len, kv_heads, dim);
  };
  const attn::Options with{.executor = threads(static_cast<int>(at("threads")))};
  if (flag(env, options, "causal"))
    attn::attention_into(out, q, cached(2), cached(3), attn::causal(), with);
  else
    attn::attention_into(out, q, cached(2), cached(3), with);
}

napi_value call(napi_env env, napi_callback_info info) {
  try {
    std::size_t count = 5;
    napi_value arguments[5];
    check(napi_get_cb_info(env, info, &count, arguments, nullptr, nullptr));
    if (count != 5) throw std::runtime_error("attend takes out, q, k, v and an object");
    napi_value type{};
    check(napi_get_named_property(env, arguments[4], "type", &type));
    char name[16] = "";
    check(napi_get_value_string_utf8(env, type, name, sizeof name, nullptr));
    if (std::string(name) == "float16")
      attend<Eigen::half>(env, arguments, arguments[4]);
    else
      attend<float>(env, arguments, arguments[4]);
  } catch (const std::exception& e) {
    napi_throw_error(env, nullptr, e.what());
  }
  return nullptr;
}

}  // namespace

NAPI_MODULE_INIT() {
  napi_value function{};
  napi_create_function(env, "attend", NAPI_AUTO_LENGTH, call, nullptr, &function);
  napi_set_named_property(env, exports, "attend", function);
  return exports;
}
