// Numbers and vectors of numbers: float16 and bfloat16 to float and back, as IEEE 754 rounds. The vector functions give
// the same bits as the functions for one number; only the payload of a NaN may differ.
// Part of the loops: compiled once per instruction set.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#if defined(__aarch64__)
#include <arm_neon.h>
#elif defined(__AVX2__)
#include <immintrin.h>
#elif defined(__x86_64__)
#include <emmintrin.h> // a third of the time that immintrin.h takes to compile
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

// The type that values of type V are computed in.
template <class V> struct ComputeOf { using type = float; };
template <> struct ComputeOf<double> { using type = double; };

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

// ---- one number ----

inline double widen(double v) { return v; }
inline float widen(float v) { return v; }
inline float widen(BF16 v) { return from_bits(std::uint32_t(v.bits) << 16); }
#if defined(__aarch64__) // has instructions for the conversion, and compilers use their vector forms
inline float widen(F16 v) {
  __fp16 h;
  std::memcpy(&h, &v.bits, 2);
  return h;
}
#elif defined(__F16C__)
inline float widen(F16 v) { return _cvtsh_ss(v.bits); }
#else
inline float widen(F16 v) {
  // Exponent and mantissa move to their places, then one multiplication corrects the bias, subnormals included.
  const std::uint32_t sign = std::uint32_t(v.bits & 0x8000) << 16, rest = v.bits & 0x7fff;
  if (rest >= 0x7c00) return from_bits(sign | 0x7f800000 | (rest & 0x3ff) << 13);
  return from_bits(sign | to_bits(from_bits(rest << 13) * 0x1p112f));
}
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

template <class O> inline void set_nan(O &to) { narrow(std::numeric_limits<typename ComputeOf<O>::type>::quiet_NaN(), to); }

// a + b * c, rounded once where the processor can. Compilers contract it in most places but not in all, and then two paths
// of one call would differ in the last bit.
#if defined(__FMA__) || defined(__aarch64__)
inline double add_product(double a, double b, double c) { return __builtin_fma(b, c, a); }
inline float add_product(float a, float b, float c) { return __builtin_fmaf(b, c, a); }
#else
inline double add_product(double a, double b, double c) { return a + b * c; }
inline float add_product(float a, float b, float c) { return a + b * c; }
#endif

// ---- vectors ----

#if defined(__AVX512F__)
constexpr int kRegister = 64; // bytes of the widest register
#elif defined(__AVX2__)
constexpr int kRegister = 32;
#else
constexpr int kRegister = 16;
#endif

template <class C, int Bytes> struct VectorOf { using type [[gnu::vector_size(Bytes)]] = C; };
template <class C, int Bytes> using Vector = typename VectorOf<C, Bytes>::type;

// A vector of C with as many items as `Floats` has.
template <class C, class Floats> using SameCount = Vector<C, int(sizeof(Floats) / sizeof(float) * sizeof(C))>;

template <class To, class From> inline To load(const From *from) {
  To vector;
  std::memcpy(&vector, from, sizeof vector);
  return vector;
}

#if defined(__AVX512F__)
inline Vector<float, 64> add_product(Vector<float, 64> a, Vector<float, 64> b, Vector<float, 64> c) { return _mm512_fmadd_ps(b, c, a); }
inline Vector<double, 64> add_product(Vector<double, 64> a, Vector<double, 64> b, Vector<double, 64> c) { return _mm512_fmadd_pd(b, c, a); }
#endif
#if defined(__FMA__)
inline Vector<float, 32> add_product(Vector<float, 32> a, Vector<float, 32> b, Vector<float, 32> c) { return _mm256_fmadd_ps(b, c, a); }
inline Vector<double, 32> add_product(Vector<double, 32> a, Vector<double, 32> b, Vector<double, 32> c) { return _mm256_fmadd_pd(b, c, a); }
inline Vector<float, 16> add_product(Vector<float, 16> a, Vector<float, 16> b, Vector<float, 16> c) { return _mm_fmadd_ps(b, c, a); }
inline Vector<double, 16> add_product(Vector<double, 16> a, Vector<double, 16> b, Vector<double, 16> c) { return _mm_fmadd_pd(b, c, a); }
#elif defined(__aarch64__)
inline Vector<float, 16> add_product(Vector<float, 16> a, Vector<float, 16> b, Vector<float, 16> c) { return vfmaq_f32(a, b, c); }
inline Vector<double, 16> add_product(Vector<double, 16> a, Vector<double, 16> b, Vector<double, 16> c) { return vfmaq_f64(a, b, c); }
#else
inline Vector<float, 16> add_product(Vector<float, 16> a, Vector<float, 16> b, Vector<float, 16> c) { return a + b * c; }
inline Vector<double, 16> add_product(Vector<double, 16> a, Vector<double, 16> b, Vector<double, 16> c) { return a + b * c; }
#endif

// The masked forms, because GCC 12 reports the undefined source of the plain forms as uninitialized.
#if defined(__AVX512F__)
constexpr __mmask16 kAllLanes = 0xffff;
inline Vector<float, 64> square_root(Vector<float, 64> v) { return _mm512_maskz_sqrt_ps(kAllLanes, v); }
inline Vector<double, 64> square_root(Vector<double, 64> v) { return _mm512_maskz_sqrt_pd(0xff, v); }
#elif defined(__AVX2__)
inline Vector<float, 32> square_root(Vector<float, 32> v) { return _mm256_sqrt_ps(v); }
inline Vector<double, 32> square_root(Vector<double, 32> v) { return _mm256_sqrt_pd(v); }
#elif defined(__x86_64__)
inline Vector<float, 16> square_root(Vector<float, 16> v) { return _mm_sqrt_ps(v); }
inline Vector<double, 16> square_root(Vector<double, 16> v) { return _mm_sqrt_pd(v); }
#elif defined(__aarch64__)
inline Vector<float, 16> square_root(Vector<float, 16> v) { return vsqrtq_f32(v); }
inline Vector<double, 16> square_root(Vector<double, 16> v) { return vsqrtq_f64(v); }
#endif

