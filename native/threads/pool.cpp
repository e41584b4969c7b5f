#include "threads/pool.hpp"

#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <unistd.h>
#include "threads/openmp.hpp"
#include "threads/placement.hpp"

namespace ridgeline {
namespace {

using Clock = std::chrono::steady_clock;

// How long a worker waits for the next call before it sleeps: a loop of small calls finds the workers awake.
constexpr std::chrono::microseconds kSpin{200};
constexpr int kPausesPerYield = 32;

// One step of a loop that waits. The thread that it waits for may need this very CPU.
void pause_or_yield(int pauses) {
  if (pauses % kPausesPerYield == 0) std::this_thread::yield();
  else pause_cpu();
}

class Pool {
public:
  explicit Pool(const Placement &placement) : placement(placement) {}

  ~Pool() {
    {
      std::lock_guard lock(mutex);
      closing = true;
    }
    wake_up.notify_all();
    for (std::thread &worker : workers) worker.join();
  }

  // Starts workers until there are `count`. Where the system refuses a thread, the pool stays smaller.
  void grow(int count) {
    if (int(workers.size()) >= count) return;
    sigset_t blocked, before; // workers handle no signals except their own faults
    sigfillset(&blocked);
    for (int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL}) sigdelset(&blocked, fault);
    pthread_sigmask(SIG_SETMASK, &blocked, &before);
    try {
      workers.reserve(count);
      while (int(workers.size()) < count) {
        workers.emplace_back([this] { serve(); });
        pthread_setname_np(workers.back().native_handle(), "ridgeline");
      }
    } catch (const std::exception &) {
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }

  void run(int threads, const std::function<void(int)> &work) {
    job = &work;
    free_places = std::min<int>(threads - 1, workers.size());
    wake_two();
    work(0);
    free_places = 0; // a worker that has not joined by now stays out
    for (int pauses = 1; joined > 0; ++pauses) pause_or_yield(pauses);
  }

  const Placement placement;

private:
  void serve() {
    for (;;) {
      if (!wait_for_job()) return;
      ++joined; // before it takes a place: the caller closes the places first and then waits for `joined`
      if (const int thread = take_place()) {
        wake_two();
        (*job)(thread);
      }
      --joined;
    }
  }

  // False: the pool closes.
  bool wait_for_job() {
    const auto start = Clock::now();
    for (int pauses = 1; free_places == 0; ++pauses) {
      pause_or_yield(pauses);
      if (pauses % kPausesPerYield == 0 && Clock::now() - start > kSpin) break;
    }
    if (free_places > 0) return true;
    std::unique_lock lock(mutex);
    ++sleeping; // before the condition is read: the caller stores free_places first and then reads `sleeping`
    wake_up.wait(lock, [&] { return free_places > 0 || closing; });
    --sleeping;
    return !closing;
  }

  // The number of the place, or 0 if no place is free.
  int take_place() {
    int place = free_places;
    while (place > 0 && !free_places.compare_exchange_weak(place, place - 1)) {
    }
    return place;
  }

  void wake_two() {
    const int count = std::min({2, free_places.load(), sleeping.load()});
    if (count <= 0) return;
    { std::lock_guard lock(mutex); } // a worker between its condition and its sleep must not miss the notification
    for (int k = 0; k < count; ++k) wake_up.notify_one();
  }

  std::vector<std::thread> workers;
  std::mutex mutex;
  std::condition_variable wake_up;
  bool closing = false;
  const std::function<void(int)> *job = nullptr;
  std::atomic<int> free_places{0}; // workers that may still join the current call
  std::atomic<int> joined{0};      // workers inside the current call
  std::atomic<int> sleeping{0};
};

// Both live until the process ends, because workers sleep in them. They exist before the first call, so that a fork
// during that call finds them complete.
Pool *pool = nullptr;
std::mutex *pool_in_use = new std::mutex;

// A forked child has no workers, and the parent may have held the lock at the time of the fork.
void forget_pool() {
  pool = nullptr;
  pool_in_use = new std::mutex;
}
[[maybe_unused]] const int fork_handler = pthread_atfork(nullptr, nullptr, forget_pool);

} // namespace

int usable_cpus() {
  cpu_set_t cpus{};
  return sched_getaffinity(0, sizeof cpus, &cpus) == 0 ? CPU_COUNT(&cpus) : 1;
}

void run_parallel(int threads, const std::function<void(int)> &work) {
  std::unique_lock use(*pool_in_use, std::defer_lock);
  if (threads < 2 || !use.try_lock()) return work(0);
  if (run_on_openmp(threads, work)) return;
  const Placement placement = Placement::of_caller();
  if (pool && !(pool->placement == placement)) {
    delete pool;
    pool = nullptr;
  }
  if (!pool) pool = new Pool(placement);
  pool->grow(threads - 1);
  pool->run(threads, work);
}

} // namespace ridgeline
