// One query over lists of float32 vectors, from the query to its ranked rows. Step by step, as many queries go
// (ridgeline/search/cpu.py), the steps between the loops take longer than the loops.
#pragma once

#include <cstdint>

#include "threads/instruction_set.hpp"

namespace ridgeline {

struct OneQuery {
  bool unit, squared;          // cosine: the query at length 1; l2: squared distances, least first
  std::int64_t dim, lists, nprobe, k;
  const float *centres;        // [lists, dim]
  const float *halves;         // [lists] ‖centre‖²/2, or null
  const float *values;         // [places, dim], sorted by list
  const std::int64_t *offsets; // [lists + 1]
  const std::int64_t *rows;    // [places] the row at each
  const float *biases;         // [places] −‖x‖²/2, or null
  double longest;              // ‖x‖ of the longest row
  double rounding, underflow, too_large; // of float32 sums: search/metric.py
  std::int64_t more_terms;

  // The best rows of the lists nearest to query [dim], exact among those, equal scores by row; −1 and ∓∞ where none is
  // left. False, and nothing written: not finite, or too large for sums in float32.
  bool search(const float *query, float *scores, std::int64_t *found, Isa isa) const;
};

} // namespace ridgeline
