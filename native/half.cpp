// A tile is 8 rows × 16 columns: 16 registers of 8 sums. Rounding the factors to float16 costs a cosine of 1e-6; rounding
// every sum of 384 and 1536 terms cost 9e-5. The error grows with (terms in a register + registers added up), so 24 terms
// are summed in a register, 8 such sums in float16, and those in float32: 4e-6. (Every 32 terms to float32 is as near,
// and slower, since converting takes long.)
#include "half.hpp"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <vector>

#include "team.hpp"

#if defined(__aarch64__) && defined(__linux__) && defined(__ARM_FEATURE_FP16_VECTOR_ARITHMETIC)
#include <arm_neon.h>
#include <asm/hwcap.h>
#include <sys/auxv.h>
#define RIDGELINE_HALF 1
#endif

namespace ridgeline {

#if RIDGELINE_HALF
namespace {

constexpr std::size_t kRows = 8, kColumns = 16; // of a tile
constexpr std::size_t kShort = 24, kSpan = 192; // terms summed in a register, and all in all, before float32
constexpr std::size_t kBlock = 64;              // rows a thread takes at a time: with 1536 terms they fill 192 KiB
constexpr std::size_t kPieces = 4;              // at least, for each thread

constexpr std::size_t up_to(std::size_t n, std::size_t step) { return (n + step - 1) / step * step; }

// The sums are variables and no array, which compilers would keep in memory; the lane's product is in assembler, since
// they make a vector of the lane first: either takes as long as the product does.
#define EACH_ROW(DO) DO(0) DO(1) DO(2) DO(3) DO(4) DO(5) DO(6) DO(7)
#define TERM(r, op, to)                                                                                                \
  asm(op " %0.8h, %1.8h, %2.h[" #r "]" : to(left##r) : "w"(left), "x"(rows));                                          \
  asm(op " %0.8h, %1.8h, %2.h[" #r "]" : to(right##r) : "w"(right), "x"(rows));
#define FIRST(r) TERM(r, "fmul", "=w")
#define NEXT(r) TERM(r, "fmla", "+w")
#define DECLARE(r) float16x8_t left##r, right##r;
#define ADD_MIDDLE(r)                                                                                                  \
  left##r = left##r + vld1q_f16(middle + 16 * r);                                                                     \
  right##r = right##r + vld1q_f16(middle + 16 * r + 8);
#define TO_MIDDLE(r) vst1q_f16(middle + 16 * r, left##r), vst1q_f16(middle + 16 * r + 8, right##r);
#define TO_TOTAL(r) widen(left##r, total + 16 * r, span > 0), widen(right##r, total + 16 * r + 8, span > 0);

inline void widen(float16x8_t sums, float *to, bool add) {
  float32x4_t low = vcvt_f32_f16(vget_low_f16(sums)), high = vcvt_high_f32_f16(sums);
  if (add) low = vaddq_f32(vld1q_f32(to), low), high = vaddq_f32(vld1q_f32(to + 4), high);
  vst1q_f32(to, low), vst1q_f32(to + 4, high);
}

// total [8][16] = a [terms][8] · b [terms][16]
void tile(const float16_t *a, const float16_t *b, std::size_t terms, float *total) {
  alignas(64) float16_t middle[kRows * kColumns];
  for (std::size_t span = 0; span < terms; span += kSpan) {
    const std::size_t stop = std::min(terms, span + kSpan);
    for (std::size_t first = span; first < stop; first += kShort) {
      EACH_ROW(DECLARE)
      float16x8_t rows = vld1q_f16(a), left = vld1q_f16(b), right = vld1q_f16(b + 8);
      EACH_ROW(FIRST)
      const std::size_t end = std::min(stop, first + kShort);
      a += kRows, b += kColumns;
      for (std::size_t k = first + 1; k < end; ++k, a += kRows, b += kColumns) {
        rows = vld1q_f16(a), left = vld1q_f16(b), right = vld1q_f16(b + 8);
        EACH_ROW(NEXT)
      }
      if (first > span) { EACH_ROW(ADD_MIDDLE) }
      if (end < stop) { EACH_ROW(TO_MIDDLE) }
      else { EACH_ROW(TO_TOTAL) }
    }
  }
}

// x·Φ(x), where Φ(x) = ½ + x·p(x²) up to 4.2, 0 or 1 beyond: off by less than 6e-5, as on GPUs (kernels/rows.py).
inline float32x4_t gelu(float32x4_t x) {
  constexpr float kTerms[] = {-4.795659948304342e-09f, 2.072475686093252e-07f, -5.28956346288296e-06f,
                              8.98359335624548e-05f,   -0.001086458959693502f, 0.009740940012027797f,
                              -0.06622207647378231f,   0.39883457819177476f};
  const float32x4_t square = vmulq_f32(x, x);
  float32x4_t p = vdupq_n_f32(4.9238162414779974e-11f);
  for (const float t : kTerms) p = vfmaq_f32(vdupq_n_f32(t), p, square);
  float32x4_t share = vfmaq_f32(vdupq_n_f32(0.5f), x, p);
  share = vbslq_f32(vcgtq_f32(x, vdupq_n_f32(4.2f)), vdupq_n_f32(1.0f), share);
  share = vbslq_f32(vcltq_f32(x, vdupq_n_f32(-4.2f)), vdupq_n_f32(0.0f), share);
  return vmulq_f32(x, share);
}

inline void put(float *to, float32x4_t low, float32x4_t high) { vst1q_f32(to, low), vst1q_f32(to + 4, high); }
inline void put(float16_t *to, float32x4_t low, float32x4_t high) {
  vst1q_f16(to, vcvt_high_f16_f32(vcvt_f16_f32(low), high));
}

// A row of a tile, as it is to be: with bias, activation and residual, in the type that is wanted.
template <class To, Activation Kind>
void finish(const float *sums, const float *bias, const float *residual, To *to, std::size_t columns) {
  float more[kColumns] = {};
  To row[kColumns], *whole = columns < kColumns ? row : to;
  if (residual && columns < kColumns) std::memcpy(more, residual, columns * sizeof(float)), residual = more;
  const auto four = [&](std::size_t c) {
    float32x4_t v = vaddq_f32(vld1q_f32(sums + c), vld1q_f32(bias + c));
    if constexpr (Kind == Activation::gelu) v = gelu(v);
    if constexpr (Kind == Activation::relu) v = vmaxq_f32(v, vdupq_n_f32(0));
    return residual ? vaddq_f32(v, vld1q_f32(residual + c)) : v;
  };
  for (std::size_t c = 0; c < kColumns; c += 8) put(whole + c, four(c), four(c + 4));
  if (columns < kColumns) std::memcpy(to, row, columns * sizeof(To));
}

template <class To> auto finisher(Activation kind) {
  if (kind == Activation::gelu) return finish<To, Activation::gelu>;
  return kind == Activation::relu ? finish<To, Activation::relu> : finish<To, Activation::none>;
}

inline float16x8_t get(const float16_t *from) { return vld1q_f16(from); }
inline float16x8_t get(const float *from) {
  return vcvt_high_f16_f32(vcvt_f16_f32(vld1q_f32(from)), vld1q_f32(from + 4));
}

// Eight rows of eight numbers, turned into eight columns.
template <class From> inline void turn(const From *x, std::size_t step, float16_t *to) {
  uint16x8_t v[8], w[8];
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) v[i] = vreinterpretq_u16_f16(get(x + i * step));
#pragma GCC unroll 3
  for (int round = 0; round < 3; ++round) { // rows i and i + 4 interleaved, three times, is the transpose
    for (int i = 0; i < 4; ++i) w[2 * i] = vzip1q_u16(v[i], v[i + 4]), w[2 * i + 1] = vzip2q_u16(v[i], v[i + 4]);
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) v[i] = w[i];
  }
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) vst1q_f16(to + 8 * i, vreinterpretq_f16_u16(v[i]));
}

// Rows of x as tiles want them: [rows/8][in][8], zeros where there is no row.
template <class From> void arrange(const From *x, std::size_t rows, std::size_t in, float16_t *to) {
  for (std::size_t first = 0; first < rows; first += kRows, to += kRows * in) {
    const From *from = x + first * in;
    std::size_t k = 0;
    if (first + kRows <= rows)
      for (; k + 8 <= in; k += 8) turn(from + k, in, to + k * kRows);
    for (; k < in; ++k)
      for (std::size_t r = 0; r < kRows; ++r) to[k * kRows + r] = float16_t(first + r < rows ? from[r * in + k] : From(0));
  }
}

template <class To>
void multiply(const HalfProduct &job, const float16_t *a, std::size_t row, std::size_t first, std::size_t last) {
  const std::size_t rows = std::min(kBlock, job.rows - row);
  const auto *weight = reinterpret_cast<const float16_t *>(job.weight);
  To *y = static_cast<To *>(job.y);
  const auto finished = finisher<To>(job.activation);
  alignas(64) float sums[kRows * kColumns], bias[kColumns] = {};
  for (std::size_t column = first; column < last; column += kColumns) {
    const std::size_t columns = std::min(kColumns, job.out - column);
    std::memcpy(bias, job.bias + column, columns * sizeof(float));
    for (std::size_t r = 0; r < rows; r += kRows) {
      tile(a + r * job.in, weight + column * job.in, job.in, sums);
      for (std::size_t i = 0; i < std::min(kRows, rows - r); ++i) {
        const std::size_t at = (row + r + i) * job.out + column;
        finished(sums + i * kColumns, bias, job.residual ? job.residual + at : nullptr, y + at, columns);
      }
    }
  }
}

inline float total(const float *row, std::size_t width, float off, bool squared) {
  float32x4_t sums[2] = {vdupq_n_f32(0), vdupq_n_f32(0)};
  std::size_t k = 0;
  for (; k + 8 <= width; k += 8)
    for (std::size_t i = 0; i < 2; ++i) {
      const float32x4_t v = vsubq_f32(vld1q_f32(row + k + 4 * i), vdupq_n_f32(off));
      sums[i] = squared ? vfmaq_f32(sums[i], v, v) : vaddq_f32(sums[i], v);
    }
  float sum = vaddvq_f32(vaddq_f32(sums[0], sums[1]));
  for (; k < width; ++k) sum += squared ? (row[k] - off) * (row[k] - off) : row[k] - off;
  return sum;
}

} // namespace