// Vectors of float16, where the processor converts them.
#if defined(__F16C__)
constexpr bool kConvertsF16 = true;
#if defined(__AVX512F__)
inline void widen_into(const F16 *from, Vector<float, 64> &to) { to = _mm512_maskz_cvtph_ps(kAllLanes, load<__m256i>(from)); }
inline Vector<std::uint16_t, 32> f16_bits(Vector<float, 64> v) {
  return reinterpret_cast<Vector<std::uint16_t, 32>>(_mm512_maskz_cvtps_ph(kAllLanes, v, _MM_FROUND_TO_NEAREST_INT));
}
#endif
inline void widen_into(const F16 *from, Vector<float, 32> &to) { to = _mm256_cvtph_ps(load<__m128i>(from)); }
inline void widen_into(const F16 *from, Vector<float, 16> &to) {
  to = _mm_cvtph_ps(_mm_loadl_epi64(reinterpret_cast<const __m128i *>(from)));
}
inline Vector<std::uint16_t, 16> f16_bits(Vector<float, 32> v) {
  return reinterpret_cast<Vector<std::uint16_t, 16>>(_mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
}
inline Vector<std::uint16_t, 8> f16_bits(Vector<float, 16> v) {
  const __m128i bits = _mm_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT);
  return load<Vector<std::uint16_t, 8>>(&bits);
}
#elif defined(__aarch64__)
constexpr bool kConvertsF16 = true;
inline void widen_into(const F16 *from, Vector<float, 16> &to) {
  to = vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(&from->bits)));
}
inline Vector<std::uint16_t, 8> f16_bits(Vector<float, 16> v) { return vreinterpret_u16_f16(vcvt_f16_f32(v)); }
#else
constexpr bool kConvertsF16 = false;
#endif

template <class V> constexpr bool kHasVectors = kConvertsF16 || !std::is_same_v<V, F16>;

template <class Floats> inline void widen_into(const BF16 *from, Floats &to) {
  using Bits = SameCount<std::uint32_t, Floats>;
  const Bits bits = __builtin_convertvector(load<SameCount<std::uint16_t, Floats>>(from), Bits) << 16;
  to = load<Floats>(&bits);
}
template <class C, class Vec> inline void widen_into(const C *from, Vec &to) { to = load<Vec>(from); }
template <class Vec, class V> [[gnu::always_inline]] inline Vec load_wide(const V *from) {
  Vec vector;
  widen_into(from, vector);
  return vector;
}

// Every NaN becomes 0x7e00 (float16) or 0x7fc0 (bfloat16), whatever its sign and payload.
template <class Floats> inline Floats make_nans_equal(Floats v) {
  return v == v ? v : Floats{} + std::numeric_limits<float>::quiet_NaN();
}
template <class Floats> [[gnu::always_inline]] inline void store_narrow(Floats v, F16 *to) {
  const auto bits = f16_bits(make_nans_equal(v));
  std::memcpy(to, &bits, sizeof bits);
}
template <class Floats> [[gnu::always_inline]] inline void store_narrow(Floats v, BF16 *to) {
  const Floats clean = make_nans_equal(v);
  const auto u = load<SameCount<std::uint32_t, Floats>>(&clean);
  const auto bits = __builtin_convertvector((u + 0x7fff + (u >> 16 & 1)) >> 16, SameCount<std::uint16_t, Floats>);
  std::memcpy(to, &bits, sizeof bits);
}
template <class Vec, class C> [[gnu::always_inline]] inline void store_narrow(Vec v, C *to) { std::memcpy(to, &v, sizeof v); }

// ---- loops over channels ----

// Calls `several(d, vector type)` for [from, to) in vectors of `Bytes`. The last vector ends at `to` and repeats some
// channels, so the results must not overwrite the sources. False: there are fewer channels than one vector holds.
template <int Bytes, class C, class Do> [[gnu::always_inline]] inline bool by_vectors(std::int64_t from, std::int64_t to, Do several) {
  constexpr std::int64_t kCount = Bytes / sizeof(C);
  if (to - from < kCount) return false;
  const Vector<C, Bytes> type{};
  for (; from + kCount <= to; from += kCount) several(from, type);
  if (from < to) several(to - kCount, type);
  return true;
}

// Channels [from, to) of values of type V: by vectors where `contiguous`, else one by one. The vectors are explicit
// because a compiler unrolls loops over few channels before it looks for vectors in them, and finds none.
template <class V, class Several, class One>
[[gnu::always_inline]] inline void for_channels(bool contiguous, std::int64_t from, std::int64_t to, Several several, One one) {
  using C = typename ComputeOf<V>::type;
  constexpr int kLeast = 16;
  if constexpr (kHasVectors<V>)
    if (contiguous && to - from >= kLeast / std::int64_t(sizeof(C))) {
      if (kRegister >= 64 && by_vectors<kRegister < 64 ? kRegister : 64, C>(from, to, several)) return;
      if (kRegister >= 32 && by_vectors<kRegister < 32 ? kRegister : 32, C>(from, to, several)) return;
      by_vectors<kLeast, C>(from, to, several);
      return;
    }
  for (std::int64_t d = from; d < to; ++d) one(d);
}

} // namespace
} // namespace RIDGELINE_ISA
} // namespace ridgeline
