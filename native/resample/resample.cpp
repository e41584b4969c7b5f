#include "resample/resample.hpp"

#include <algorithm>
#include <atomic>

#include "threads/pool.hpp"

namespace ridgeline {

RIDGELINE_LOOPS(ResampleLoops, resample_loops)

namespace {

// The smallest of the indices that several threads report.
class Smallest {
public:
  void add(std::int64_t index) {
    if (index < 0) return;
    std::int64_t known = value;
    while ((known < 0 || index < known) && !value.compare_exchange_weak(known, index)) {
    }
  }
  operator std::int64_t() const { return value; }

private:
  std::atomic<std::int64_t> value{-1};
};

// Trajectories [0, batch) in one contiguous part per thread. A thread takes pieces of its own part first, then pieces of
// the other parts. The parts belong to thread numbers, so in the next call a thread finds its data in its cache. The last
// pieces of a part are small, so that all threads finish at about the same time.
class Parts {
public:
  Parts(std::int64_t batch, std::int64_t threads)
      : count(std::min<std::int64_t>(threads, kMost)), piece(std::max<std::int64_t>(1, batch / (8 * count))) {
    for (std::int64_t k = 0; k < count; ++k) parts[k].next = batch * k / count, parts[k].end = batch * (k + 1) / count;
  }

  template <class Work> void take_pieces(std::int64_t thread, const Work &work) {
    for (std::int64_t k = 0; k < count; ++k) {
      Part &part = parts[(thread + k) % count];
      std::int64_t from = part.next; // read before it is written: a finished part stays in all caches
      while (from < part.end) {
        const std::int64_t to = from + std::min(piece, std::max<std::int64_t>(1, (part.end - from) / 3));
        if (!part.next.compare_exchange_weak(from, to)) continue;
        work(from, to);
        from = part.next;
      }
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
};

// Waking a thread costs as much as moving kBytesPerThread. Finding a target costs as much as moving kBytesPerTarget, and
// the slower kinds cost as much as moving some more bytes per number.
constexpr std::int64_t kBytesPerThread = 1 << 20, kBytesPerTarget = 160;
std::int64_t bytes_per_number(Kind kind) {
  return kind == Kind::slerp ? 64 : kind == Kind::cubic || kind == Kind::angle ? 32 : 0;
}

std::int64_t useful_threads(const ResampleJob &job) {
  const std::int64_t frames = job.offsets ? job.offsets[job.batch] - job.offsets[0] : job.batch * job.stamps;
  const std::int64_t results = job.batch * job.targets;
  std::int64_t bytes = (frames + results) * job.channels * item_bytes(job.value_type) + results * kBytesPerTarget;
  for (const ChannelGroup &group : job.groups) bytes += results * (group.stop - group.start) * bytes_per_number(group.kind);
  const std::int64_t worth = std::max<std::int64_t>(1, bytes / kBytesPerThread);
  return worth > 1 ? std::min<std::int64_t>(worth, usable_cpus()) : 1;
}

} // namespace

std::int64_t resample(const ResampleJob &job, Isa isa, int threads, bool check) {
  const ResampleLoops loops = select_resample_loops(isa);
  const std::int64_t count = std::min<std::int64_t>(threads > 0 ? threads : useful_threads(job), job.batch);
  if (count < 2) return loops.interpolate(job, 0, job.batch, check);
  Parts parts(job.batch, count);
  Smallest unsorted;
  run_parallel(int(count), [&](int thread) {
    parts.take_pieces(thread, [&](std::int64_t from, std::int64_t to) {
      if (unsorted < 0 || from < unsorted) unsorted.add(loops.interpolate(job, from, to, check));
    });
  });
  return unsorted;
}

std::int64_t first_unsorted(const ResampleJob &job, Isa isa) {
  return select_resample_loops(isa).first_unsorted(job, 0, job.batch);
}

} // namespace ridgeline
