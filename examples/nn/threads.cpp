#include "threads.h"

#include <algorithm>
#include <limits>

#ifdef __GLIBC__
#include <malloc.h>
#endif

namespace nn {

namespace {

attn::Options& all_options() {
  static attn::Options options{.executor = attn::threads()};
  return options;
}

}  // namespace

void set_threads(int count) { set_executor(attn::threads(count)); }

void set_executor(const attn::Executor& executor) { all_options().executor = executor; }

void keep_memory() {
#ifdef __GLIBC__
  mallopt(M_MMAP_THRESHOLD, 32 << 20);  // glibc's maximum
  mallopt(M_TRIM_THRESHOLD, std::numeric_limits<int>::max());
#endif
}

const attn::Options& options() { return all_options(); }

void for_blocks(attn::Index count, attn::Index block, double nanoseconds,
                const std::function<void(attn::Index, attn::Index)>& f) {
  const attn::Executor& executor = options().executor;
  const double microseconds = 1e-3 * nanoseconds * static_cast<double>(count);
  executor.run_with(executor.workers_for(microseconds), microseconds, (count + block - 1) / block,
                    [&](attn::Index i, int) { f(i * block, std::min(count, (i + 1) * block)); });
}

}  // namespace nn
