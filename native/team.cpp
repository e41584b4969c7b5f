#include "team.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace ridgeline {
namespace {

constexpr int kSpins = 4000; // a moment, so that a loop that calls again and again finds the team awake

inline void breathe() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Where a thread may run and take memory; new threads inherit it from their maker.
struct Place {
  cpu_set_t cpus{};
  int policy = 0;
  std::array<unsigned long, 16> nodes{};

  static Place here() {
    Place place;
    sched_getaffinity(0, sizeof place.cpus, &place.cpus);
    syscall(SYS_get_mempolicy, &place.policy, place.nodes.data(), 8 * sizeof(long) * place.nodes.size(), nullptr, 0);
    return place;
  }
  bool operator==(const Place &other) const {
    return CPU_EQUAL(&cpus, &other.cpus) && policy == other.policy && nodes == other.nodes;
  }
};

class Team {
public:
  explicit Team(const Place &place) : place(place) {}

  ~Team() {
    {
      std::lock_guard lock(door);
      closing = true;
    }
    bell.notify_all();
    for (auto &member : members) member.join();
  }

  void grow(int wanted) {
    if (int(members.size()) >= wanted) return;
    sigset_t most, before; // signals are for the program's own threads, except what a thread does to itself
    sigfillset(&most);
    for (int own : {SIGSEGV, SIGBUS, SIGFPE, SIGILL}) sigdelset(&most, own);
    pthread_sigmask(SIG_SETMASK, &most, &before);
    try {
      while (int(members.size()) < wanted) {
        members.emplace_back([this] { wait_and_work(); });
        pthread_setname_np(members.back().native_handle(), "ridgeline");
      }
    } catch (const std::exception &) { // no more threads or memory to be had: those that are here do the work
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }

  void run(int others, const std::function<void()> &job) {
    work = &job;
    seats = std::min<int>(others, members.size());
    wake(2);
    job();
    seats = 0; // whoever has not begun stays out
    for (int k = 0; inside;)
      if (k < kSpins) ++k, breathe();
      else std::this_thread::yield(); // whoever is still inside may be waiting for this very CPU
  }

  const Place place;

private:
  // The first ones wake the next: the caller goes to work instead of ringing for everybody.
  void wake(int most) {
    for (int k = std::min({most, sleeping.load(), seats.load()}); k > 0; --k) {
      std::lock_guard lock(door);
      bell.notify_one();
    }
  }

  bool take_seat() {
    int free = seats;
    while (free > 0)
      if (seats.compare_exchange_weak(free, free - 1)) return true;
    return false;
  }

  void wait_and_work() {
    for (;;) {
      for (int k = 0; k < kSpins && seats == 0; ++k) breathe();
      if (seats == 0) {
        std::unique_lock lock(door);
        ++sleeping;
        bell.wait(lock, [this] { return seats > 0 || closing; });
        --sleeping;
        if (closing) return;
      }
      ++inside; // before the seat: the caller takes the seats away first and then waits for those inside
      if (take_seat()) {
        wake(2);
        (*work)();
      }
      --inside;
    }
  }

  std::vector<std::thread> members;
  std::mutex door;
  std::condition_variable bell;
  bool closing = false;
  const std::function<void()> *work = nullptr;
  std::atomic<int> seats{0}, inside{0}, sleeping{0};
};

// Never destroyed at exit: the threads sleep in it until the process is gone. Made when the module is loaded, not at
// the first call: a child forked in the middle of that would wait for it for ever.
Team *team = nullptr;
std::mutex *turn = new std::mutex;

void forget() { // in the child of a fork there are no threads, and a lock may have been held
  team = nullptr;
  turn = new std::mutex;
}
[[maybe_unused]] const int told = pthread_atfork(nullptr, nullptr, forget);

} // namespace

int usable_cpus() {
  cpu_set_t cpus{};
  return sched_getaffinity(0, sizeof cpus, &cpus) == 0 ? CPU_COUNT(&cpus) : 1;
}

void together(int threads, const std::function<void()> &work) {
  std::unique_lock mine(*turn, std::defer_lock);
  if (threads < 2 || !mine.try_lock()) return work();
  const Place place = Place::here();
  if (team && !(team->place == place)) {
    delete team;
    team = nullptr;
  }
  if (!team) team = new Team(place);
  team->grow(threads - 1);
  team->run(threads - 1, work);
}

} // namespace ridgeline
