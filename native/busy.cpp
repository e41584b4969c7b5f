#include "busy.hpp"

#include <algorithm>
#include <cstdlib>

#include <dirent.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

namespace ridgeline {

std::int64_t used_by(pid_t thread) {
  timespec now{};
  const clockid_t clock = clockid_t(~unsigned(thread) << 3 | 6); // as pthread_getcpuclockid would name it
  return clock_gettime(clock, &now) == 0 ? std::int64_t(now.tv_sec) * 1'000'000'000 + now.tv_nsec : -1;
}

int running_besides(const std::vector<pid_t> &ours, std::chrono::microseconds glance) {
  using Clock = std::chrono::steady_clock;
  struct Other {
    pid_t thread;
    Clock::time_point seen;
    std::int64_t used;
  };
  DIR *tasks = opendir("/proc/self/task");
  if (!tasks) return 0;
  const pid_t caller = pid_t(syscall(SYS_gettid));
  std::vector<Other> others;
  while (const dirent *entry = readdir(tasks)) {
    const pid_t thread = pid_t(std::atoi(entry->d_name)); // 0: no thread
    if (thread > 0 && thread != caller && std::find(ours.begin(), ours.end(), thread) == ours.end())
      others.push_back({thread, Clock::now(), used_by(thread)});
  }
  closedir(tasks);
  return int(std::count_if(others.begin(), others.end(), [&](const Other &other) {
    while (Clock::now() - other.seen < glance) {
    }
    const std::int64_t more = used_by(other.thread) - other.used;
    const std::chrono::nanoseconds passed = Clock::now() - other.seen;
    return 4 * more > 3 * passed.count();
  }));
}

} // namespace ridgeline
