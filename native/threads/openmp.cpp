#include "threads/openmp.hpp"

#include <atomic>
#include <cstdint>
#include <string_view>

#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "threads/placement.hpp"

namespace ridgeline {
namespace {

// The functions of GCC's runtime; the runtimes of LLVM and Intel offer them under the same names.
struct Runtime {
  void (*parallel)(void (*)(void *), void *, unsigned threads, unsigned flags) = nullptr;
  int (*max_threads)() = nullptr;
  int (*in_parallel)() = nullptr;
  int (*thread_number)() = nullptr;

  bool is_complete() const { return parallel && max_threads && in_parallel && thread_number; }
};

template <class Function> void load_symbol(void *library, const char *name, Function &to) {
  to = reinterpret_cast<Function>(dlsym(library, name));
}

// Finds the OpenMP library that torch brings in its own folder.
int find_path(dl_phdr_info *library, std::size_t, void *result) {
  const std::string_view path = library->dlpi_name ? library->dlpi_name : "";
  const std::string_view file = path.substr(path.find_last_of('/') + 1);
  const auto starts_with = [&](std::string_view name) { return file.substr(0, name.size()) == name; };
  if (path.find("/torch") == path.npos || !(starts_with("libgomp") || starts_with("libomp") || starts_with("libiomp5"))) return 0;
  *static_cast<const char **>(result) = library->dlpi_name;
  return 1;
}

Runtime find_runtime() {
  const char *path = nullptr;
  dl_iterate_phdr(find_path, &path);
  Runtime runtime;
  void *library = path ? dlopen(path, RTLD_LAZY | RTLD_NOLOAD) : nullptr; // never closed, so the pointers stay valid
  if (!library) return runtime;
  load_symbol(library, "GOMP_parallel", runtime.parallel);
  load_symbol(library, "omp_get_max_threads", runtime.max_threads);
  load_symbol(library, "omp_in_parallel", runtime.in_parallel);
  load_symbol(library, "omp_get_thread_num", runtime.thread_number);
  return runtime;
}

bool is_forked = false; // the child has no OpenMP workers, but its runtime does not know
[[maybe_unused]] const int fork_handler = pthread_atfork(nullptr, nullptr, [] { is_forked = true; });

Runtime runtime;                       // used by the first thread of the process only
std::atomic<pid_t> some_worker{0};     // one of the OpenMP workers; 0: unknown

// Nanoseconds of CPU time that the thread has used; -1: it has ended.
std::int64_t cpu_time(pid_t thread) {
  timespec time{};
  const clockid_t clock = clockid_t(~unsigned(thread) << 3 | 6); // the value that pthread_getcpuclockid returns
  return clock_gettime(clock, &time) == 0 ? std::int64_t(time.tv_sec) * 1'000'000'000 + time.tv_nsec : -1;
}

void run(const std::function<void(int)> &work) {
  struct Call {
    const std::function<void(int)> &work;
    int (*thread_number)();
  } call{work, runtime.thread_number};
  const auto entry = [](void *argument) {
    const Call &call = *static_cast<Call *>(argument);
    const int thread = call.thread_number();
    if (thread == 1) {
      static thread_local const pid_t id = pid_t(syscall(SYS_gettid));
      some_worker = id;
    }
    call.work(thread);
  };
  runtime.parallel(entry, &call, 0, 0); // 0: as many threads as torch uses; with fewer, OpenMP would end some workers
}

bool workers_are_awake() {
  if (!some_worker) run([](int) {}); // learn the thread id of a worker, once
  const std::int64_t before = cpu_time(some_worker);
  return before >= 0 && cpu_time(some_worker) > before;
}

} // namespace

bool run_on_openmp(int threads, const std::function<void(int)> &work) {
  static thread_local const bool is_first_thread = pid_t(syscall(SYS_gettid)) == getpid();
  if (is_forked || !is_first_thread) return false;
  if (!runtime.is_complete()) runtime = find_runtime();
  if (!runtime.is_complete() || runtime.max_threads() < 2 || runtime.in_parallel() || !workers_are_awake()) return false;
  const Placement placement = Placement::of_caller();
  run([&](int thread) { // a worker that is bound to other CPUs than the caller stays out
    if (thread == 0 || (thread < threads && Placement::of_caller() == placement)) work(thread);
  });
  return true;
}

} // namespace ridgeline
