// Which threads of this process are at work: by the CPU time each has used, which the system knows to this very moment of a
// single thread, but of a whole process only to its last tick.
#pragma once

#include <chrono>
#include <cstdint>
#include <vector>

#include <sys/types.h>

namespace ridgeline {

std::int64_t used_by(pid_t thread); // nanoseconds of CPU time; -1: it is no more

// How many keep a CPU busy for most of `glance`, besides the caller, who looks on, and those of `ours`.
int running_besides(const std::vector<pid_t> &ours, std::chrono::microseconds glance);

} // namespace ridgeline
