// The k best rows of scores that arrive block by block, and all rows so close to them that rounding could have swapped
// them.
#pragma once

#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "threads/instruction_set.hpp"

namespace ridgeline {

struct ScoreBlock {
  const float *scores;        // [queries, columns], contiguous; a high score is a near row
  std::int64_t queries, columns;
  const std::int64_t *which;  // [queries] the index of each query, or null: 0, 1, 2 …
  const float *offsets;       // [queries] added to all scores of a query, or null
  const float *biases;        // [columns] added to all scores of a column, or null
  std::int64_t first;         // the row of column 0, where the columns are consecutive rows
  const std::int64_t *rows;   // [columns], or null: consecutive from `first`
  const std::uint8_t *allowed; // [all rows], or null
};

// Some of the lists (clusters) that the rows are sorted by, for one query.
struct Probe {
  const std::int64_t *lists;   // [count] their indices
  std::int64_t count;
  const float *added;          // [count] to all scores of a list, or null
  const std::int64_t *offsets; // list l is positions offsets[l] to offsets[l + 1]
  const std::int64_t *rows;    // [positions] the row at each position, or null: a position is a row
  const float *biases;         // [positions], or null
  const std::uint8_t *allowed; // [all rows], or null
};
using Scoring = std::function<void(std::int64_t from, std::int64_t to, float *scores)>; // of positions [from, to)

struct SearchLoops {
  // Writes every i < n with s[i] + offset + bias[i] >= bar to `hits` and the sums to `sums`; returns their number.
  std::int64_t (*above)(const float *s, const float *bias, float offset, float bar, std::int64_t n, std::int32_t *hits,
                        float *sums);
  // Σ q·x, or Σ (q − x)², of float32 values in float64. The order of the additions is fixed, so equal rows have equal scores.
  double (*dot)(const float *q, const float *x, std::int64_t d);
  double (*distance)(const float *q, const float *x, std::int64_t d);
  // Inner products in float32 with n rows [n, d].
  void (*dots)(const float *q, const float *x, std::int64_t d, std::int64_t n, float *out);
  // The same for some queries [queries, d]: each row is read from memory once. out [queries, stride].
  void (*dots_few)(const float *q, std::int64_t queries, const float *x, std::int64_t d, std::int64_t n, float *out,
                   std::int64_t stride);
  float (*dot_bytes)(const float *q, const std::uint8_t *codes, std::int64_t d);
  // Σ tables[j, code[j]] for n rows of `parts` codes.
  void (*look_up)(const float *tables, const std::uint8_t *codes, std::int64_t parts, std::int64_t n, float *out);
};
SearchLoops search_loops(Isa isa);

// A row stays a candidate while its score is at least (k-th best so far) − slack[query]. The k-th best only rises, so a
// dropped row stays below it. With slack = 2 × the largest error of a score, no row of the exact top k is lost, ties
// included.
class TopCandidates {
public:
  TopCandidates(std::int64_t queries, std::int64_t k, const double *slack);
  void add_scores(const ScoreBlock &block, Isa isa, int threads);
  void probe(const Probe &probe, const Scoring &score, Isa isa, int threads); // for query 0
  void finish();                                      // drop the rows that the last blocks put below the bar
  const std::vector<std::int64_t> &rows(std::int64_t query); // after finish
  std::int64_t queries() const { return std::int64_t(candidates_.size()); }

private:
  struct Candidates {
    std::vector<float> scores;
    std::vector<std::int64_t> rows;
    float bar;
    double slack;
    std::int64_t capacity;
  };
  void drop_below_bar(Candidates &lane);
  std::int64_t k_;
  std::vector<Candidates> candidates_;
};

} // namespace ridgeline
