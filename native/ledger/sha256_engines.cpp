// Each engine carries its own target attribute, so this file is compiled once and runs on every CPU of its kind.
#include "ledger/sha256_engines.hpp"

#if defined(__aarch64__)
#include <arm_neon.h>
#include <sys/auxv.h>
#elif defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif

namespace ridgeline {
namespace {

inline std::uint32_t turned(std::uint32_t x, int n) { return x >> n | x << (32 - n); }

inline std::uint32_t word(const std::uint8_t *p) {
  return std::uint32_t(p[0]) << 24 | std::uint32_t(p[1]) << 16 | std::uint32_t(p[2]) << 8 | p[3];
}

} // namespace

void sha256_portable(std::uint32_t state[8], const std::uint8_t *data, std::size_t blocks) {
  for (; blocks; --blocks, data += 64) {
    std::uint32_t w[64], s[8];
    for (int t = 0; t < 16; ++t) w[t] = word(data + 4 * t);
    for (int t = 16; t < 64; ++t) {
      const std::uint32_t a = w[t - 15], b = w[t - 2];
      w[t] = w[t - 16] + (turned(a, 7) ^ turned(a, 18) ^ a >> 3) + w[t - 7] + (turned(b, 17) ^ turned(b, 19) ^ b >> 10);
    }
    for (int k = 0; k < 8; ++k) s[k] = state[k];
    for (int t = 0; t < 64; ++t) {
      const std::uint32_t e = s[4], a = s[0];
      const std::uint32_t one = s[7] + (turned(e, 6) ^ turned(e, 11) ^ turned(e, 25)) + ((e & s[5]) ^ (~e & s[6])) + kRound[t] + w[t];
      const std::uint32_t two = (turned(a, 2) ^ turned(a, 13) ^ turned(a, 22)) + ((a & s[1]) ^ (a & s[2]) ^ (s[1] & s[2]));
      s[7] = s[6], s[6] = s[5], s[5] = s[4], s[4] = s[3] + one, s[3] = s[2], s[2] = s[1], s[1] = s[0], s[0] = one + two;
    }
    for (int k = 0; k < 8; ++k) state[k] += s[k];
  }
}

#if defined(__aarch64__)

__attribute__((target("+crypto"))) static void sha256_arm(std::uint32_t state[8], const std::uint8_t *data, std::size_t blocks) {
  uint32x4_t abcd = vld1q_u32(state), efgh = vld1q_u32(state + 4);
  for (; blocks; --blocks, data += 64) {
    const uint32x4_t abcd_before = abcd, efgh_before = efgh;
    uint32x4_t w[4];
    for (int k = 0; k < 4; ++k) w[k] = vreinterpretq_u32_u8(vrev32q_u8(vld1q_u8(data + 16 * k)));
#pragma GCC unroll 16
    for (int k = 0; k < 16; ++k) { // four rounds each; the schedule is made twelve steps ahead of its use
      const uint32x4_t added = vaddq_u32(w[k & 3], vld1q_u32(kRound + 4 * k));
      const uint32x4_t upper = abcd;
      if (k < 12) w[k & 3] = vsha256su1q_u32(vsha256su0q_u32(w[k & 3], w[(k + 1) & 3]), w[(k + 2) & 3], w[(k + 3) & 3]);
      abcd = vsha256hq_u32(abcd, efgh, added);
      efgh = vsha256h2q_u32(efgh, upper, added);
    }
    abcd = vaddq_u32(abcd, abcd_before);
    efgh = vaddq_u32(efgh, efgh_before);
  }
  vst1q_u32(state, abcd);
  vst1q_u32(state + 4, efgh);
}

Compress sha256_hardware() {
  constexpr unsigned long kHasSha2 = 1 << 6; // HWCAP_SHA2
  static const Compress engine = getauxval(AT_HWCAP) & kHasSha2 ? sha256_arm : nullptr;
  return engine;
}
const char *sha256_hardware_name() { return "sha2"; }

#elif defined(__x86_64__)

__attribute__((target("sha,ssse3,sse4.1"))) static void sha256_x86(std::uint32_t state[8], const std::uint8_t *data, std::size_t blocks) {
  // The instructions want the state as {a b e f} and {c d g h}, highest word first.
  const __m128i flip = _mm_set_epi64x(0x0c0d0e0f08090a0bLL, 0x0405060700010203LL);
  __m128i dcba = _mm_loadu_si128(reinterpret_cast<const __m128i *>(state));
  __m128i hgfe = _mm_loadu_si128(reinterpret_cast<const __m128i *>(state + 4));
  const __m128i cdab = _mm_shuffle_epi32(dcba, 0xb1), efgh = _mm_shuffle_epi32(hgfe, 0x1b);
  __m128i abef = _mm_alignr_epi8(cdab, efgh, 8), cdgh = _mm_blend_epi16(efgh, cdab, 0xf0);
  for (; blocks; --blocks, data += 64) {
    const __m128i abef_before = abef, cdgh_before = cdgh;
    __m128i w[4];
    for (int k = 0; k < 4; ++k) w[k] = _mm_shuffle_epi8(_mm_loadu_si128(reinterpret_cast<const __m128i *>(data + 16 * k)), flip);
#pragma GCC unroll 16
    for (int k = 0; k < 16; ++k) {
      __m128i added = _mm_add_epi32(w[k & 3], _mm_loadu_si128(reinterpret_cast<const __m128i *>(kRound + 4 * k)));
      cdgh = _mm_sha256rnds2_epu32(cdgh, abef, added);
      added = _mm_shuffle_epi32(added, 0x0e);
      abef = _mm_sha256rnds2_epu32(abef, cdgh, added);
      if (k < 12) {
        const __m128i middle = _mm_alignr_epi8(w[(k + 3) & 3], w[(k + 2) & 3], 4);
        const __m128i sum = _mm_add_epi32(_mm_sha256msg1_epu32(w[k & 3], w[(k + 1) & 3]), middle);
        w[k & 3] = _mm_sha256msg2_epu32(sum, w[(k + 3) & 3]);
      }
    }
    abef = _mm_add_epi32(abef, abef_before);
    cdgh = _mm_add_epi32(cdgh, cdgh_before);
  }
  const __m128i feba = _mm_shuffle_epi32(abef, 0x1b), dchg = _mm_shuffle_epi32(cdgh, 0xb1);
  _mm_storeu_si128(reinterpret_cast<__m128i *>(state), _mm_blend_epi16(feba, dchg, 0xf0));
  _mm_storeu_si128(reinterpret_cast<__m128i *>(state + 4), _mm_alignr_epi8(dchg, feba, 8));
}

Compress sha256_hardware() {
  static const Compress engine = []() -> Compress {
    unsigned a = 0, b = 0, c = 0, d = 0;
    constexpr unsigned kHasSha = 1u << 29; // leaf 7, EBX
    const bool sha = __get_cpuid_count(7, 0, &a, &b, &c, &d) && (b & kHasSha);
    __builtin_cpu_init();
    return sha && __builtin_cpu_supports("ssse3") && __builtin_cpu_supports("sse4.1") ? sha256_x86 : nullptr;
  }();
  return engine;
}
const char *sha256_hardware_name() { return "sha-ni"; }

#else

Compress sha256_hardware() { return nullptr; }
const char *sha256_hardware_name() { return "none"; }

#endif

} // namespace ridgeline
