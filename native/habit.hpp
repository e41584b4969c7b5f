// Whose threads a caller asks for help, by how its calls went: rules only, and whoever keeps to them tells the time and what
// there is to be seen.
#pragma once

#include <algorithm>
#include <chrono>

#include <pthread.h>

namespace ridgeline {

// How a call went for its caller.
struct Shift {
  std::chrono::nanoseconds worked{}, waited{}; // waited for the others, when its own work was done
  bool missed = false;                         // others, who did not come

  std::chrono::nanoseconds took() const { return worked + waited; }
};

// When threads of this process that are neither ours nor the caller keep CPUs busy around our calls, as OpenMP's do, ours
// have to push them aside first, and those are asked instead, as long as they are awake. They are seen by the CPU time that
// the process uses, which the system tells late, or counted when some of ours get no CPU.
// Who asks them makes them spin, needed or not. So after a while they are left alone until they would sleep if it were for
// us; if they are awake then it is their owner's doing, and they are asked for longer.
// Where nobody comes or the caller is kept waiting, as where CPUs are shared with other processes, our own are tried, and
// stay if they are faster; else it takes more waits in a row until they are tried again.
class Habit {
public:
  using Clock = std::chrono::steady_clock;
  using Time = Clock::time_point;

  bool elsewhere(Time now) const { return now < until && pthread_equal(watcher, pthread_self()); }

  // Whether those who lend should be asked first if they are awake: that takes as long as a small call. Who was awake a
  // moment ago most likely still is, so of calls that follow each other closely every eighth asks.
  bool asks(Time now) {
    const bool near = now - called < kNear;
    called = now;
    unasked = near ? (unasked + 1) % 8 : 0;
    return unasked == 0;
  }

  // Whether threads should be counted before ours are woken: some of ours got no CPU in the call before.
  bool suspects(Time now) const { return missed && now - counted > pause; }

  // Before a call that our own team will do; `wanted` threads, the caller among them. `running(glance)` counts the threads
  // besides ours and the caller that keep a CPU busy for that long, `used()` is the CPU time of all of them, in seconds.
  template <class Running, class Used> void look_around(Time now, int wanted, Running running, Used used) {
    if (now < until || now < settled) return;
    const bool again = pthread_equal(watcher, pthread_self());
    const auto many_run = [&](std::chrono::microseconds glance) { return 2 * running(glance) > wanted - 1; };
    if (again && suspects(now)) {
      const bool found = many_run(kGlance) && many_run(4 * kGlance); // who only woke up for a moment is asleep by then
      pause = found || now - counted > kRecent ? kWatch : std::min(2 * pause, kRecent); // in vain: less often
      counted = now;
      if (found) ask_them(now);
    }
    missed = false;
    const auto passed = now - since;
    if (now < until || (again && passed < kWatch)) return;
    const double others = used();
    const double busy = (others - burnt) / std::chrono::duration<double>(passed).count(); // CPUs
    if (again && passed < kRecent && 2 * busy > wanted - 1) ask_them(now);
    since = now, burnt = others, watcher = pthread_self();
  }

  // After a call on lent threads, worth `threads` of them.
  void after_lent(Time now, const Shift &shift, int threads) {
    settled = now + kSettle;
    if (!shift.missed && shift.waited <= shift.worked) waits = 0;
    else theirs = (waits++ > 0 ? theirs : theirs.zero()) + shift.took() / threads;
    if (waits < patience) return;
    until = now, settled = now + kRest;
    theirs = theirs * kWaits / waits; // of as many calls as are tried now
    trials = kWaits, waits = 0, ours = ours.zero();
  }

  // After a call of our own team. Where a CPU is taken away in the middle of the work, by other processes or under a virtual
  // machine, the caller waits for whoever was there, many times as long as all of it takes alone. So after such a wait it
  // is alone for many times as long, unless their help since the last one has saved more than that.
  void after_own(Time now, const Shift &shift, int threads) {
    const bool held_up = shift.waited > kHeldUp && 2 * shift.waited > shift.worked; // the last pieces are shorter than that
    if (held_up && (threads - 1) * helped < kSlack * shift.waited) company = now + kTimes * shift.waited;
    if (held_up) helped = helped.zero();
    else if (!shift.missed) helped += shift.took();
    missed = shift.missed && shift.worked > kComing;
    compare(now, shift.took(), threads);
  }
  bool alone(Time now) const { return now < company; }
  void after_alone(Time now, Clock::duration took, int threads) { compare(now, took, threads); }

  // Until busy threads are seen again: who lends is asleep, or does not lend at all and is not asked for long.
  void stay_at_home(Time now, bool for_long) {
    until = now, settled = for_long ? now + kRest : now, waits = 0;
  }

private:
  void compare(Time now, Clock::duration took, int threads) {
    if (trials == 0) return;
    ours += took / threads;
    if (--trials > 0) return;
    const bool vain = ours > theirs; // to be kept waiting is not the worst
    patience = vain ? std::min(2 * patience, kMostWaits) : kWaits;
    if (vain) until = now + period;
  }

  void ask_them(Time now) {
    period = now - settled < kRecent ? std::min(2 * period, kLongest) : kShortest;
    until = now + period, trials = 0;
  }

  // What a running thread has used is known by the system's tick; what was long ago says nothing.
  static constexpr Clock::duration kWatch = std::chrono::milliseconds(2), kRecent = std::chrono::milliseconds(100);
  static constexpr std::chrono::microseconds kGlance{50};
  static constexpr Clock::duration kShortest = std::chrono::milliseconds(100), kLongest = std::chrono::milliseconds(3200);
  static constexpr int kWaits = 3, kMostWaits = 24, kTimes = 20, kSlack = 2;
  static constexpr Clock::duration kSettle = std::chrono::milliseconds(50); // until who spins because of us sleeps
  static constexpr Clock::duration kRest = std::chrono::seconds(2);
  static constexpr Clock::duration kNear = std::chrono::milliseconds(5);
  static constexpr Clock::duration kHeldUp = std::chrono::milliseconds(1);
  static constexpr Clock::duration kComing = std::chrono::microseconds(100); // who has not come by then may have no CPU

  int unasked = 0, waits = 0, trials = 0; // bad calls in a row on lent threads; calls of ours to be compared with them
  int patience = kWaits;                  // so many bad calls are one too many
  std::chrono::nanoseconds theirs{}, ours{}; // what a thread's worth took, added up: in the bad ones, in the trials
  std::chrono::nanoseconds helped{};         // how long ours all worked together since they held the caller up
  bool missed = false;                       // some of ours, in the call before
  Clock::duration pause = kWatch, period = kShortest;
  Time since{}, counted{}, until{}, settled{}, called{}, company{};
  double burnt = 0;
  pthread_t watcher{};
};

} // namespace ridgeline
