// Compiled once per instruction set (CMakeLists.txt), each time into a namespace of its own.
#include <algorithm>

#include "resample_order.hpp"
#include "resample_rows.hpp"

namespace ridgeline {
namespace RIDGELINE_ISA {
namespace {

std::int64_t all_rows(const ResampleJob &job, std::int64_t from, std::int64_t to, bool check) {
  switch (job.value_type) {
  case ValueType::f16: return rows_of<ValueType::f16>(job, from, to, check);
  case ValueType::bf16: return rows_of<ValueType::bf16>(job, from, to, check);
  case ValueType::f32: return rows_of<ValueType::f32>(job, from, to, check);
  default: return rows_of<ValueType::f64>(job, from, to, check);
  }
}

template <class T> std::int64_t disorder(const ResampleJob &job, std::int64_t from, std::int64_t to) {
  const T *times = static_cast<const T *>(job.times);
  const std::int64_t step = job.time_stride[1];
  if (one_clock(job)) to = std::min(to, from + 1);
  for (std::int64_t b = from; b < to; ++b) {
    const std::int64_t first = job.offsets ? job.offsets[b] : 0;
    std::int64_t n = job.offsets ? job.offsets[b + 1] - first : job.stamps;
    if (job.lengths) n = std::min(n, job.lengths[b]);
    if (!in_order(times + b * job.time_stride[0] + first * step, n, step)) return b;
  }
  return -1;
}

std::int64_t all_disorder(const ResampleJob &job, std::int64_t from, std::int64_t to) {
  switch (job.time_type) {
  case TimeType::f32: return disorder<float>(job, from, to);
  case TimeType::f64: return disorder<double>(job, from, to);
  default: return disorder<std::int64_t>(job, from, to);
  }
}

} // namespace

extern const ResampleLoops resample_loops;
const ResampleLoops resample_loops{all_rows, all_disorder};

} // namespace RIDGELINE_ISA
} // namespace ridgeline
