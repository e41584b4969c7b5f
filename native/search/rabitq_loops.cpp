// Compiled once per instruction set (CMakeLists.txt), each time in a namespace of its own.
#include <cmath>
#include <cstring>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#include "search/rabitq.hpp"

namespace ridgeline {
namespace RIDGELINE_ISA {
namespace {

constexpr std::int64_t kRows = 4; // at a time: each load of the query serves all of them, and the next four are fetched

// A code has up to 4 bits and a digit of the query 7 and a sign: a sum of two products fits 16 bits eight times over.
#if defined(__AVX2__)
inline __m256i add_block(__m256i sum, __m256i bytes, const std::int8_t *digits, std::int64_t width, int bits, int fields, __m256i mask) {
  __m256i some = _mm256_setzero_si256();
  for (int j = 0; j < fields; ++j)
    some = _mm256_add_epi16(some, _mm256_maddubs_epi16(_mm256_and_si256(_mm256_srli_epi16(bytes, bits * j), mask),
                                                       _mm256_loadu_si256((const __m256i *)(digits + j * width))));
  return _mm256_add_epi32(sum, _mm256_madd_epi16(some, _mm256_set1_epi16(1)));
}

inline float add_up(__m256i v) {
  __m128i sum = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
  sum = _mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0x4e));
  return float(_mm_cvtsi128_si32(_mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0xb1))));
}

template <int Bits, int Rows>
inline void multiply(const std::int8_t *digits, const std::uint8_t *rows, std::int64_t width, std::int64_t stride, float *out) {
  constexpr int kFields = 8 / Bits;
  const __m256i mask = _mm256_set1_epi8((1 << Bits) - 1);
  __m256i sums[Rows];
  std::int64_t i = 0;
#if defined(__AVX512BW__)
  const __m512i wide_mask = _mm512_set1_epi8((1 << Bits) - 1), ones = _mm512_set1_epi16(1);
  __m512i wide[Rows];
  for (int r = 0; r < Rows; ++r) wide[r] = _mm512_setzero_si512();
  for (; i + 64 <= width; i += 64) {
    __m512i bytes[Rows], some[Rows];
    for (int r = 0; r < Rows; ++r) bytes[r] = _mm512_loadu_si512(rows + r * stride + i), some[r] = _mm512_setzero_si512();
    for (int j = 0; j < kFields; ++j) {
      const __m512i with = _mm512_loadu_si512(digits + j * width + i);
      for (int r = 0; r < Rows; ++r)
        some[r] = _mm512_add_epi16(some[r], _mm512_maddubs_epi16(_mm512_and_si512(_mm512_srli_epi16(bytes[r], Bits * j), wide_mask), with));
    }
    for (int r = 0; r < Rows; ++r) wide[r] = _mm512_add_epi32(wide[r], _mm512_madd_epi16(some[r], ones));
  }
  for (int r = 0; r < Rows; ++r) sums[r] = _mm256_add_epi32(_mm512_castsi512_si256(wide[r]), _mm512_extracti64x4_epi64(wide[r], 1));
#else
  for (int r = 0; r < Rows; ++r) sums[r] = _mm256_setzero_si256();
#endif
  for (; i < width; i += 32)
    for (int r = 0; r < Rows; ++r)
      sums[r] = add_block(sums[r], _mm256_loadu_si256((const __m256i *)(rows + r * stride + i)), digits + i, width, Bits, kFields, mask);
  for (int r = 0; r < Rows; ++r) out[r] = add_up(sums[r]);
}
#else // compilers make NEON's widening products of it
template <int Bits, int Rows>
inline void multiply(const std::int8_t *digits, const std::uint8_t *rows, std::int64_t width, std::int64_t stride, float *out) {
  for (int r = 0; r < Rows; ++r) {
    std::int32_t sum = 0;
    for (int j = 0; j < 8 / Bits; ++j)
      for (std::int64_t i = 0; i < width; ++i)
        sum += std::int32_t((rows[r * stride + i] >> (Bits * j)) & ((1 << Bits) - 1)) * digits[j * width + i];
    out[r] = float(sum);
  }
}
#endif

template <int Bits>
void add_products_of(const std::int8_t *digits, float weight, const std::uint8_t *rows, std::int64_t width, std::int64_t stride,
                     std::int64_t n, float *out) {
  std::int64_t r = 0;
  float products[kRows];
  for (; r + kRows <= n; r += kRows) {
    const std::uint8_t *row = rows + r * stride;
    for (std::int64_t k = 0; k < kRows; ++k)
      for (std::int64_t at = 0; at < width; at += 64) __builtin_prefetch(row + (kRows + k) * stride + at);
    multiply<Bits, kRows>(digits, row, width, stride, products);
    for (std::int64_t k = 0; k < kRows; ++k) out[r + k] += weight * products[k];
  }
  for (; r < n; ++r) {
    multiply<Bits, 1>(digits, rows + r * stride, width, stride, products);
    out[r] += weight * products[0];
  }
}

void add_products(const RabitqSection &section, const std::int8_t *digits, float weight, const std::uint8_t *rows,
                  std::int64_t stride, std::int64_t n, float *out) {
  if (section.bits == 4) add_products_of<4>(digits, weight, rows, section.width, stride, n, out);
  else if (section.bits == 2) add_products_of<2>(digits, weight, rows, section.width, stride, n, out);
  else add_products_of<1>(digits, weight, rows, section.width, stride, n, out);
}

// Where the grid ends, as a share of the largest component: the best of these is within 0.1 % of the best of all.
constexpr float kEnds[] = {0.55f, 0.65f, 0.75f, 0.85f, 0.95f, 1.05f};

void round_to_grid(const float *x, std::int64_t dim, int bits, std::uint8_t *levels, float *product, float *square) {
  float largest = 0;
  for (std::int64_t d = 0; d < dim; ++d) largest = std::fmax(largest, std::fabs(x[d]));
  const float count = float(1 << bits), middle = (count - 1) / 2;
  float best = -1, best_factor = 0;
  for (const float end : kEnds) {
    const float factor = largest > 0 ? count / (2 * end * largest) : 0;
    float products = 0, squares = 0;
    for (std::int64_t d = 0; d < dim; ++d) {
      const float g = std::fmin(std::fmax(std::floor(x[d] * factor + count / 2), 0.0f), count - 1) - middle;
      products += g * x[d], squares += g * g;
    }
    const float cosine = products / std::sqrt(squares);
    if (cosine > best) best = cosine, best_factor = factor, *product = products, *square = squares;
    if (bits == 1) break; // signs
  }
  for (std::int64_t d = 0; d < dim; ++d)
    levels[d] = std::uint8_t(std::fmin(std::fmax(std::floor(x[d] * best_factor + count / 2), 0.0f), count - 1));
}

void mix(float *x, std::int64_t size) {
  for (std::int64_t half = 1; half < size; half *= 2)
    for (std::int64_t from = 0; from < size; from += 2 * half)
      for (std::int64_t i = from; i < from + half; ++i) {
        const float a = x[i], b = x[i + half];
        x[i] = a + b, x[i + half] = a - b;
      }
  const float scale = 1 / std::sqrt(float(size));
  for (std::int64_t i = 0; i < size; ++i) x[i] *= scale;
}

} // namespace

extern const RabitqLoops compiled_rabitq_loops;
const RabitqLoops compiled_rabitq_loops{add_products, round_to_grid, mix};

} // namespace RIDGELINE_ISA
} // namespace ridgeline
