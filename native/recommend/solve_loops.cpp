// The loops of neighbours.hpp that are compiled once per instruction set.
#include <cmath>

#include "recommend/neighbours.hpp"

namespace ridgeline {
namespace RIDGELINE_ISA {
namespace {

bool solve(double *a, double *b, std::int64_t n) {
  for (std::int64_t k = 0; k < n; ++k) {
    double *row = a + k * n;
    if (!(row[k] > 0)) return false;
    const double scale = 1 / std::sqrt(row[k]);
    for (std::int64_t j = k; j < n; ++j) row[j] *= scale;
    b[k] *= scale;
    for (std::int64_t i = k + 1; i < n; ++i) {
      const double factor = row[i];
      if (factor == 0) continue;
      double *below = a + i * n;
      for (std::int64_t j = i; j < n; ++j) below[j] -= factor * row[j];
      b[i] -= factor * b[k];
    }
  }
  for (std::int64_t k = n - 1; k >= 0; --k) {
    const double *row = a + k * n;
    double sum = b[k];
    for (std::int64_t j = k + 1; j < n; ++j) sum -= row[j] * b[j];
    b[k] = sum / row[k];
  }
  return true;
}

} // namespace

extern const SolveLoops compiled_solve_loops;
const SolveLoops compiled_solve_loops{solve};

} // namespace RIDGELINE_ISA
} // namespace ridgeline
