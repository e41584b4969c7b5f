// The steps of a layer over groups of eight tokens, each in pieces that threads can share.
#pragma once

#include "encoder/tile.hpp"

#if RIDGELINE_HALF

#include <atomic>

#include "threads/pool.hpp"

namespace ridgeline {

constexpr std::size_t kRows = 12; // outputs of a tile

constexpr std::size_t up_to(std::size_t n, std::size_t step) { return (n + step - 1) / step * step; }

// Calls work(k) for each piece k, on up to `threads` threads.
template <class Work> void share_pieces(int threads, std::size_t pieces, const Work &work) {
  parallel_for(std::int64_t(pieces), 1, threads, [&](std::int64_t k, std::int64_t) { work(std::size_t(k)); });
}

inline std::size_t panels(const HalfLinear &layer) { return (layer.out + kRows - 1) / kRows; }
inline std::size_t spans(const HalfLinear &layer) { return (layer.in + kSpan - 1) / kSpan; }

// Computes the twelve outputs from 12 · panel on, for all groups of tokens: the sums x · weightᵀ of each span
// [spans][groups][out][8], the first with the bias. The reader adds the spans in float32.
void product(const HalfLinear &layer, std::size_t panel, const Half *x, std::size_t groups, Half *sums);

// The same, with all spans added into the first and the activation applied.
void product(const HalfLinear &layer, std::size_t panel, const Half *x, std::size_t groups, Activation activation,
             Half *y);

// Attention for one head of one text, which is tokens `first` to `last`.
void attend(const HalfEncoder &stack, const HalfLayer &layer, std::size_t head, const Half *qkv, std::size_t first,
            std::size_t last, Half *mixed);

// One group of tokens: x [features][8] += the sums of `layer`, then the norm over its `hidden` features.
void add_norm(const HalfLinear &layer, const Half *sums, std::size_t group, std::size_t groups, const HalfNorm &norm,
              std::size_t hidden, float epsilon, Half *x);

// Transposes eight rows of eight numbers.
inline void transpose(const Eight (&rows)[8], Eight (&columns)[8]) {
  uint16x8_t v[8], w[8];
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) v[i] = vreinterpretq_u16_f16(rows[i]);
#pragma GCC unroll 3
  for (int round = 0; round < 3; ++round) { // rows i and i + 4 interleaved, three times, is the transpose
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) w[2 * i] = vzip1q_u16(v[i], v[i + 4]), w[2 * i + 1] = vzip2q_u16(v[i], v[i + 4]);
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) v[i] = w[i];
  }
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) columns[i] = vreinterpretq_f16_u16(v[i]);
}

// Instructions whose intrinsics GCC offers for later architectures only; NaN stays NaN.
inline Eight fma(Eight sum, Eight a, Eight b) {
  asm("fmla %0.8h, %1.8h, %2.8h" : "+w"(sum) : "w"(a), "w"(b));
  return sum;
}
inline Eight minimum(Eight a, Eight b) {
  Eight result;
  asm("fmin %0.8h, %1.8h, %2.8h" : "=w"(result) : "w"(a), "w"(b));
  return result;
}
inline Eight maximum(Eight a, Eight b) {
  Eight result;
  asm("fmax %0.8h, %1.8h, %2.8h" : "=w"(result) : "w"(a), "w"(b));
  return result;
}
inline Eight absolute(Eight a) {
  Eight result;
  asm("fabs %0.8h, %1.8h" : "=w"(result) : "w"(a));
  return result;
}

struct Wide { // eight numbers in float32
  float32x4_t low, high;
};
inline Wide widen(Eight v) { return {vcvt_f32_f16(vget_low_f16(v)), vcvt_high_f32_f16(v)}; }
inline Wide widen(const Half *at) { return widen(vld1q_f16(at)); }
inline Eight narrow(Wide v) { return vcvt_high_f16_f32(vcvt_f16_f32(v.low), v.high); }
inline Wide load(const float *at) { return {vld1q_f32(at), vld1q_f32(at + 4)}; }
inline void store(float *at, Wide v) { vst1q_f32(at, v.low), vst1q_f32(at + 4, v.high); }
inline Wide all(float v) { return {vdupq_n_f32(v), vdupq_n_f32(v)}; }
inline Wide operator+(Wide a, Wide b) { return {vaddq_f32(a.low, b.low), vaddq_f32(a.high, b.high)}; }
inline Wide operator-(Wide a, Wide b) { return {vsubq_f32(a.low, b.low), vsubq_f32(a.high, b.high)}; }
inline Wide operator*(Wide a, Wide b) { return {vmulq_f32(a.low, b.low), vmulq_f32(a.high, b.high)}; }
inline Wide fma(Wide sum, Wide a, Wide b) {
  return {vfmaq_f32(sum.low, a.low, b.low), vfmaq_f32(sum.high, a.high, b.high)};
}
template <class Do> inline Wide each(Wide v, Do &&quad) { return {quad(v.low), quad(v.high)}; }

// 2ˣ for x ≤ 0 with a relative error below 3e-6: 2ⁿ · 2^f with |f| ≤ ½, by a polynomial. The result is at least 2^-126.
inline float32x4_t power_of_two(float32x4_t x) {
  x = vmaxq_f32(x, vdupq_n_f32(-126.0f)); // NaN stays
  const float32x4_t n = vrndnq_f32(x), f = vsubq_f32(x, n);
  float32x4_t p = vdupq_n_f32(9.5700994e-3f);
  for (const float t : {0.055917863f, 0.24024744f, 0.69312179f, 0.99999928f}) p = vfmaq_f32(vdupq_n_f32(t), p, f);
  return vreinterpretq_f32_s32(vaddq_s32(vreinterpretq_s32_f32(p), vshlq_n_s32(vcvtq_s32_f32(n), 23)));
}

} // namespace ridgeline

#endif
