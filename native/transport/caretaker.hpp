// One thread of the process serves the streams that no kernel serves, while their owner does something else.
#pragma once

#include <cstdint>

namespace ridgeline {

class Tended {
public:
  static constexpr std::int64_t kTickNs = 5'000'000, kIdleTickNs = 50'000'000;
  // Called every tick; whether something is on its way, so that the next tick comes soon. was_stopped: the whole process was.
  virtual bool tend(std::int64_t now, bool was_stopped) = 0;

protected:
  ~Tended() = default;
};

void start_tending(Tended *one);
void stop_tending(Tended *one); // waits until the thread has left it

} // namespace ridgeline
