// A team of threads that waits for work: starting one for every call takes longer than a small call.
#pragma once

#include <functional>
#include <thread>

namespace ridgeline {

int usable_cpus(); // those the calling thread may run on
int cpus_lately(); // the same, mostly without asking the system: as it was at the thread's last `together`

// The caller and up to `threads - 1` others run `work` at the same time; returns when all who began have ended. `work`
// takes its pieces from a counter of its own, so whoever comes late leaves its share to the others; it must not throw.
// It is told who runs it: the caller is 0, and nobody has another's number.
// The threads run where the caller may run (CPUs and memory policy as bound at the time of the call). A second caller,
// while the team is at work, works alone. After a fork the child forms a team of its own.
//
// Where another library's threads keep the CPUs busy they do the work themselves (lender.hpp), up to `awake` of them if
// that is more: they need no waking. With `awake` the number of threads is a wish: who was kept waiting by its own works
// alone for a while.
void together(int threads, const std::function<void(int who)> &work, int awake = 0);
void together(int threads, const std::function<void()> &work);

// Waiting for another thread by looking again and again: for a moment without a pause, so that a loop that calls again and
// again finds the team awake, then so that others get the CPU: whoever is waited for may be waiting for this very one.
class Patience {
public:
  bool left() const { return looks < kMoment; }
  void breathe() {
    if (!left()) return std::this_thread::yield();
    ++looks;
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
  }

private:
  static constexpr int kMoment = 4000;
  int looks = 0;
};

} // namespace ridgeline
