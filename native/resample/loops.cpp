// The loops of one instruction set: the choice by type of values, and the order of stamps.
// Compiled once per instruction set (CMakeLists.txt), each time in a namespace of its own.
#include "resample/loops.hpp"

#include <algorithm>
#include <vector>

#include "resample/locate.hpp"

namespace ridgeline {
namespace RIDGELINE_ISA {
namespace {

std::int64_t select_values(const ResampleJob &job, std::int64_t from, std::int64_t to, bool check) {
  switch (job.value_type) {
  case ValueType::f16: return interpolate_rows<ValueType::f16>(job, from, to, check);
  case ValueType::bf16: return interpolate_rows<ValueType::bf16>(job, from, to, check);
  case ValueType::f32: return interpolate_rows<ValueType::f32>(job, from, to, check);
  default: return interpolate_rows<ValueType::f64>(job, from, to, check);
  }
}

// Rows [from, to) of a float32 array [rows, columns], as doubles. A stride of 0 between rows stays 0.
class WidenedRows {
public:
  void fill(const float *source, const std::int64_t (&stride)[2], std::int64_t from, std::int64_t to, std::int64_t columns) {
    const std::int64_t rows = stride[0] == 0 ? std::min<std::int64_t>(1, to - from) : to - from;
    items.resize(std::max<std::size_t>(items.size(), rows * columns));
    double *out = items.data();
    for (std::int64_t r = 0; r < rows; ++r) {
      const float *row = source + (from + r) * stride[0];
      if (stride[1] == 1) for (std::int64_t k = 0; k < columns; ++k) *out++ = row[k];
      else for (std::int64_t k = 0; k < columns; ++k) *out++ = row[k * stride[1]];
    }
  }
  const double *data() const { return items.data(); }

private:
  std::vector<double> items;
};

// Jobs with float32 stamps run as jobs with doubles, a few trajectories at a time: one type less to compile. The results
// are the same to the last bit (`difference` in locate.hpp).
std::int64_t interpolate_float_times(const ResampleJob &job, std::int64_t from, std::int64_t to, bool check) {
  constexpr std::int64_t kStamps = 4096; // per block: 32 KB
  thread_local WidenedRows times, targets;
  const std::int64_t per_row = std::max<std::int64_t>(1, job.targets + (job.offsets ? 0 : job.stamps));
  const std::int64_t rows = std::max<std::int64_t>(1, kStamps / per_row);
  ResampleJob part = job;
  part.time_type = TimeType::f64;
  part.time_stride[1] = part.at_stride[1] = 1;
  part.narrow_times = true;
  part.gap_float = double(float(job.gap_float));
  for (std::int64_t first = from, last; first < to; first = last) {
    last = std::min(to, first + rows);
    const std::int64_t origin = job.offsets ? job.offsets[first] : 0; // of the packed stamps
    if (job.offsets) {
      const std::int64_t row[2] = {0, job.time_stride[1]};
      times.fill(static_cast<const float *>(job.times) + origin * job.time_stride[1], row, 0, 1, job.offsets[last] - origin);
    } else {
      times.fill(static_cast<const float *>(job.times), job.time_stride, first, last, job.stamps);
      part.time_stride[0] = job.time_stride[0] == 0 ? 0 : job.stamps;
    }
    targets.fill(static_cast<const float *>(job.at), job.at_stride, first, last, job.targets);
    part.at_stride[0] = job.at_stride[0] == 0 ? 0 : job.targets;
    // The loops count trajectories and stamps from the beginning of the job.
    part.times = times.data() - first * part.time_stride[0] - origin;
    part.at = targets.data() - first * part.at_stride[0];
    const std::int64_t unsorted = select_values(part, first, last, check && (first == from || !stamps_are_shared(job)));
    if (unsorted >= 0) return unsorted;
  }
  return -1;
}

std::int64_t interpolate(const ResampleJob &job, std::int64_t from, std::int64_t to, bool check) {
  return (job.time_type == TimeType::f32 ? interpolate_float_times : select_values)(job, from, to, check);
}

template <class T> std::int64_t first_unsorted_typed(const ResampleJob &job, std::int64_t from, std::int64_t to) {
  const T *times = static_cast<const T *>(job.times);
  const std::int64_t step = job.time_stride[1];
  if (stamps_are_shared(job)) to = std::min(to, from + 1);
  for (std::int64_t b = from; b < to; ++b)
    if (!is_sorted(times + b * job.time_stride[0] + first_stamp(job, b) * step, stamp_count(job, b), step)) return b;
  return -1;
}

std::int64_t first_unsorted(const ResampleJob &job, std::int64_t from, std::int64_t to) {
  switch (job.time_type) {
  case TimeType::f32: return first_unsorted_typed<float>(job, from, to);
  case TimeType::f64: return first_unsorted_typed<double>(job, from, to);
  default: return first_unsorted_typed<std::int64_t>(job, from, to);
  }
}

} // namespace

extern const ResampleLoops resample_loops;
const ResampleLoops resample_loops{interpolate, first_unsorted};

} // namespace RIDGELINE_ISA
} // namespace ridgeline
