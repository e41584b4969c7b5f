// Weighted sums of a few rows of a table: the scores of one user by a dense item-item matrix, and the mean text vector of
// what the user liked.
//
// What: several weightings of the same rows are summed in one pass over them. Rows are cut into pieces that stay in the
// first-level cache.
// Why: SciPy's product of a sparse row with a dense matrix reads the rows once per weighting, and checking and indexing
// its sparse matrices takes longer than the sums. One user's list on ml-latest-small takes 5.28 ms of CPU time in the
// median instead of 10.65 (records/cascade-lake-recommend-live.txt).
#pragma once

#include <cstdint>

#include "threads/instruction_set.hpp"

namespace ridgeline {

struct RowTable {
  const float *values; // [all rows, width]
  std::int64_t width;
};

// out [kinds, width] = Σ over l of weights[k, l] · table[rows[l]], in float32 and in the order of `rows`. A weight of 0
// leaves its row out.
void sum_rows(const RowTable &table, const std::int64_t *rows, std::int64_t count, const float *weights, std::int64_t kinds,
              float *out, Isa isa, int threads);

struct RowSumLoops {
  // The same for the columns [first, last).
  void (*sum)(const RowTable &table, const std::int64_t *rows, std::int64_t count, const float *weights, std::int64_t kinds,
              float *out, std::int64_t first, std::int64_t last);
};

} // namespace ridgeline
