// RaBitQ: one to four bits per dimension and a bound on the error of every score (Gao et al., SIGMOD 2024 and 2025).
//
// A row is its centre plus a difference r. A random rotation P makes all dimensions alike. The code is the grid point g of
// nearly the same direction as P·r, and the estimate of q·r is f·(g·Pq) with f = |r|² / (g·Pr), which has no bias. Its error
// is that of the part of g across r, whose direction is random: at most e·|q| with e = kDeviations · |r| · tan(angle) /
// √(dim − 1), except for one row in thousands. A search computes estimates for all rows of the lists, and reads only those
// vectors whose upper bound reaches the k-th best score.
#pragma once

#include <cstdint>
#include <vector>

#include "threads/instruction_set.hpp"

namespace ridgeline {

constexpr double kDeviations = 4; // standard deviations: one error in 16,000 is larger
constexpr int kRotationRounds = 4;

// What follows the codes of a row.
struct RabitqHeader {
  float factor; // f
  float error;  // e
  float length; // |f·g|: of the stored value
};

// Bits of all dimensions side by side: 4, 2 or 1 bits each. Field j of byte i holds dimension j · width + i.
struct RabitqSection {
  int bits;
  std::int64_t width; // bytes, a multiple of 32
};

struct RabitqLoops {
  // out[i] += weight · Σ code · digit for rows i < n, at rows + i · stride; digits [fields · width].
  void (*add_products)(const RabitqSection &section, const std::int8_t *digits, float weight, const std::uint8_t *rows,
                       std::int64_t stride, std::int64_t n, float *out);
  // The levels [dim], 0 to 2^bits − 1, of the grid point with nearly the direction of x; its g·x and g·g.
  void (*round_to_grid)(const float *x, std::int64_t dim, int bits, std::uint8_t *levels, float *product, float *square);
  // x [dim] times the matrix of Hadamard of `size`, a power of two, scaled to be orthogonal.
  void (*mix)(float *x, std::int64_t size);
};
RabitqLoops rabitq_loops(Isa isa);

class Rabitq {
public:
  Rabitq(std::int64_t dim, int bits, const std::uint8_t *signs); // signs [kRotationRounds, dim]: 1 turns a dimension around
  std::int64_t dim() const { return dim_; }
  std::int64_t stride() const { return stride_; }
  void rotate(float *x, const RabitqLoops &loops) const;
  void rotate_back(float *x, const RabitqLoops &loops) const;
  void encode(const float *values, std::int64_t n, std::uint8_t *codes, int threads, Isa isa) const; // of differences
  void decode(const std::uint8_t *codes, std::int64_t n, float *values, int threads, Isa isa) const;

  struct PreparedQuery {
    std::vector<std::int8_t> high, low; // round(q / scale), or with two digits 128 · high + low
    float scale, sum;                   // of the rounded query: scale, and the sum of its components
    double lost;                        // |query − rounded query|
  };
  // One digit loses less than the codes do; with two the estimates are those of the stored values.
  PreparedQuery prepare(const float *query, int digits, const RabitqLoops &loops) const;
  // Writes f·(g·Pq) of n rows to `out`, and to `errors` error_weight · e + length_weight · |f·g|.
  void estimate(const PreparedQuery &query, const std::uint8_t *rows, std::int64_t n, float error_weight, float length_weight,
                float *out, float *errors, const RabitqLoops &loops) const;
  RabitqHeader header(const std::uint8_t *row) const;

private:
  std::int64_t mixed() const; // the largest power of two up to dim
  std::int64_t dim_, stride_, code_bytes_;
  int bits_;
  std::vector<float> signs_;
  std::vector<RabitqSection> sections_;
  std::vector<float> weights_; // of a section
};

// Rows of some lists, sorted by list.
struct RabitqSegment {
  const std::uint8_t *codes;   // [positions, stride]
  const std::int64_t *offsets; // [lists + 1]
  const std::int64_t *rows;    // [positions]
  const float *biases;         // [positions], or null
};

struct RabitqSearch {
  const Rabitq *codec;
  std::vector<RabitqSegment> segments;
  std::int64_t lists;
  const float *centres;        // [lists, dim]
  const float *halves;         // [lists] ‖centre‖²/2, or null: lists by inner product
  const float *values;         // [rows, dim] read in full, or null: the stored values decide
  const std::uint8_t *allowed; // [rows], or null
  const std::int64_t *ids;     // [rows] equal scores are sorted by id, or null: by row
  bool squared;
  double longest, too_large;   // ‖x‖ of the longest row; the largest ‖q‖·‖x‖
  double longest_difference;   // of a stored value to its centre, at most

  // Writes the k best rows of the nprobe nearest lists of a query: scores are inner products or squared distances in float64,
  // −1 and ∓∞ where there are fewer rows. Returns the number of rows that were read in full; −1, and nothing is written, if
  // the query is too large for sums in float32.
  std::int64_t search(const float *query, std::int64_t k, std::int64_t nprobe, double *scores, std::int64_t *rows, Isa isa,
                      int threads) const;
};

} // namespace ridgeline
