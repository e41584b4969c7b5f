// Numbers side by side in one register: float16 and bfloat16 to float and back as in resample_numbers.hpp, bit for bit; only
// which NaN it is may differ.
// Part of the loops: compiled once per instruction set.
#pragma once

#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#include "resample_numbers.hpp"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace ridgeline {
namespace RIDGELINE_ISA {
namespace {

#if defined(__AVX512F__)
constexpr int kRegister = 64; // bytes of the widest
#elif defined(__AVX2__)
constexpr int kRegister = 32;
#else
constexpr int kRegister = 16;
#endif

template <class C, int Bytes> struct WideOf { using type [[gnu::vector_size(Bytes)]] = C; };
template <class C, int Bytes> using Wide = typename WideOf<C, Bytes>::type;

// As many as `Many` has floats.
template <class C, class Many> using Beside = Wide<C, int(sizeof(Many) / sizeof(float) * sizeof(C))>;

template <class To, class From> inline To load(const From *from) {
  To many;
  std::memcpy(&many, from, sizeof many);
  return many;
}

// a + b * c, rounded once where the processor can.
#if defined(__AVX512F__)
inline Wide<float, 64> plus(Wide<float, 64> a, Wide<float, 64> b, Wide<float, 64> c) { return _mm512_fmadd_ps(b, c, a); }
inline Wide<double, 64> plus(Wide<double, 64> a, Wide<double, 64> b, Wide<double, 64> c) { return _mm512_fmadd_pd(b, c, a); }
#endif
#if defined(__FMA__)
inline Wide<float, 32> plus(Wide<float, 32> a, Wide<float, 32> b, Wide<float, 32> c) { return _mm256_fmadd_ps(b, c, a); }
inline Wide<double, 32> plus(Wide<double, 32> a, Wide<double, 32> b, Wide<double, 32> c) { return _mm256_fmadd_pd(b, c, a); }
inline Wide<float, 16> plus(Wide<float, 16> a, Wide<float, 16> b, Wide<float, 16> c) { return _mm_fmadd_ps(b, c, a); }
inline Wide<double, 16> plus(Wide<double, 16> a, Wide<double, 16> b, Wide<double, 16> c) { return _mm_fmadd_pd(b, c, a); }
#elif defined(__aarch64__)
inline Wide<float, 16> plus(Wide<float, 16> a, Wide<float, 16> b, Wide<float, 16> c) { return vfmaq_f32(a, b, c); }
inline Wide<double, 16> plus(Wide<double, 16> a, Wide<double, 16> b, Wide<double, 16> c) { return vfmaq_f64(a, b, c); }
#else
inline Wide<float, 16> plus(Wide<float, 16> a, Wide<float, 16> b, Wide<float, 16> c) { return a + b * c; }
inline Wide<double, 16> plus(Wide<double, 16> a, Wide<double, 16> b, Wide<double, 16> c) { return a + b * c; }
#endif

// Square roots.
#if defined(__AVX512F__)
inline Wide<float, 64> root(Wide<float, 64> v) { return _mm512_maskz_sqrt_ps(0xffff, v); } // see kAll
inline Wide<double, 64> root(Wide<double, 64> v) { return _mm512_maskz_sqrt_pd(0xff, v); }
#elif defined(__AVX2__)
inline Wide<float, 32> root(Wide<float, 32> v) { return _mm256_sqrt_ps(v); }
inline Wide<double, 32> root(Wide<double, 32> v) { return _mm256_sqrt_pd(v); }
#elif defined(__x86_64__)
inline Wide<float, 16> root(Wide<float, 16> v) { return _mm_sqrt_ps(v); }
inline Wide<double, 16> root(Wide<double, 16> v) { return _mm_sqrt_pd(v); }
#elif defined(__aarch64__)
inline Wide<float, 16> root(Wide<float, 16> v) { return vsqrtq_f32(v); }
inline Wide<double, 16> root(Wide<double, 16> v) { return vsqrtq_f64(v); }
#endif

// float16, where the processor can.
#if defined(__F16C__)
constexpr bool kHalves = true;
#if defined(__AVX512F__)
constexpr __mmask16 kAll = 0xffff; // said so, as GCC 12 takes what the bare ones leave open for something forgotten
inline void widen(const F16 *from, Wide<float, 64> &to) { to = _mm512_maskz_cvtph_ps(kAll, load<__m256i>(from)); }
inline Wide<std::uint16_t, 32> halves(Wide<float, 64> v) {
  return reinterpret_cast<Wide<std::uint16_t, 32>>(_mm512_maskz_cvtps_ph(kAll, v, _MM_FROUND_TO_NEAREST_INT));
}
#endif
inline void widen(const F16 *from, Wide<float, 32> &to) { to = _mm256_cvtph_ps(load<__m128i>(from)); }
inline void widen(const F16 *from, Wide<float, 16> &to) {
  to = _mm_cvtph_ps(_mm_loadl_epi64(reinterpret_cast<const __m128i *>(from)));
}
inline Wide<std::uint16_t, 16> halves(Wide<float, 32> v) {
  return reinterpret_cast<Wide<std::uint16_t, 16>>(_mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
}
inline Wide<std::uint16_t, 8> halves(Wide<float, 16> v) {
  const __m128i bits = _mm_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT);
  return load<Wide<std::uint16_t, 8>>(&bits);
}
#elif defined(__aarch64__)
constexpr bool kHalves = true;
inline void widen(const F16 *from, Wide<float, 16> &to) {
  to = vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(&from->bits)));
}
inline Wide<std::uint16_t, 8> halves(Wide<float, 16> v) { return vreinterpret_u16_f16(vcvt_f16_f32(v)); }
#else
constexpr bool kHalves = false;
#endif

template <class V> constexpr bool kSideBySide = kHalves || !std::is_same_v<V, F16>;

template <class Many> inline void widen(const BF16 *from, Many &to) {
  using Bits = Beside<std::uint32_t, Many>;
  const Bits bits = __builtin_convertvector(load<Beside<std::uint16_t, Many>>(from), Bits) << 16;
  to = load<Many>(&bits);
}
template <class C, class Many> inline void widen(const C *from, Many &to) { to = load<Many>(from); }
template <class Many, class V> [[gnu::always_inline]] inline Many widened(const V *from) {
  Many many;
  widen(from, many);
  return many;
}

// What is no number becomes 0x7e00 and 0x7fc0, whatever its sign was.
template <class Many> inline Many one_nan(Many v) { return v == v ? v : Many{} + std::numeric_limits<float>::quiet_NaN(); }
template <class Many> [[gnu::always_inline]] inline void narrowed(Many v, F16 *to) {
  const auto bits = halves(one_nan(v));
  std::memcpy(to, &bits, sizeof bits);
}
template <class Many> [[gnu::always_inline]] inline void narrowed(Many v, BF16 *to) {
  const Many known = one_nan(v);
  const auto u = load<Beside<std::uint32_t, Many>>(&known);
  const auto bits = __builtin_convertvector((u + 0x7fff + (u >> 16 & 1)) >> 16, Beside<std::uint16_t, Many>);
  std::memcpy(to, &bits, sizeof bits);
}
template <class Many, class C> [[gnu::always_inline]] inline void narrowed(Many v, C *to) { std::memcpy(to, &v, sizeof v); }

} // namespace
} // namespace RIDGELINE_ISA
} // namespace ridgeline
