// Threads that belong to another library: OpenMP's, as torch brings it. They spin for milliseconds after each of its
// operations, on every CPU, and threads of ours that are woken meanwhile wait behind them.
#pragma once

#include <chrono>
#include <functional>
#include <optional>

namespace ridgeline {

struct Lent {
  std::chrono::nanoseconds worked, waited; // the caller for its own share, then for the others
};

// All threads of OpenMP's that are the caller's, the caller among them as number 0, run `work`; it must not throw. Nobody
// lends to a thread other than the process's first (OpenMP would make new ones for it), inside OpenMP's own work, or after
// a fork: then nothing was done.
std::optional<Lent> on_lent_threads(const std::function<void(int who)> &work);

// Whether who lent last is running at this moment, spinning or at work: asleep they are slow to come. True if nobody has
// lent yet.
bool lenders_awake();

} // namespace ridgeline