void norm_rows(float *values, std::size_t rows, std::size_t width, const float *weight, const float *bias, float epsilon,
               int threads) {
  std::atomic<std::size_t> next{0};
  const auto work = [&] {
    for (std::size_t first; (first = next.fetch_add(kBlock)) < rows;)
      for (std::size_t r = first; r < std::min(rows, first + kBlock); ++r) {
        float *row = values + r * width;
        const float mean = total(row, width, 0, false) / float(width);
        const float scale = 1 / std::sqrt(total(row, width, mean, true) / float(width) + epsilon);
        for (std::size_t k = 0; k < width; ++k) row[k] = (row[k] - mean) * scale * weight[k] + bias[k];
      }
  };
  if (threads < 2 || rows <= kBlock) work();
  else together(threads, work);
}

bool half_here() { return (getauxval(AT_HWCAP) & HWCAP_ASIMDHP) != 0; }

std::size_t half_size(std::size_t in, std::size_t out) { return in * up_to(out, kColumns); }

void lay_out_half(const float *weight, std::size_t in, std::size_t out, std::uint16_t *laid) {
  auto *to = reinterpret_cast<float16_t *>(laid); // [out/16][in][16]
  for (std::size_t column = 0; column < up_to(out, kColumns); ++column)
    for (std::size_t k = 0; k < in; ++k)
      to[column / kColumns * kColumns * in + k * kColumns + column % kColumns] =
          column < out ? float16_t(weight[column * in + k]) : float16_t(0);
}

