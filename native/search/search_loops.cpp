// Compiled once per instruction set (CMakeLists.txt), each time in a namespace of its own.
#include <cstring>

#include "search/top_candidates.hpp"

namespace ridgeline {
namespace RIDGELINE_ISA {
namespace {

constexpr std::int64_t kWidth = 16;

// One register: compilers split wider vectors into single numbers.
#if defined(__AVX512F__)
#define RIDGELINE_BYTES 64
#elif defined(__AVX2__)
#define RIDGELINE_BYTES 32
#else
#define RIDGELINE_BYTES 16
#endif
typedef float Floats __attribute__((vector_size(RIDGELINE_BYTES)));
typedef std::int32_t Mask __attribute__((vector_size(RIDGELINE_BYTES)));
constexpr std::int64_t kLanes = RIDGELINE_BYTES / 4, kStride = 64; // kStride scores are tested at once: mostly there is no hit

inline Floats load(const float *from) {
  Floats v;
  std::memcpy(&v, from, sizeof v);
  return v;
}

inline bool any(Mask mask) {
  std::uint64_t words[RIDGELINE_BYTES / 8], all = 0;
  std::memcpy(words, &mask, sizeof words);
  for (std::uint64_t w : words) all |= w;
  return all != 0;
}

template <bool biased>
std::int64_t above_with(const float *s, const float *bias, float offset, float bar, std::int64_t n, std::int32_t *hits,
                        float *sums) {
  std::int64_t count = 0, i = 0;
  auto take = [&](std::int64_t at) {
    const float sum = biased ? s[at] + offset + bias[at] : s[at] + offset;
    if (sum >= bar) hits[count] = std::int32_t(at), sums[count++] = sum;
  };
  for (; i + kStride <= n; i += kStride) {
    Mask hit = {};
    for (std::int64_t u = 0; u < kStride; u += kLanes) {
      Floats sum = load(s + i + u) + offset;
      if (biased) sum += load(bias + i + u);
      hit |= sum >= bar;
    }
    if (any(hit))
      for (std::int64_t u = 0; u < kStride; ++u) take(i + u);
  }
  for (; i < n; ++i) take(i);
  return count;
}

std::int64_t above(const float *s, const float *bias, float offset, float bar, std::int64_t n, std::int32_t *hits,
                   float *sums) {
  return bias ? above_with<true>(s, bias, offset, bar, n, hits, sums)
              : above_with<false>(s, bias, offset, bar, n, hits, sums);
}

template <class Term> double sum_terms(std::int64_t d, Term term) {
  double part[kWidth] = {};
  std::int64_t i = 0;
  for (; i + kWidth <= d; i += kWidth)
    for (std::int64_t u = 0; u < kWidth; ++u) part[u] += term(i + u);
  double rest = 0;
  for (; i < d; ++i) rest += term(i);
  for (std::int64_t u = 0; u < kWidth; ++u) rest += part[u];
  return rest;
}

double dot(const float *q, const float *x, std::int64_t d) {
  return sum_terms(d, [=](std::int64_t i) { return double(q[i]) * double(x[i]); });
}

double distance(const float *q, const float *x, std::int64_t d) {
  return sum_terms(d, [=](std::int64_t i) {
    const double difference = double(q[i]) - double(x[i]);
    return difference * difference;
  });
}

// Four rows at a time: each load of the query serves all four, and the next four rows are prefetched.
constexpr int kUnrolled = RIDGELINE_BYTES < 32 ? 64 / RIDGELINE_BYTES : 2;
constexpr std::int64_t kStep = kUnrolled * kLanes, kLine = 16; // floats

template <int Rows> inline void dot_rows(const float *q, const float *x, std::int64_t d, float *out) {
  Floats sums[Rows][kUnrolled] = {};
  std::int64_t i = 0;
  for (; i + kStep <= d; i += kStep) {
    for (int r = 0; r < Rows; ++r)
      for (std::int64_t line = 0; line < kStep; line += kLine) __builtin_prefetch(x + (Rows + r) * d + i + line);
    for (int u = 0; u < kUnrolled; ++u) {
      const Floats with = load(q + i + u * kLanes);
      for (int r = 0; r < Rows; ++r) sums[r][u] += with * load(x + r * d + i + u * kLanes);
    }
  }
  for (int r = 0; r < Rows; ++r) {
    for (int u = 1; u < kUnrolled; ++u) sums[r][0] += sums[r][u];
    float sum = 0;
    for (std::int64_t u = 0; u < kLanes; ++u) sum += sums[r][0][u];
    for (std::int64_t k = i; k < d; ++k) sum += q[k] * x[r * d + k];
    out[r] = sum;
  }
}

void dots(const float *q, const float *x, std::int64_t d, std::int64_t n, float *out) {
  std::int64_t r = 0;
  for (; r + 4 <= n; r += 4) dot_rows<4>(q, x + r * d, d, out + r);
  for (; r < n; ++r) dot_rows<1>(q, x + r * d, d, out + r);
}

// Tiles of 4 rows by kTile queries: as many sums as there are registers.
constexpr int kTile = RIDGELINE_BYTES == 64 ? 4 : 2;

template <int Queries, int Rows> inline void dot_tile(const float *q, const float *x, std::int64_t d, float *out, std::int64_t stride) {
  Floats sums[Queries][Rows] = {};
  std::int64_t i = 0;
  for (; i + kLanes <= d; i += kLanes) {
    Floats rows[Rows];
    for (int r = 0; r < Rows; ++r) rows[r] = load(x + r * d + i);
    for (int k = 0; k < Queries; ++k) {
      const Floats with = load(q + k * d + i);
      for (int r = 0; r < Rows; ++r) sums[k][r] += with * rows[r];
    }
  }
  for (int k = 0; k < Queries; ++k)
    for (int r = 0; r < Rows; ++r) {
      float sum = 0;
      for (std::int64_t u = 0; u < kLanes; ++u) sum += sums[k][r][u];
      for (std::int64_t j = i; j < d; ++j) sum += q[k * d + j] * x[r * d + j];
      out[k * stride + r] = sum;
    }
}

template <int Rows> inline void dot_rows_few(const float *q, std::int64_t queries, const float *x, std::int64_t d, float *out, std::int64_t stride) {
  std::int64_t k = 0;
  for (; k + kTile <= queries; k += kTile) dot_tile<kTile, Rows>(q + k * d, x, d, out + k * stride, stride);
  for (; k < queries; ++k) dot_tile<1, Rows>(q + k * d, x, d, out + k * stride, stride);
}

void dots_few(const float *q, std::int64_t queries, const float *x, std::int64_t d, std::int64_t n, float *out, std::int64_t stride) {
  std::int64_t r = 0;
  for (; r + 4 <= n; r += 4) {
    for (std::int64_t line = 0; line < 4 * d; line += kLine) __builtin_prefetch(x + (r + 4) * d + line);
    dot_rows_few<4>(q, queries, x + r * d, d, out + r, stride);
  }
  for (; r < n; ++r) dot_rows_few<1>(q, queries, x + r * d, d, out + r, stride);
}

float dot_bytes(const float *q, const std::uint8_t *codes, std::int64_t d) {
  float part[kWidth] = {}, rest = 0;
  std::int64_t i = 0;
  for (; i + kWidth <= d; i += kWidth)
    for (std::int64_t u = 0; u < kWidth; ++u) part[u] += q[i + u] * float(codes[i + u]);
  for (; i < d; ++i) rest += q[i] * float(codes[i]);
  for (std::int64_t u = 0; u < kWidth; ++u) rest += part[u];
  return rest;
}

void look_up(const float *tables, const std::uint8_t *codes, std::int64_t parts, std::int64_t n, float *out) {
  for (std::int64_t r = 0; r < n; ++r, codes += parts) {
    // Four independent sums: in one chain each addition waits for the last.
    float a = 0, b = 0, c = 0, e = 0;
    std::int64_t j = 0;
    for (; j + 4 <= parts; j += 4) {
      const float *t = tables + 256 * j;
      a += t[codes[j]], b += t[256 + codes[j + 1]], c += t[512 + codes[j + 2]], e += t[768 + codes[j + 3]];
    }
    for (; j < parts; ++j) a += tables[256 * j + codes[j]];
    out[r] = (a + b) + (c + e);
  }
}

} // namespace

extern const SearchLoops compiled_search_loops;
const SearchLoops compiled_search_loops{above, dot, distance, dots, dots_few, dot_bytes, look_up};

} // namespace RIDGELINE_ISA
} // namespace ridgeline
