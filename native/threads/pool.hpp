// One thread pool for all of native/: `run_parallel` and `parallel_for`.
//
// What: worker threads that wait for the next call. They spin for kSpin, then they sleep on a condition variable. Each
// thread that joins a call wakes two others, so that the caller does not wake all of them by itself.
// Why: starting threads takes longer than a small call (256 trajectories take 30 to 200 µs). A worker that still spins
// joins within a microsecond, a worker that sleeps within 5 to 50 µs.
// How much: on 16 cores (records/h200-host-threads.txt, 256 trajectories) equal to the earlier pool with its rules in a
// loop (36 and 43 us); 12 % slower after a pause (202 and 181 us), because the workers wake up after the result is
// allocated. After a torch operation the plain pool takes 189 us, with openmp.hpp 34 us: so that path stays.
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