void half_product(const HalfProduct &job, int threads) {
  const std::size_t blocks = (job.rows + kBlock - 1) / kBlock, panels = up_to(job.out, kColumns) / kColumns;
  if (!blocks || !panels) return;
  // Few rows are shared out by columns, too.
  const std::size_t pieces = threads < 2 ? 1 : kPieces * std::size_t(threads);
  const std::size_t parts = std::min(panels, (pieces + blocks - 1) / blocks), panel = (panels + parts - 1) / parts;
  const std::size_t groups = (panels + panel - 1) / panel;
  std::atomic<std::size_t> next{0};
  const auto work = [&] {
    thread_local std::vector<float16_t> mine;
    mine.resize(std::max(mine.size(), kBlock * job.in));
    std::size_t arranged = blocks;
    for (std::size_t k; (k = next.fetch_add(1)) < blocks * groups;) {
      const std::size_t block = k / groups, row = block * kBlock, rows = std::min(kBlock, job.rows - row);
      if (arranged != block) {
        if (job.x_half) arrange(static_cast<const float16_t *>(job.x) + row * job.in, rows, job.in, mine.data());
        else arrange(static_cast<const float *>(job.x) + row * job.in, rows, job.in, mine.data());
        arranged = block;
      }
      const std::size_t first = k % groups * panel * kColumns, last = std::min(job.out, first + panel * kColumns);
      if (job.y_half) multiply<float16_t>(job, mine.data(), row, first, last);
      else multiply<float>(job, mine.data(), row, first, last);
    }
  };
  if (threads < 2) work();
  else together(threads, work);
}

#else // another CPU, or a compiler without these instructions

bool half_here() { return false; }
void norm_rows(float *, std::size_t, std::size_t, const float *, const float *, float, int) {}
std::size_t half_size(std::size_t, std::size_t) { return 0; }
void lay_out_half(const float *, std::size_t, std::size_t, std::uint16_t *) {}
void half_product(const HalfProduct &, int) {}

#endif
} // namespace ridgeline
