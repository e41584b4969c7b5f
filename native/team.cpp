#include "team.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
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
#include <time.h>
#include <unistd.h>

#include "busy.hpp"
#include "habit.hpp"
#include "lender.hpp"

namespace ridgeline {
namespace {

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

double seconds_of(clockid_t clock) {
  timespec now{};
  clock_gettime(clock, &now);
  return double(now.tv_sec) + 1e-9 * double(now.tv_nsec);
}

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

  Shift run(int others, const std::function<void(int)> &job) {
    const auto began = std::chrono::steady_clock::now();
    work = &job;
    seats = std::min<int>(others, members.size());
    wake(std::min<int>(2, seats));
    job(0);
    const bool missed = seats.exchange(0) > 0; // whoever has not begun stays out
    const auto ended = std::chrono::steady_clock::now();
    for (Patience patience; inside;) patience.breathe();
    const auto waited = std::chrono::steady_clock::now() - ended;
    for (auto &member : members) let_back(*member); // last: those inside send others aside
    return {ended - began, waited, missed};
  }

  // The first ones wake the next: the caller goes to work instead of ringing for everybody.
  void wake(int most) {
    if (most < 1 || asleep == 0) return;
    const int here = sched_getcpu();
    std::lock_guard lock(door);
    for (auto &member : members) {
      if (!member->sleeps) continue;
      if (member->cpu == here) send_aside(*member, here);
      member->sleeps = false;
      --asleep;
      member->bell.notify_one();
      if (--most == 0) return;
    }
  }

  std::vector<pid_t> threads() const {
    std::vector<pid_t> all;
    for (auto &member : members) all.push_back(member->id);
    return all;
  }

  double cpu_seconds() const { // of all members
    double sum = 0;
    clockid_t clock;
    for (auto &member : members)
      if (pthread_getcpuclockid(member->thread.native_handle(), &clock) == 0) sum += seconds_of(clock);
    return sum;
  }

  const Place place;

private:
  struct Member {
    std::thread thread;
    std::condition_variable bell;
    bool sleeps = false; // and nobody has rung for it
    int cpu = -1;        // where it fell asleep
    std::atomic<pid_t> id{0};
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

  int take_seat() { // its number; 0: none is free
    int free = seats;
    while (free > 0 && !seats.compare_exchange_weak(free, free - 1)) {
    }
    return free;
  }

  void wait_and_work(Member &me) {
    me.id = pid_t(syscall(SYS_gettid));
    for (;;) {
      for (Patience patience; patience.left() && seats == 0;) patience.breathe();
      if (seats == 0 && !sleep(me)) return;
      ++inside; // before the seat: the caller takes the seats away first and then waits for those inside
      if (const int who = take_seat()) {
        wake(std::min<int>(2, seats));
        (*work)(who);
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
      me.sleeps = false;
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
  const std::function<void(int)> *work = nullptr;
  std::atomic<int> seats{0}, inside{0}, asleep{0};
};

// Never destroyed at exit: the threads sleep in it until the process is gone. Made when the module is loaded, not at
// the first call: a child forked in the middle of that would wait for it for ever.
Team *team = nullptr;
Habit habit; // of whoever has the turn
std::mutex *turn = new std::mutex;

void forget() { // in the child of a fork there are no threads, and a lock may have been held
  team = nullptr;
  habit = {};
  turn = new std::mutex;
}
[[maybe_unused]] const int told = pthread_atfork(nullptr, nullptr, forget);

thread_local int known_cpus = 0; // 0: never asked

int running_besides_team(std::chrono::microseconds glance) {
  return running_besides(team ? team->threads() : std::vector<pid_t>{}, glance);
}

double used_besides_team() {
  const double ours = (team ? team->cpu_seconds() : 0) + seconds_of(CLOCK_THREAD_CPUTIME_ID);
  return seconds_of(CLOCK_PROCESS_CPUTIME_ID) - ours; // last: a thread's time grows when it is asked
}

Place callers_place() {
  const Place place = Place::here();
  known_cpus = CPU_COUNT(&place.cpus);
  return place;
}

} // namespace

int usable_cpus() {
  cpu_set_t cpus{};
  return sched_getaffinity(0, sizeof cpus, &cpus) == 0 ? CPU_COUNT(&cpus) : 1;
}

int cpus_lately() {
  if (known_cpus < 2) known_cpus = usable_cpus(); // who works alone asks nobody later
  return known_cpus;
}

void together(int threads, const std::function<void()> &work) {
  together(threads, [&](int) { work(); });
}

void together(int threads, const std::function<void(int)> &work, int awake) {
  std::unique_lock mine(*turn, std::defer_lock);
  if (threads < 2 || !mine.try_lock()) return work(0);
  const auto began = Habit::Clock::now();
  const bool alone = awake > 0 && habit.alone(began);
  if (team && !alone && !habit.elsewhere(began) && !habit.suspects(began)) team->wake(std::min(2, threads - 1)); // meanwhile
  habit.look_around(began, threads, running_besides_team, used_besides_team);
  if (habit.elsewhere(began) && habit.asks(began) && !lenders_awake()) habit.stay_at_home(began, false);
  if (habit.elsewhere(began)) {
    const int wanted = std::max(threads, awake);
    Place place;
    std::atomic<bool> known{false}, came{false};
    const std::function<void(int)> if_wanted = [&](int who) {
      if (who == 0) { // asks where it may run while the others are on their way
        place = callers_place();
        known = true;
        return work(0);
      }
      const Place here = Place::here();
      for (Patience patience; !known;) patience.breathe();
      if (who >= wanted || !(here == place)) return;
      if (!came) came = true;
      work(who);
    };
    if (const auto lent = on_lent_threads(if_wanted))
      return habit.after_lent(Habit::Clock::now(), {lent->worked, lent->waited, !came}, threads);
    habit.stay_at_home(began, true);
  }
  if (alone) {
    const auto at_work = Habit::Clock::now();
    work(0);
    const auto ended = Habit::Clock::now();
    return habit.after_alone(ended, ended - at_work, threads);
  }
  const Place place = callers_place();
  if (team && !(team->place == place)) {
    delete team;
    team = nullptr;
  }
  if (!team) team = new Team(place);
  team->grow(threads - 1);
  const Shift shift = team->run(threads - 1, work);
  habit.after_own(Habit::Clock::now(), shift, threads);
}

} // namespace ridgeline
