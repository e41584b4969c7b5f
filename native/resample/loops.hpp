// What the loop files of resample/ share. Part of the loops: compiled once per instruction set.
#pragma once

#include "resample/resample.hpp"

namespace ridgeline {
namespace RIDGELINE_ISA {

// As ResampleLoops::interpolate, for values of one type and stamps that are doubles or int64 (rows.hpp).
template <ValueType> std::int64_t interpolate_rows(const ResampleJob &job, std::int64_t from, std::int64_t to, bool check);
template <> std::int64_t interpolate_rows<ValueType::f16>(const ResampleJob &, std::int64_t, std::int64_t, bool);
template <> std::int64_t interpolate_rows<ValueType::bf16>(const ResampleJob &, std::int64_t, std::int64_t, bool);
template <> std::int64_t interpolate_rows<ValueType::f32>(const ResampleJob &, std::int64_t, std::int64_t, bool);
template <> std::int64_t interpolate_rows<ValueType::f64>(const ResampleJob &, std::int64_t, std::int64_t, bool);

// All trajectories have the same stamps.
inline bool stamps_are_shared(const ResampleJob &job) { return job.time_stride[0] == 0 && !job.offsets && !job.lengths; }

// The stamps of trajectory b: the index of the first one, and their number.
inline std::int64_t first_stamp(const ResampleJob &job, std::int64_t b) { return job.offsets ? job.offsets[b] : 0; }
inline std::int64_t stamp_count(const ResampleJob &job, std::int64_t b) {
  const std::int64_t count = job.offsets ? job.offsets[b + 1] - job.offsets[b] : job.stamps;
  return job.lengths && job.lengths[b] < count ? job.lengths[b] : count;
}

} // namespace RIDGELINE_ISA
} // namespace ridgeline
