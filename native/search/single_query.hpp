// One query over lists of float32 vectors, from the query to its ranked rows in one call. For a single query the Python
// steps of the path for many queries (ridgeline/search) take longer than the loops.
#pragma once

#include <cstdint>

#include "threads/instruction_set.hpp"

namespace ridgeline {

struct SingleQuery {
  bool unit, squared;          // cosine: the query at length 1; l2: squared distances, least first
  std::int64_t dim, lists, nprobe, k;
  const float *centres;        // [lists, dim]
  const float *halves;         // [lists] ‖centre‖²/2, or null
  const float *values;         // [positions, dim], sorted by list
  const std::int64_t *offsets; // [lists + 1]
  const std::int64_t *rows;    // [positions] the row at each position
  const float *biases;         // [positions] −‖x‖²/2, or null
  double longest;              // ‖x‖ of the longest row
  double rounding, underflow, too_large; // of float32 sums: search/metric.py
  std::int64_t more_terms;

  // Writes the k best rows of the nprobe nearest lists, exact within those lists; equal scores are sorted by row. Where
  // there are fewer rows it writes −1 and ∓∞. False, and nothing is written, if the query is not finite or is too large
  // for sums in float32.
  bool search(const float *query, float *scores, std::int64_t *row_ids, Isa isa) const;
};

} // namespace ridgeline
