#include "resample.hpp"

#include <algorithm>
#include <atomic>

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

static int threads_for(const ResampleJob &job) {
  const std::int64_t size = job.value_type == ValueType::f64 ? 8 : job.value_type == ValueType::f32 ? 4 : 2;
  const std::int64_t wanted = job.batch * (job.stamps + job.targets) * job.channels * size / kBytesPerThread;
  return wanted > 1 ? int(std::min<std::int64_t>(usable_cpus(), wanted)) : 1;
}

std::int64_t resample(const ResampleJob &job, Isa isa, int threads, bool check) {
  const ResampleLoops loop = resample_loops_of(isa);
  const bool asked = threads > 0;
  if (!asked) threads = threads_for(job);
  const std::int64_t n = std::max<std::int64_t>(1, std::min<std::int64_t>(threads, job.batch));
  const std::int64_t awake = n > 1 && !asked ? std::min<std::int64_t>(usable_cpus(), job.batch) : n;
  // Small pieces from one counter: a thread that comes late or is held up leaves its share to the others.
  const std::int64_t piece = std::max<std::int64_t>(1, job.batch / (4 * awake + 4 * n));
  std::atomic<std::int64_t> next{0};
  First fault;
  together(int(n), [&] {
    for (std::int64_t from; (from = next.fetch_add(piece)) < job.batch;) {
      const std::int64_t to = std::min(job.batch, from + piece);
      if (check) fault.note(loop.disorder(job, from, to));
      if (fault < 0) loop.rows(job, from, to);
    }
  }, int(awake));
  return fault;
}

std::int64_t first_disorder(const ResampleJob &job, Isa isa) { return resample_loops_of(isa).disorder(job, 0, job.batch); }

} // namespace ridgeline
