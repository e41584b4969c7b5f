// Trajectories [from, to) by the type of their values. Part of the loops: compiled once per instruction set.
#pragma once

#include "resample.hpp"

namespace ridgeline {
namespace RIDGELINE_ISA {

// With `check` up to the first one out of order; tells which: -1 if all stamps rise and are numbers.
template <ValueType> std::int64_t rows_of(const ResampleJob &job, std::int64_t from, std::int64_t to, bool check);
template <> std::int64_t rows_of<ValueType::f16>(const ResampleJob &, std::int64_t, std::int64_t, bool);
template <> std::int64_t rows_of<ValueType::bf16>(const ResampleJob &, std::int64_t, std::int64_t, bool);
template <> std::int64_t rows_of<ValueType::f32>(const ResampleJob &, std::int64_t, std::int64_t, bool);
template <> std::int64_t rows_of<ValueType::f64>(const ResampleJob &, std::int64_t, std::int64_t, bool);

inline bool one_clock(const ResampleJob &job) { return job.time_stride[0] == 0 && !job.offsets && !job.lengths; }

} // namespace RIDGELINE_ISA
} // namespace ridgeline
