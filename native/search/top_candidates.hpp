// The best k of scores that arrive block by block, and whatever lies so near them that rounding could have swapped it.
#pragma once

#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "threads/instruction_set.hpp"

namespace ridgeline {

struct ScoreBlock {
  const float *scores;        // [queries, columns], contiguous; high is near
  std::int64_t queries, columns;
  const std::int64_t *which;  // [queries] numbers of the queries, or null: 0, 1, 2 …
  const float *offsets;       // [queries] added to all scores of a query, or null
  const float *biases;        // [columns] added to all scores of a column, or null
  std::int64_t first;         // the row of column 0, where the columns are consecutive rows
  const std::int64_t *rows;   // [columns], or null: consecutive from `first`
  const std::uint8_t *allowed; // [all rows], or null
};

// For one query: some of the lists by which rows lie sorted.
struct Probe {
  const std::int64_t *lists;   // [count] which
  std::int64_t count;
  const float *added;          // [count] to all scores of a list, or null
  const std::int64_t *offsets; // list l is places offsets[l] to offsets[l + 1]
  const std::int64_t *rows;    // [places] the row at each, or null: a place is a row
  const float *biases;         // [places], or null
  const std::uint8_t *allowed; // [all rows], or null
};
using Scoring = std::function<void(std::int64_t from, std::int64_t to, float *scores)>; // of some places

struct SieveLoops {
  // Positions of s[i] + offset + bias[i] >= bar among i < n, into `hits`, with the sums; the number of them.
  std::int64_t (*above)(const float *s, const float *bias, float offset, float bar, std::int64_t n, std::int32_t *hits,
                        float *sums);
  // Σ q·x, or Σ (q − x)², of float32 values in float64: always in the same order, so equal rows have equal scores.
  double (*dot)(const float *q, const float *x, std::int64_t d);
  double (*distance)(const float *q, const float *x, std::int64_t d);
  // The same in float32, of n rows [n, d].
  void (*dots)(const float *q, const float *x, std::int64_t d, std::int64_t n, float *out);
  float (*dot_bytes)(const float *q, const std::uint8_t *codes, std::int64_t d);
  // Σ tables[j, code[j]] for n rows of `parts` codes.
  void (*look_up)(const float *tables, const std::uint8_t *codes, std::int64_t parts, std::int64_t n, float *out);
};
SieveLoops sieve_loops(Isa isa);

// A row is kept while its score is at least (k-th best so far) − slack[query]. The k-th best only rises, so what was
// dropped stays below; with slack = 2 × the largest error of a score, no row of the exact top k, ties included, is lost.
class Sieve {
public:
  Sieve(std::int64_t queries, std::int64_t k, const double *slack);
  void sift(const ScoreBlock &block, Isa isa, int threads);
  void probe(const Probe &probe, const Scoring &score, Isa isa, int threads); // of query 0
  void settle();                                      // drop what the last blocks put below the bar
  const std::vector<std::int64_t> &kept(std::int64_t query); // after settle
  std::int64_t queries() const { return std::int64_t(lanes_.size()); }

private:
  struct Lane {
    std::vector<float> scores;
    std::vector<std::int64_t> rows;
    float bar;
    double slack;
    std::int64_t room;
  };
  void compact(Lane &lane);
  std::int64_t k_;
  std::vector<Lane> lanes_;
};

} // namespace ridgeline
