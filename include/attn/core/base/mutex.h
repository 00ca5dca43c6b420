// Locks, which do nothing in programs without threads.
#pragma once

#include "attn/types.h"

#ifdef ATTN_NO_THREADS
namespace attn::detail {

struct Mutex {};
struct Lock {
  explicit Lock(Mutex&) {}
};

}  // namespace attn::detail
#else
#include <mutex>

namespace attn::detail {

using Mutex = std::mutex;
using Lock = std::lock_guard<std::mutex>;

}  // namespace attn::detail
#endif
