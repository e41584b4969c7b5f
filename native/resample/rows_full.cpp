// Trajectories of float32 and float64 values. Compiled once per instruction set (CMakeLists.txt), each time in a
// namespace of its own.
#include "resample/rows.hpp"

namespace ridgeline {
namespace RIDGELINE_ISA {

template <>
std::int64_t interpolate_rows<ValueType::f32>(const ResampleJob &job, std::int64_t from, std::int64_t to, bool check) {
  return select_time<float, float>(job, from, to, check);
}
template <>
std::int64_t interpolate_rows<ValueType::f64>(const ResampleJob &job, std::int64_t from, std::int64_t to, bool check) {
  return select_time<double, double>(job, from, to, check);
}

} // namespace RIDGELINE_ISA
} // namespace ridgeline
