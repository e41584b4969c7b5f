#include "resample.hpp"

#include <algorithm>
#include <atomic>
#include <thread>

namespace ridgeline {

namespace baseline { extern const ResampleRows resample_loop; }
#if defined(__x86_64__)
namespace avx2 { extern const ResampleRows resample_loop; }
namespace avx512 { extern const ResampleRows resample_loop; }
#endif

ResampleRows resample_rows(Isa isa) {
#if defined(__x86_64__)
  if (isa == Isa::avx512) return avx512::resample_loop;
  if (isa == Isa::avx2) return avx2::resample_loop;
#endif
  (void)isa;
  return baseline::resample_loop;
}

void resample(const ResampleJob &job, Isa isa, int threads) {
  const ResampleRows loop = resample_rows(isa);
  const std::int64_t n = std::max<std::int64_t>(1, std::min<std::int64_t>(threads, job.batch));
  if (n == 1) return loop(job, 0, job.batch);
  // Small pieces from one counter: a thread that comes late or is held up leaves its share to the others.
  const std::int64_t piece = std::max<std::int64_t>(1, job.batch / (8 * n));
  std::atomic<std::int64_t> next{0};
  const auto work = [&] {
    for (std::int64_t from; (from = next.fetch_add(piece)) < job.batch;) loop(job, from, std::min(job.batch, from + piece));
  };
  std::vector<std::thread> team;
  for (std::int64_t k = 1; k < n; ++k) team.emplace_back(work);
  work();
  for (auto &thread : team) thread.join();
}

namespace {

template <class T> bool in_order(const T *stamps, std::int64_t n) {
  bool ok = n == 0 || stamps[0] == stamps[0];
  for (std::int64_t i = 1; i < n; ++i) ok &= stamps[i] >= stamps[i - 1]; // no early way out: the loop is vectorised
  return ok;
}

template <class T> Fault disorder(const ResampleJob &job) {
  const T *times = static_cast<const T *>(job.times);
  const std::int64_t rows = job.time_stride[0] == 0 && !job.offsets && !job.lengths ? std::min<std::int64_t>(1, job.batch) : job.batch;
  for (std::int64_t b = 0; b < rows; ++b) {
    const std::int64_t first = job.offsets ? job.offsets[b] : 0;
    std::int64_t n = job.offsets ? job.offsets[b + 1] - first : job.stamps;
    if (job.lengths) n = std::min(n, job.lengths[b]);
    const T *row = times + b * job.time_stride[0] + first * job.time_stride[1];
    if (job.time_stride[1] == 1 && in_order(row, n)) continue;
    for (std::int64_t i = 0; i < n; ++i) {
      const T now = row[i * job.time_stride[1]], before = row[(i ? i - 1 : 0) * job.time_stride[1]];
      if (!(now >= before)) return {b, i};
    }
  }
  return {-1, -1};
}

} // namespace

Fault first_disorder(const ResampleJob &job) {
  switch (job.time_type) {
  case TimeType::f32: return disorder<float>(job);
  case TimeType::f64: return disorder<double>(job);
  default: return disorder<std::int64_t>(job);
  }
}

} // namespace ridgeline
