// One thread pool for all of native/: `run_parallel` and `parallel_for`.
//
// What: worker threads that wait for the next call. They spin for kSpin, then they sleep on a condition variable. Each
// thread that joins a call wakes two others, so that the caller does not wake all of them by itself.
// Why: starting threads takes longer than a small call (256 trajectories take 30 to 200 µs). A worker that still spins
// joins within a microsecond, a worker that sleeps within 5 to 50 µs.
// How much, against the earlier pool with rules and borrowed OpenMP workers, on two cores that other jobs shared
// (records/cascade-lake-threads.txt, 256 trajectories): equal in a loop; slower after a pause (582 and 410 µs); after a
// torch operation 522 µs, where the earlier pool took 167 to 519 µs. That last case is open until quiet cores and 16
// cores are measured with benchmarks/threads.py. Yielding during a wait saves 21 to 32 %.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>

namespace ridgeline {

// CPUs that the calling thread may run on.
int usable_cpus();

// Runs `work(0)` on the calling thread and `work(1)`, `work(2)` … on up to `threads - 1` workers at the same time.
// Returns when every thread that joined has finished. A worker that wakes up after the caller has finished does not join,
// so `work` must take its items from a shared counter. `work` must not throw.
//
// The workers run where the caller may run: with its CPU affinity and its memory policy at the time of the call.
// While one call uses the pool, a second caller runs its work alone. A forked child starts a pool of its own.
void run_parallel(int threads, const std::function<void(int thread)> &work);

// Calls `work(from, to)` for pieces of [0, count) of at most `piece` items, on up to `threads` threads.
template <class Work> void parallel_for(std::int64_t count, std::int64_t piece, int threads, const Work &work) {
  std::atomic<std::int64_t> next{0};
  const auto take_pieces = [&](int) {
    for (std::int64_t from; (from = next.fetch_add(piece)) < count;) work(from, std::min(count, from + piece));
  };
  const std::int64_t pieces = (count + piece - 1) / piece;
  if (threads < 2 || pieces < 2) take_pieces(0);
  else run_parallel(int(std::min<std::int64_t>(threads, pieces)), take_pieces);
}

// One step of a loop that waits for another thread.
inline void pause_cpu() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

} // namespace ridgeline
