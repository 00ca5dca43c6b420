// Number of processors that this process may keep busy.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <string>
#include <string_view>
#include <thread>

#ifdef __linux__
#include <sched.h>
#include <unistd.h>
#endif

namespace attn::detail {

/// Returns the processor time that a cgroup allows per period, in processors; 0 if it has no quota or cannot be read.
/// Version 2 has "max 100000" or "150000 100000" in one file, version 1 one number in each of two files.
inline double cpu_quota(const std::string& folder) {
  const auto numbers = [](const std::string& file, double* first, double* second) {
    std::FILE* const in = std::fopen(file.c_str(), "re");
    if (!in) return 0;
    const int read = second ? std::fscanf(in, "%lf %lf", first, second) : std::fscanf(in, "%lf", first);
    std::fclose(in);
    return read;
  };
  double quota = 0, period = 0;
  if (numbers(folder + "/cpu.max", &quota, &period) != 2 &&
      (numbers(folder + "/cpu.cfs_quota_us", &quota, nullptr) != 1 ||
       numbers(folder + "/cpu.cfs_period_us", &period, nullptr) != 1))
    return 0;
  return quota > 0 && period > 0 ? quota / period : 0;
}

/// Whether a comma-separated list of names contains "cpu".
inline bool lists_cpu(std::string_view names) {
  for (;;) {
    const std::size_t comma = names.find(',');
    if (names.substr(0, comma) == "cpu") return true;
    if (comma == std::string_view::npos) return false;
    names.remove_prefix(comma + 1);
  }
}

/// Returns the smallest quota of the cgroup of a process and its ancestors; 0 if none has one. `membership` is
/// /proc/self/cgroup, with a line "0::/path" (version 2) or "4:cpu,cpuacct:/path" (version 1), and `mounts` is the root
/// of such paths: /sys/fs/cgroup.
inline double least_cpu_quota(const std::string& membership, const std::string& mounts) {
  double least = 0;
  const auto consider = [&](const std::string& folder) {
    if (const double quota = cpu_quota(folder); quota > 0) least = least > 0 ? std::min(least, quota) : quota;
  };
  // In a container the paths may be those that the host sees; then only the root of the tree can be read.
  consider(mounts);
  consider(mounts + "/cpu");
  std::FILE* const in = std::fopen(membership.c_str(), "re");
  if (!in) return least;
  char line[4096];
  while (std::fgets(line, sizeof line, in)) {
    line[std::strcspn(line, "\n")] = '\0';
    char* const controllers = std::strchr(line, ':');
    char* const path = controllers ? std::strchr(controllers + 1, ':') : nullptr;
    if (!path) continue;
    const std::string_view names(controllers + 1, static_cast<std::size_t>(path - controllers - 1));
    if (!names.empty() && !lists_cpu(names)) continue;
    const std::string root = names.empty() ? mounts : mounts + "/cpu";
    for (std::string folder = path + 1; folder.size() > 1; folder.erase(folder.rfind('/'))) {
      consider(root + folder);
      if (folder.find('/') == std::string::npos) break;
    }
  }
  std::fclose(in);
  return least;
}

struct CpuLimits {
  int count;       ///< processors that this process may keep busy at the same time
  bool has_quota;  ///< whether its CPU time is limited: a spinning thread then uses up what others need
};

inline CpuLimits cpu_limits() {
  CpuLimits limits{std::max(1, static_cast<int>(std::thread::hardware_concurrency())), false};
#ifdef __linux__
  // The affinity of the main thread: others may be bound to fewer processors. glibc's hardware_concurrency() ignores
  // the affinity. sched_getaffinity() fails above 1024 processors.
  cpu_set_t allowed;
  if (sched_getaffinity(getpid(), sizeof allowed, &allowed) == 0)
    limits.count = std::min(limits.count, CPU_COUNT(&allowed));
  if (const double quota = least_cpu_quota("/proc/self/cgroup", "/sys/fs/cgroup"); quota > 0 && quota < limits.count) {
    limits.count = std::max(1, static_cast<int>(std::lround(quota)));
    limits.has_quota = true;
  }
#endif
  return limits;
}

}  // namespace attn::detail
