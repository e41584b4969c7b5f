#include "team.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <condition_variable>
#include <exception>
#include <memory>
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
constexpr int kSpinsAhead = 16 * kSpins; // who was roused ahead of a call waits longer for it

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
      for (auto &member : members) member->bell.notify_one();
    }
    for (auto &member : members) member->thread.join();
  }

  void grow(int wanted) {
    if (int(members.size()) >= wanted) return;
    sigset_t most, before; // signals are for the program's own threads, except what a thread does to itself
    sigfillset(&most);
    for (int own : {SIGSEGV, SIGBUS, SIGFPE, SIGILL}) sigdelset(&most, own);
    pthread_sigmask(SIG_SETMASK, &most, &before);
    try {
      std::lock_guard lock(door);
      members.reserve(wanted);
      while (int(members.size()) < wanted) {
        auto next = std::make_unique<Member>();
        next->thread = std::thread([this, me = next.get()] { wait_and_work(*me); });
        pthread_setname_np(next->thread.native_handle(), "ridgeline");
        members.push_back(std::move(next));
      }
    } catch (const std::exception &) { // no more threads or memory to be had: those that are here do the work
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }

  void run(int others, const std::function<void()> &job) {
    work = &job;
    seats = std::min<int>(others, members.size());
    wake(std::min<int>(2, seats));
    job();
    seats = 0; // whoever has not begun stays out
    for (auto &member : members) let_back(*member);
    for (int k = 0; inside;)
      if (k < kSpins) ++k, breathe();
      else std::this_thread::yield(); // whoever is still inside may be waiting for this very CPU
  }

  // The first ones wake the next: the caller goes to work instead of ringing for everybody.
  void wake(int most, bool ahead = false) {
    if (most < 1 || asleep == 0) return;
    const int here = sched_getcpu();
    std::lock_guard lock(door);
    for (auto &member : members) {
      if (!member->sleeps) continue;
      if (member->cpu == here) send_aside(*member, here);
      member->sleeps = false;
      member->ahead = ahead;
      --asleep;
      member->bell.notify_one();
      if (--most == 0) return;
    }
  }

  const Place place;

private:
  struct Member {
    std::thread thread;
    std::condition_variable bell;
    bool sleeps = false; // and nobody has rung for it
    bool ahead = false;  // whoever rang has not called yet
    int cpu = -1;        // where it fell asleep
    pid_t id = 0;
    std::atomic<bool> aside{false};
  };

  // Where every CPU is taken, if only by another library's threads that spin, a woken thread stays on the CPU it slept
  // on. If that is the caller's own it would wait there until the caller is done: it is kept off until it has begun.
  void send_aside(Member &member, int here) {
    cpu_set_t others = place.cpus;
    CPU_CLR(here, &others);
    if (CPU_COUNT(&others) && sched_setaffinity(member.id, sizeof others, &others) == 0) member.aside = true;
  }
  void let_back(Member &member) { // both the member and the caller may do it: when either goes on, it is done
    if (!member.aside) return;
    sched_setaffinity(member.id, sizeof place.cpus, &place.cpus);
    member.aside = false;
  }

  bool take_seat() {
    int free = seats;
    while (free > 0)
      if (seats.compare_exchange_weak(free, free - 1)) return true;
    return false;
  }

  void wait_and_work(Member &me) {
    me.id = pid_t(syscall(SYS_gettid));
    for (int patience = kSpins;;) {
      for (int k = 0; k < patience && seats == 0; ++k) breathe();
      patience = kSpins;
      if (seats == 0) {
        if (!sleep(me)) return;
        if (me.ahead) {
          patience = kSpinsAhead;
          continue;
        }
      }
      ++inside; // before the seat: the caller takes the seats away first and then waits for those inside
      if (take_seat()) {
        wake(std::min<int>(2, seats));
        (*work)();
      }
      --inside;
    }
  }

  // Until somebody rings; false: the team is no more.
  bool sleep(Member &me) {
    std::unique_lock lock(door);
    me.cpu = sched_getcpu();
    me.sleeps = true;
    ++asleep; // before the seats are looked at once more: whoever offers them looks here afterwards
    if (seats > 0) {
      me.sleeps = me.ahead = false;
      --asleep;
    }
    me.bell.wait(lock, [&] { return !me.sleeps || closing; });
    const bool on = !closing;
    lock.unlock();
    let_back(me);
    return on;
  }

  std::vector<std::unique_ptr<Member>> members;
  std::mutex door;
  bool closing = false;
  const std::function<void()> *work = nullptr;
  std::atomic<int> seats{0}, inside{0}, asleep{0};
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

void rouse(int threads) {
  std::unique_lock mine(*turn, std::defer_lock);
  if (threads > 1 && mine.try_lock() && team) team->wake(std::min(2, threads - 1), true);
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
