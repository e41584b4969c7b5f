// Compiled once per instruction set (CMakeLists.txt), each time in a namespace of its own.
#include <cstring>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#include "search/graph.hpp"

namespace ridgeline {
namespace RIDGELINE_ISA {
namespace {

constexpr std::int64_t kLine = 64, kAhead = 3; // rows that are fetched ahead: they lie anywhere in memory

// Σ values · codes; a code has 7 bits and a value 16, so 2^31 is not reached below 516 dimensions of largest values, and
// prepare_query makes the values smaller beyond.
inline std::int32_t multiply(const std::int16_t *values, const std::int8_t *codes, std::int64_t width) {
#if defined(__AVX512BW__)
  __m512i one = _mm512_setzero_si512(), other = one;
  for (std::int64_t i = 0; i < width; i += 64) {
    const __m512i low = _mm512_cvtepi8_epi16(_mm256_loadu_si256((const __m256i *)(codes + i)));
    const __m512i high = _mm512_cvtepi8_epi16(_mm256_loadu_si256((const __m256i *)(codes + i + 32)));
    one = _mm512_add_epi32(one, _mm512_madd_epi16(low, _mm512_loadu_si512(values + i)));
    other = _mm512_add_epi32(other, _mm512_madd_epi16(high, _mm512_loadu_si512(values + i + 32)));
  }
  return _mm512_reduce_add_epi32(_mm512_add_epi32(one, other));
#elif defined(__AVX2__)
  __m256i one = _mm256_setzero_si256(), other = one;
  for (std::int64_t i = 0; i < width; i += 32) {
    const __m256i low = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)(codes + i)));
    const __m256i high = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)(codes + i + 16)));
    one = _mm256_add_epi32(one, _mm256_madd_epi16(low, _mm256_loadu_si256((const __m256i *)(values + i))));
    other = _mm256_add_epi32(other, _mm256_madd_epi16(high, _mm256_loadu_si256((const __m256i *)(values + i + 16))));
  }
  one = _mm256_add_epi32(one, other);
  __m128i sum = _mm_add_epi32(_mm256_castsi256_si128(one), _mm256_extracti128_si256(one, 1));
  sum = _mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0x4e));
  return _mm_cvtsi128_si32(_mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0xb1)));
#else // compilers make NEON's smlal of it
  std::int32_t sum = 0;
  for (std::int64_t i = 0; i < width; ++i) sum += std::int32_t(values[i]) * std::int32_t(codes[i]);
  return sum;
#endif
}

inline void fetch(const std::int8_t *row, std::int64_t bytes) {
  for (std::int64_t at = 0; at < bytes; at += kLine) __builtin_prefetch(row + at);
}

void score(const WalkQuery &query, const std::int8_t *rows, std::int64_t stride, const std::uint32_t *ids, std::int64_t n,
           float *scores) {
  for (std::int64_t i = 0; i < n && i < kAhead; ++i) fetch(rows + ids[i] * stride, stride);
  for (std::int64_t i = 0; i < n; ++i) {
    if (i + kAhead < n) fetch(rows + ids[i + kAhead] * stride, stride);
    const std::int8_t *row = rows + ids[i] * stride;
    RowHeader header;
    std::memcpy(&header, row + query.width, sizeof header);
    scores[i] = float(multiply(query.values, row, query.width)) * (query.scale * header.scale) + query.extra * header.extra -
                query.weight * header.half - query.constant;
  }
}

} // namespace

extern const GraphLoops compiled_graph_loops;
const GraphLoops compiled_graph_loops{score};

} // namespace RIDGELINE_ISA
} // namespace ridgeline
