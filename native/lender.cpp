#include "lender.hpp"

#include <array>
#include <atomic>
#include <chrono>
#include <string_view>

#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "busy.hpp"

namespace ridgeline {
namespace {

// GCC's runtime by its own names; LLVM's and Intel's answer to them, too.
struct OpenMP {
  void (*parallel)(void (*)(void *), void *, unsigned threads, unsigned flags) = nullptr;
  int (*threads)() = nullptr;
  int (*inside)() = nullptr;
  int (*number)() = nullptr;

  bool complete() const { return parallel && threads && inside && number; }
};

template <class Function> void look_up(void *library, const char *name, Function &to) {
  to = reinterpret_cast<Function>(dlsym(library, name));
}

// Of the runtimes in this process torch's own, and if it has none in its folder, the only one there is.
struct Search {
  const char *torchs = nullptr, *any = nullptr;
  int count = 0;
};

int look_at(dl_phdr_info *library, std::size_t, void *search) {
  const std::string_view path = library->dlpi_name ? library->dlpi_name : "";
  const std::string_view file = path.substr(path.find_last_of('/') + 1);
  Search &found = *static_cast<Search *>(search);
  const auto is = [&](std::string_view name) { return file.substr(0, name.size()) == name; };
  if (!is("libgomp") && !is("libomp") && !is("libiomp5")) return 0;
  found.any = library->dlpi_name, ++found.count;
  if (path.find("/torch") != path.npos) found.torchs = library->dlpi_name;
  return 0;
}

OpenMP find() {
  Search search;
  dl_iterate_phdr(look_at, &search);
  const char *path = search.torchs ? search.torchs : search.count == 1 ? search.any : nullptr;
  void *library = path ? dlopen(path, RTLD_LAZY | RTLD_NOLOAD) : nullptr; // held from now on: the pointers stay good
  OpenMP found;
  if (!library) return found;
  look_up(library, "GOMP_parallel", found.parallel);
  look_up(library, "omp_get_max_threads", found.threads);
  look_up(library, "omp_in_parallel", found.inside);
  look_up(library, "omp_get_thread_num", found.number);
  return found;
}

// Some of those who lent last; 0: nobody yet. By one thread only, but for the lenders' own names.
std::array<std::atomic<pid_t>, 2> lenders{};

bool forked = false; // its threads are gone, and it does not know
[[maybe_unused]] const int told = pthread_atfork(nullptr, nullptr, [] { forked = true; });

} // namespace

std::optional<Lent> on_lent_threads(const std::function<void(int)> &work) {
  static thread_local const bool first = pid_t(syscall(SYS_gettid)) == getpid();
  if (forked || !first) return {};
  static OpenMP openmp; // by one thread only
  if (!openmp.complete()) openmp = find();
  if (!openmp.complete() || openmp.threads() < 2 || openmp.inside()) return {};

  using Clock = std::chrono::steady_clock;
  struct Errand {
    const std::function<void(int)> &work;
    int (*number)();
    Clock::time_point ended{};
  } errand{work, openmp.number};
  const auto run = [](void *argument) {
    Errand &errand = *static_cast<Errand *>(argument);
    const std::size_t who = errand.number();
    if (who - 1 < lenders.size()) {
      static thread_local const pid_t own = pid_t(syscall(SYS_gettid));
      lenders[who - 1] = own;
    }
    errand.work(int(who));
    if (who == 0) errand.ended = Clock::now();
  };
  const auto began = Clock::now();
  openmp.parallel(run, &errand, 0, 0); // as many threads as its owner would: with fewer it would send some away
  return Lent{errand.ended - began, Clock::now() - errand.ended};
}

bool lenders_awake() {
  if (!lenders[0]) return true;
  std::array<std::int64_t, 2> before{};
  for (std::size_t k = 0; k < lenders.size(); ++k) before[k] = lenders[k] ? used_by(lenders[k]) : -1;
  for (std::size_t k = 0; k < lenders.size(); ++k)
    if (before[k] >= 0 && used_by(lenders[k]) > before[k]) return true;
  return false;
}

} // namespace ridgeline
