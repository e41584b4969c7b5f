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

// Trajectories [0, batch) in as many parts as there are threads, each part one stretch of memory: a thread walks through
// its own part, a piece at a time, and then takes pieces of whoever came late or is held up. Parts go by the threads'
// numbers, so that each finds what it had the last time. The last pieces are small: all end at about the same time.
class Parts {
public:
  Parts(std::int64_t batch, std::int64_t threads)
      : count(std::min<std::int64_t>(threads, kMost)), piece(std::max<std::int64_t>(1, batch / (8 * count))) {
    for (std::int64_t k = 0; k < count; ++k) parts[k].next = batch * k / count, parts[k].end = batch * (k + 1) / count;
  }

  template <class Work> void share(std::int64_t own, const Work &work) {
    for (std::int64_t k = 0; k < count; ++k) {
      Part &part = parts[(own + k) % count];
      std::int64_t from = part.next; // read before it is written: a part that is done stays in everybody's cache
      while (from < part.end) {
        const std::int64_t to = from + std::min(piece, std::max<std::int64_t>(1, (part.end - from) / 3));
        if (!part.next.compare_exchange_weak(from, to)) continue;
        work(from, to);
        from = part.next;
      }
    }
  }

  std::int64_t begin(std::int64_t own) const { return parts[own % count].next; }
  std::int64_t end(std::int64_t own) const { return parts[own % count].end; }

private:
  static constexpr std::int64_t kMost = 64;
  struct alignas(64) Part { // a cache line each
    std::atomic<std::int64_t> next;
    std::int64_t end;
  };
  Part parts[kMost];
  const std::int64_t count, piece;
};

static std::int64_t size_of(ValueType type) { return type == ValueType::f64 ? 8 : type == ValueType::f32 ? 4 : 2; }
static std::int64_t size_of(TimeType type) { return type == TimeType::f32 ? 4 : 8; }

// Waking a thread, on cores that others may be using, costs as much as moving this many bytes. Finding a target takes as
// long as moving so many, however few channels it has, and what is more than mixing so many for each number.
constexpr std::int64_t kBytesPerThread = 1 << 20, kBytesPerTarget = 160;
static std::int64_t bytes_per_number(Kind kind) {
  return kind == Kind::slerp ? 64 : kind == Kind::cubic || kind == Kind::angle ? 32 : 0;
}

static std::int64_t threads_worth(const ResampleJob &job) {
  const std::int64_t frames = job.offsets ? job.offsets[job.batch] - job.offsets[0] : job.batch * job.stamps;
  const std::int64_t answers = job.batch * job.targets;
  std::int64_t bytes = (frames + answers) * job.channels * size_of(job.value_type) + answers * kBytesPerTarget;
  for (const Channels &group : job.groups) bytes += answers * (group.stop - group.start) * bytes_per_number(group.kind);
  return std::max<std::int64_t>(1, bytes / kBytesPerThread);
}

// Closed until the caller has done what comes first; then either the work begins or there is none.
class Gate {
public:
  explicit Gate(bool open) : state(open ? kOpen : kClosed) {}
  bool closed() const { return state == kClosed; }
  bool open() const { return state == kOpen; }
  void decide(bool go) { state = go ? kOpen : kNever; }

private:
  enum State { kClosed, kOpen, kNever };
  std::atomic<State> state;
};

// Brings trajectories [from, to) near, one after the other, while the gate is closed. Where they are not one block of
// memory each, or there are more than caches hold, it only waits.
static void fetch_meanwhile(const ResampleJob &job, std::int64_t from, std::int64_t to, const Gate &gate) {
  constexpr std::int64_t kLine = 64, kNear = 256 << 10; // bytes; caches of a single core hold more
  std::int64_t left = job.offsets ? 0 : kNear;
  const auto lines = [&](const void *array, std::int64_t start, std::int64_t items, std::int64_t size) {
    const char *line = static_cast<const char *>(array) + start * size;
    for (const char *end = line + items * size; line < end && left > 0 && gate.closed(); line += kLine, left -= kLine)
      __builtin_prefetch(line, 0, 2);
  };
  const std::int64_t value = size_of(job.value_type), time = size_of(job.time_type);
  for (std::int64_t b = from; b < to && left > 0 && gate.closed(); ++b) {
    if (job.time_stride[1] == 1) lines(job.times, b * job.time_stride[0], job.stamps, time);
    if (job.at_stride[1] == 1) lines(job.at, b * job.at_stride[0], job.targets, time);
    if (job.value_stride[2] == 1 && job.value_stride[1] == job.channels)
      lines(job.values, b * job.value_stride[0], job.stamps * job.channels, value);
  }
  for (Patience patience; gate.closed();) patience.breathe();
}

std::int64_t resample(const ResampleJob &job, Isa isa, int threads, bool check, const std::function<bool()> &before) {
  const ResampleLoops loop = resample_loops_of(isa);
  std::int64_t n = std::min<std::int64_t>(threads > 0 ? threads : threads_worth(job), std::max<std::int64_t>(1, job.batch));
  std::int64_t awake = n;
  const bool as_worth = threads <= 0 && n > 1;
  if (as_worth) {
    const std::int64_t cpus = cpus_lately();
    n = std::min(n, cpus), awake = std::min(cpus, job.batch);
  }
  Parts parts(job.batch, awake);
  First fault;
  Gate gate(!before);
  together(int(n), [&](int own) {
    if (gate.closed()) {
      if (own == 0) gate.decide(before());
      else fetch_meanwhile(job, parts.begin(own), parts.end(own), gate);
    }
    if (gate.open()) parts.share(own, [&](std::int64_t from, std::int64_t to) {
      if (fault < 0 || from < fault) fault.note(loop.rows(job, from, to, check));
    });
  }, as_worth ? int(awake) : 0);
  return fault;
}

std::int64_t first_disorder(const ResampleJob &job, Isa isa) { return resample_loops_of(isa).disorder(job, 0, job.batch); }

} // namespace ridgeline
