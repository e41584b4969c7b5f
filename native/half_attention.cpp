// Attention of short texts on ARM CPUs, in float32: a head of a text at a time, four queries against all keys.
// torch's took twice as long over texts of 32 tokens, and a third longer over 128.
#include "half.hpp"

#include <algorithm>
#include <atomic>
#include <limits>
#include <vector>

#include "team.hpp"

#if defined(__aarch64__) && defined(__linux__) && defined(__ARM_FEATURE_FP16_VECTOR_ARITHMETIC)
#include <arm_neon.h>
#define RIDGELINE_HALF 1
#endif

namespace ridgeline {

#if RIDGELINE_HALF
namespace {

constexpr std::size_t kQueries = 4, kKeys = 8;

// exp(x) for x ≤ 0, off by less than 1e-6 of it: 2^n · exp(r) with |r| ≤ ln 2 / 2, by a polynomial.
inline float32x4_t exponential(float32x4_t x) {
  x = vmaxq_f32(x, vdupq_n_f32(-87.0f)); // below, a share is no number that counts; NaN stays
  const float32x4_t n = vrndnq_f32(vmulq_n_f32(x, 1.44269504f));
  const float32x4_t r = vfmsq_n_f32(vfmsq_n_f32(x, n, 0.693145752f), n, 1.42860677e-6f);
  float32x4_t p = vdupq_n_f32(1.0f / 720);
  for (const float t : {1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1.0f, 1.0f}) p = vfmaq_f32(vdupq_n_f32(t), p, r);
  return vreinterpretq_f32_s32(vaddq_s32(vreinterpretq_s32_f32(p), vshlq_n_s32(vcvtq_s32_f32(n), 23)));
}

// keys [texts' tokens, step] → turned [width][room], zeros behind the last.
void turn_keys(const float *keys, std::size_t step, std::size_t length, std::size_t width, std::size_t room, float *turned) {
  std::size_t j = 0;
  for (; j + 4 <= length; j += 4)
    for (std::size_t d = 0; d < width; d += 4) {
      const float *at = keys + j * step + d;
      const float32x4_t a = vld1q_f32(at), b = vld1q_f32(at + step), c = vld1q_f32(at + 2 * step), e = vld1q_f32(at + 3 * step);
      const float32x4_t ac = vzip1q_f32(a, c), be = vzip1q_f32(b, e), ac2 = vzip2q_f32(a, c), be2 = vzip2q_f32(b, e);
      vst1q_f32(turned + d * room + j, vzip1q_f32(ac, be)), vst1q_f32(turned + (d + 1) * room + j, vzip2q_f32(ac, be));
      vst1q_f32(turned + (d + 2) * room + j, vzip1q_f32(ac2, be2)), vst1q_f32(turned + (d + 3) * room + j, vzip2q_f32(ac2, be2));
    }
  for (std::size_t d = 0; d < width; ++d)
    for (std::size_t k = j; k < room; ++k) turned[d * room + k] = k < length ? keys[k * step + d] : 0.0f;
}

struct Sums { // [4 queries][8], as variables: compilers would keep an array in memory
  float32x4_t a0, a1, b0, b1, c0, c1, d0, d1;
};

template <int Lane>
inline void add(Sums &s, float32x4_t a, float32x4_t b, float32x4_t c, float32x4_t d, const float *at) {
  const float32x4_t left = vld1q_f32(at), right = vld1q_f32(at + 4);
  s.a0 = vfmaq_laneq_f32(s.a0, left, a, Lane), s.a1 = vfmaq_laneq_f32(s.a1, right, a, Lane);
  s.b0 = vfmaq_laneq_f32(s.b0, left, b, Lane), s.b1 = vfmaq_laneq_f32(s.b1, right, b, Lane);
  s.c0 = vfmaq_laneq_f32(s.c0, left, c, Lane), s.c1 = vfmaq_laneq_f32(s.c1, right, c, Lane);
  s.d0 = vfmaq_laneq_f32(s.d0, left, d, Lane), s.d1 = vfmaq_laneq_f32(s.d1, right, d, Lane);
}

// rows [4][terms] · table [terms][8], the rows of the table `step` apart.
inline Sums product(const float *const (&rows)[kQueries], const float *table, std::size_t step, std::size_t terms) {
  const float32x4_t zero = vdupq_n_f32(0);
  Sums s{zero, zero, zero, zero, zero, zero, zero, zero};
  const float *q0 = rows[0], *q1 = rows[1], *q2 = rows[2], *q3 = rows[3];
  std::size_t k = 0;
  for (; k + 4 <= terms; k += 4, table += 4 * step) {
    const float32x4_t a = vld1q_f32(q0 + k), b = vld1q_f32(q1 + k), c = vld1q_f32(q2 + k), d = vld1q_f32(q3 + k);
    add<0>(s, a, b, c, d, table), add<1>(s, a, b, c, d, table + step);
    add<2>(s, a, b, c, d, table + 2 * step), add<3>(s, a, b, c, d, table + 3 * step);
  }
  for (; k < terms; ++k, table += step)
    add<0>(s, vdupq_n_f32(q0[k]), vdupq_n_f32(q1[k]), vdupq_n_f32(q2[k]), vdupq_n_f32(q3[k]), table);
  return s;
}

void one_head(const float *qkv, std::size_t step, std::size_t hidden, std::size_t length, std::size_t width, float scale,
              std::uint16_t *out_, std::vector<float> &scratch) {
  const std::size_t room = (length + kKeys - 1) / kKeys * kKeys;
  scratch.resize(std::max(scratch.size(), room * (width + kQueries)));
  float *turned = scratch.data(), *shares = turned + room * width;
  const float *keys = qkv + hidden, *values = qkv + 2 * hidden;
  auto *out = reinterpret_cast<float16_t *>(out_);
  turn_keys(keys, step, length, width, room, turned);
  for (std::size_t first = 0; first < length; first += kQueries) {
    const std::size_t queries = std::min(kQueries, length - first);
    const float *q[kQueries], *p[kQueries];
    for (std::size_t i = 0; i < kQueries; ++i) q[i] = qkv + std::min(first + i, length - 1) * step, p[i] = shares + i * room;
    for (std::size_t j = 0; j < room; j += kKeys) {
      const Sums s = product(q, turned + j, room, width);
      float *at = shares + j;
      vst1q_f32(at, s.a0), vst1q_f32(at + 4, s.a1), vst1q_f32(at + room, s.b0), vst1q_f32(at + room + 4, s.b1);
      at += 2 * room;
      vst1q_f32(at, s.c0), vst1q_f32(at + 4, s.c1), vst1q_f32(at + room, s.d0), vst1q_f32(at + room + 4, s.d1);
    }
    float inverse[kQueries];
    for (std::size_t i = 0; i < kQueries; ++i) {
      float *row = shares + i * room;
      std::fill(row + length, row + room, -std::numeric_limits<float>::infinity());
      float32x4_t most = vld1q_f32(row), sum = vdupq_n_f32(0);
      for (std::size_t j = 4; j < room; j += 4) most = vmaxq_f32(most, vld1q_f32(row + j));
      const float32x4_t top = vdupq_n_f32(vmaxvq_f32(most));
      for (std::size_t j = 0; j < room; j += 4) {
        const float32x4_t share = exponential(vmulq_n_f32(vsubq_f32(vld1q_f32(row + j), top), scale));
        vst1q_f32(row + j, share), sum = vaddq_f32(sum, share);
      }
      inverse[i] = 1 / vaddvq_f32(sum);
    }
    for (std::size_t d = 0; d < width; d += 8) {
      const Sums s = product(p, values + d, step, length);
      const float32x4_t low[] = {s.a0, s.b0, s.c0, s.d0}, high[] = {s.a1, s.b1, s.c1, s.d1};
      for (std::size_t i = 0; i < queries; ++i)
        vst1q_f16(out + (first + i) * hidden + d,
                  vcvt_high_f16_f32(vcvt_f16_f32(vmulq_n_f32(low[i], inverse[i])), vmulq_n_f32(high[i], inverse[i])));
    }
  }
}

} // namespace

void half_attention(const float *qkv, const std::int64_t *offsets, std::size_t texts, std::size_t heads,
                    std::size_t width, float scale, std::uint16_t *out, int threads) {
  const std::size_t hidden = heads * width;
  std::atomic<std::size_t> next{0};
  const auto work = [&] {
    thread_local std::vector<float> scratch;
    for (std::size_t k; (k = next.fetch_add(1)) < texts * heads;) {
      const std::size_t first = std::size_t(offsets[k / heads]), length = std::size_t(offsets[k / heads + 1]) - first;
      const std::size_t at = k % heads * width;
      if (length) one_head(qkv + first * 3 * hidden + at, 3 * hidden, hidden, length, width, scale,
                           out + first * hidden + at, scratch);
    }
  };
  if (threads < 2) work();
  else together(threads, work);
}

#else

void half_attention(const float *, const std::int64_t *, std::size_t, std::size_t, std::size_t, float, std::uint16_t *,
                    int) {}

#endif
} // namespace ridgeline
