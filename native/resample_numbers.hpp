// float16 and bfloat16 to float and back, as IEEE 754 rounds. Part of the loops: compiled once per instruction set.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

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
inline float wide(F16 v) {
  // Exponent and mantissa move into place, then one multiplication mends the bias, subnormals included.
  const std::uint32_t sign = std::uint32_t(v.bits & 0x8000) << 16, rest = v.bits & 0x7fff;
  if (rest >= 0x7c00) return from_bits(sign | 0x7f800000 | (rest & 0x3ff) << 13);
  return from_bits(sign | to_bits(from_bits(rest << 13) * 0x1p112f));
}

inline void narrow(double v, double &to) { to = v; }
inline void narrow(float v, float &to) { to = v; }
inline void narrow(float v, BF16 &to) {
  const std::uint32_t u = to_bits(v);
  to.bits = (u & 0x7fffffff) > 0x7f800000 ? 0x7fc0 : (u + 0x7fff + (u >> 16 & 1)) >> 16;
}
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

template <class V> struct ComputeOf { using type = float; };
template <> struct ComputeOf<double> { using type = double; };

} // namespace
} // namespace RIDGELINE_ISA
} // namespace ridgeline
