// Trajectories of float16 and bfloat16 values. Compiled once per instruction set (CMakeLists.txt), each time in a
// namespace of its own.
#include "resample/rows.hpp"

namespace ridgeline {
namespace RIDGELINE_ISA {

template <>
std::int64_t interpolate_rows<ValueType::f16>(const ResampleJob &job, std::int64_t from, std::int64_t to, bool check) {
  return job.out_is_wide ? select_time<F16, float>(job, from, to, check) : select_time<F16, F16>(job, from, to, check);
}
template <>
std::int64_t interpolate_rows<ValueType::bf16>(const ResampleJob &job, std::int64_t from, std::int64_t to, bool check) {
  return job.out_is_wide ? select_time<BF16, float>(job, from, to, check) : select_time<BF16, BF16>(job, from, to, check);
}

} // namespace RIDGELINE_ISA
} // namespace ridgeline
