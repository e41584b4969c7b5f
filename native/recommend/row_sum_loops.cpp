// The loop of row_sums.hpp that is compiled once per instruction set.
#include <algorithm>

#include "recommend/row_sums.hpp"

namespace ridgeline {
namespace RIDGELINE_ISA {
namespace {

constexpr std::int64_t kPiece = 1'024; // columns

void sum(const RowTable &table, const std::int64_t *rows, std::int64_t count, const float *weights, std::int64_t kinds, float *out,
         std::int64_t first, std::int64_t last) {
  for (std::int64_t from = first; from < last; from += kPiece) {
    const std::int64_t n = std::min(kPiece, last - from);
    for (std::int64_t k = 0; k < kinds; ++k) std::fill_n(out + k * table.width + from, n, 0.0f);
    for (std::int64_t l = 0; l < count; ++l) {
      const float *__restrict row = table.values + rows[l] * table.width + from;
      for (std::int64_t k = 0; k < kinds; ++k) {
        const float weight = weights[k * count + l];
        if (weight == 0) continue; // a long history is mostly too old to count in a weighting by recency
        float *__restrict to = out + k * table.width + from;
        for (std::int64_t c = 0; c < n; ++c) to[c] += weight * row[c];
      }
    }
  }
}

} // namespace

extern const RowSumLoops compiled_row_sum_loops;
const RowSumLoops compiled_row_sum_loops{sum};

} // namespace RIDGELINE_ISA
} // namespace ridgeline
