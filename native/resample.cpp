#include "resample.hpp"

#include <algorithm>
#include <atomic>
#include <thread>

#include "team.hpp"

namespace ridgeline {

RIDGELINE_COMPILED_PER_ISA(ResampleLoops, resample_loops)

// The first of trajectories that are out of order, as several threads find them.
class First {
public:
  void note(std::int64_t trajectory) {
    if (trajectory < 0) return;
    std::int64_t known = value;
    while ((known < 0 || trajectory < known) && !value.compare_exchange_weak(known, trajectory)) {
    }
  }
  operator std::int64_t() const { return value; }

private:
  std::atomic<std::int64_t> value{-1};
};

// Trajectories [0, batch) in as many parts as there are threads, each part one stretch of memory: a thread walks through
// its own part, a piece at a time, and then takes pieces of whoever came late or is held up. The caller's part is always
// the first, so that of two threads each finds what it had the last time.
class Parts {
public:
  Parts(std::int64_t batch, std::int64_t threads)
      : count(std::min<std::int64_t>(threads, kMost)), piece(std::max<std::int64_t>(1, batch / (8 * count))) {
    for (std::int64_t k = 0; k < count; ++k) parts[k].next = batch * k / count, parts[k].end = batch * (k + 1) / count;
  }

  template <class Work> void share(const Work &work) {
    const std::int64_t own = std::this_thread::get_id() == caller ? 0 : ++others;
    for (std::int64_t k = 0; k < count; ++k) {
      Part &part = parts[(own + k) % count];
      for (std::int64_t from; (from = part.next.fetch_add(piece)) < part.end;) work(from, std::min(part.end, from + piece));
    }
  }

private:
  static constexpr std::int64_t kMost = 64;
  struct alignas(64) Part { // a cache line each
    std::atomic<std::int64_t> next;
    std::int64_t end;
  };
  Part parts[kMost];
  const std::int64_t count, piece;
  const std::thread::id caller = std::this_thread::get_id();
  std::atomic<std::int64_t> others{0};
};

static std::int64_t threads_worth(const ResampleJob &job) {
  const std::int64_t size = job.value_type == ValueType::f64 ? 8 : job.value_type == ValueType::f32 ? 4 : 2;
  return std::max<std::int64_t>(1, job.batch * (job.stamps + job.targets) * job.channels * size / kBytesPerThread);
}

std::int64_t resample(const ResampleJob &job, Isa isa, int threads, bool check) {
  const ResampleLoops loop = resample_loops_of(isa);
  std::int64_t n = std::min<std::int64_t>(threads > 0 ? threads : threads_worth(job), std::max<std::int64_t>(1, job.batch));
  std::int64_t awake = n;
  if (threads <= 0 && n > 1) {
    const std::int64_t cpus = usable_cpus();
    n = std::min(n, cpus), awake = std::min(cpus, job.batch);
  }
  Parts parts(job.batch, awake);
  First fault;
  together(int(n), [&] {
    parts.share([&](std::int64_t from, std::int64_t to) {
      if (fault < 0 || from < fault) fault.note(loop.rows(job, from, to, check));
    });
  }, int(awake));
  return fault;
}

std::int64_t first_disorder(const ResampleJob &job, Isa isa) { return resample_loops_of(isa).disorder(job, 0, job.batch); }

} // namespace ridgeline
