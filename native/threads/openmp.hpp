// Runs work on the threads of torch's OpenMP runtime while they spin.
//
// What: after each operation torch's OpenMP workers spin on all CPUs for some milliseconds. A worker of our own pool that
// wakes up then waits for a CPU. So if the OpenMP workers are awake, they get the work; else the pool gets it.
// Why: programs call resample() between torch operations.
// How much: 256 trajectories after a torch matmul take 34 us instead of 189 us on 16 cores, 4096 take 0.32 ms instead of
// 3.1 ms (records/h200-host-threads.txt).
#pragma once

#include <functional>

namespace ridgeline {

// As run_parallel. False, and nothing is done, if torch's OpenMP workers are asleep or cannot be used: OpenMP keeps workers
// for the first thread of the process only, not inside a parallel region, and not after a fork.
bool run_on_openmp(int threads, const std::function<void(int thread)> &work);

} // namespace ridgeline
