// Where a thread may run and where its memory comes from.
#pragma once

#include <array>

#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace ridgeline {

// The CPUs and the memory policy of a thread. A new thread inherits both from the thread that starts it.
struct Placement {
  cpu_set_t cpus{};
  int policy = 0;
  std::array<unsigned long, 16> nodes{};

  static Placement of_caller() {
    Placement placement;
    sched_getaffinity(0, sizeof placement.cpus, &placement.cpus);
    syscall(SYS_get_mempolicy, &placement.policy, placement.nodes.data(), 8 * sizeof(long) * placement.nodes.size(),
            nullptr, 0);
    return placement;
  }
  bool operator==(const Placement &other) const {
    return CPU_EQUAL(&cpus, &other.cpus) && policy == other.policy && nodes == other.nodes;
  }
};

} // namespace ridgeline
