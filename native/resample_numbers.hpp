// float16 and bfloat16 to float and back, as IEEE 754 rounds. Part of the loops: compiled once per instruction set.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#if defined(__aarch64__)
#include <arm_neon.h>
#elif defined(__F16C__)
#include <immintrin.h>
#endif

namespace ridgeline {
namespace RIDGELINE_ISA {
namespace {

struct F16 {
  std::uint16_t bits;
};
struct BF16 {
  std::uint16_t bits;
};

inline float from_bits(std::uint32_t u) {
  float f;
  std::memcpy(&f, &u, 4);
  return f;
}
inline std::uint32_t to_bits(float f) {
  std::uint32_t u;
  std::memcpy(&u, &f, 4);
  return u;
}

inline double wide(double v) { return v; }
inline float wide(float v) { return v; }
inline float wide(BF16 v) { return from_bits(std::uint32_t(v.bits) << 16); }
#if defined(__aarch64__) // has instructions for it, and compilers use them for many at a time
inline float wide(F16 v) {
  __fp16 h;
  std::memcpy(&h, &v.bits, 2);
  return h;
}
#elif defined(__F16C__)
inline float wide(F16 v) { return _cvtsh_ss(v.bits); }
#else
inline float wide(F16 v) {
  // Exponent and mantissa move into place, then one multiplication mends the bias, subnormals included.
  const std::uint32_t sign = std::uint32_t(v.bits & 0x8000) << 16, rest = v.bits & 0x7fff;
  if (rest >= 0x7c00) return from_bits(sign | 0x7f800000 | (rest & 0x3ff) << 13);
  return from_bits(sign | to_bits(from_bits(rest << 13) * 0x1p112f));
}
#endif

// a + b * c, rounded once where the processor can. Compilers left to themselves do so in most places, not in all, and the
// same question would have answers that differ in their last bit.
#if defined(__FMA__) || defined(__aarch64__)
inline double plus(double a, double b, double c) { return __builtin_fma(b, c, a); }
inline float plus(float a, float b, float c) { return __builtin_fmaf(b, c, a); }
#else
inline double plus(double a, double b, double c) { return a + b * c; }
inline float plus(float a, float b, float c) { return a + b * c; }
#endif

inline void narrow(double v, double &to) { to = v; }
inline void narrow(float v, float &to) { to = v; }
inline void narrow(float v, BF16 &to) {
  const std::uint32_t u = to_bits(v);
  to.bits = (u & 0x7fffffff) > 0x7f800000 ? 0x7fc0 : (u + 0x7fff + (u >> 16 & 1)) >> 16;
}
#if defined(__aarch64__)
inline void narrow(float v, F16 &to) {
  const __fp16 h = v;
  std::uint16_t bits;
  std::memcpy(&bits, &h, 2);
  to.bits = v == v ? bits : 0x7e00;
}
#elif defined(__F16C__)
inline void narrow(float v, F16 &to) { to.bits = v == v ? _cvtss_sh(v, _MM_FROUND_TO_NEAREST_INT) : 0x7e00; }
#else
inline void narrow(float v, F16 &to) {
  const std::uint32_t u = to_bits(v), sign = u >> 16 & 0x8000;
  const float magnitude = std::fabs(v);
  if (!(magnitude == magnitude)) to.bits = 0x7e00;
  else if (magnitude >= 65520.0f) to.bits = sign | 0x7c00;
  else if (magnitude < 0x1p-14f) // subnormal: the addition rounds to the nearest even multiple of 2^-24
    to.bits = sign | (to_bits(magnitude + 0x1p-1f) - to_bits(0x1p-1f));
  else {
    const std::uint32_t m = to_bits(magnitude);
    to.bits = sign | ((m + 0xfff + (m >> 13 & 1) - (112u << 23)) >> 13);
  }
}
#endif

template <class V> struct ComputeOf { using type = float; };
template <> struct ComputeOf<double> { using type = double; };

} // namespace
} // namespace RIDGELINE_ISA
} // namespace ridgeline
