// Compiled once per instruction set (CMakeLists.txt), each time in a namespace of its own.
#include <cstring>

#include "memory/bandwidth.hpp"

#if defined(__AVX2__)
#include <immintrin.h>
#elif defined(__x86_64__)
#include <emmintrin.h>
#endif

namespace ridgeline {
namespace RIDGELINE_ISA {

// One vector of this instruction set, and a store that bypasses the caches.
#if defined(__AVX512F__)
using Wide = __m512i;
inline void stream(void *to, Wide v) { _mm512_stream_si512(static_cast<__m512i *>(to), v); }
inline void fence() { _mm_sfence(); }
#elif defined(__AVX2__)
using Wide = __m256i;
inline void stream(void *to, Wide v) { _mm256_stream_si256(static_cast<__m256i *>(to), v); }
inline void fence() { _mm_sfence(); }
#elif defined(__x86_64__)
using Wide = __m128i;
inline void stream(void *to, Wide v) { _mm_stream_si128(static_cast<__m128i *>(to), v); }
inline void fence() { _mm_sfence(); }
#else
typedef std::uint64_t Wide __attribute__((vector_size(32), aligned(16)));
inline void stream(void *to, Wide v) {
#if defined(__aarch64__)
  typedef std::uint64_t Half __attribute__((vector_size(16)));
  Half low = {v[0], v[1]}, high = {v[2], v[3]};
  asm volatile("stnp %q0, %q1, [%2]" ::"w"(low), "w"(high), "r"(to) : "memory");
#else
  std::memcpy(to, &v, sizeof v);
#endif
}
inline void fence() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
#endif

constexpr std::size_t kUnroll = 4, kBlock = kUnroll * sizeof(Wide);

inline Wide load(const char *from) {
  Wide v;
  std::memcpy(&v, from, sizeof v);
  return v;
}
inline void store(char *to, Wide v) { std::memcpy(to, &v, sizeof v); }
inline bool aligned(const void *p) { return reinterpret_cast<std::uintptr_t>(p) % 64 == 0; }

std::uint64_t read(const void *from_, std::size_t bytes) {
  const char *from = static_cast<const char *>(from_);
  Wide sum[kUnroll] = {};
  std::size_t i = 0;
  for (; i + kBlock <= bytes; i += kBlock)
    for (std::size_t u = 0; u < kUnroll; ++u) sum[u] ^= load(from + i + u * sizeof(Wide));
  std::uint64_t words[kBlock / 8], out = 0;
  std::memcpy(words, sum, sizeof words);
  for (std::uint64_t w : words) out ^= w;
  for (; i < bytes; i += 8) {
    std::uint64_t w = 0;
    std::memcpy(&w, from + i, bytes - i < 8 ? bytes - i : 8);
    out ^= w;
  }
  return out;
}

void write(void *to_, std::uint64_t word, std::size_t bytes, bool streaming) {
  char *to = static_cast<char *>(to_);
  Wide v;
  for (std::size_t b = 0; b < sizeof v; b += 8) std::memcpy(reinterpret_cast<char *>(&v) + b, &word, 8);
  std::size_t i = 0;
  if (streaming && aligned(to)) {
    for (; i + kBlock <= bytes; i += kBlock)
      for (std::size_t u = 0; u < kUnroll; ++u) stream(to + i + u * sizeof(Wide), v);
    fence();
  } else {
    for (; i + kBlock <= bytes; i += kBlock)
      for (std::size_t u = 0; u < kUnroll; ++u) store(to + i + u * sizeof(Wide), v);
  }
  for (; i < bytes; i += 8) std::memcpy(to + i, &word, bytes - i < 8 ? bytes - i : 8);
}

void copy(void *to_, const void *from_, std::size_t bytes, bool streaming) {
  char *to = static_cast<char *>(to_);
  const char *from = static_cast<const char *>(from_);
  std::size_t i = 0;
  if (streaming && aligned(to)) {
    for (; i + kBlock <= bytes; i += kBlock)
      for (std::size_t u = 0; u < kUnroll; ++u)
        stream(to + i + u * sizeof(Wide), load(from + i + u * sizeof(Wide)));
    fence();
  }
  // The rest, or everything: inside the caches of an x86 server the C library's memcpy was faster than a vector loop.
  if (i < bytes) std::memcpy(to + i, from + i, bytes - i);
}

void triad(double *to, const double *a, const double *b, double scale, std::size_t count, bool streaming) {
  constexpr std::size_t lane = sizeof(Wide) / sizeof(double);
  std::size_t i = 0;
  if (streaming && aligned(to)) {
    for (; i + lane <= count; i += lane) {
      double sum[lane];
      for (std::size_t k = 0; k < lane; ++k) sum[k] = a[i + k] + scale * b[i + k];
      stream(to + i, load(reinterpret_cast<const char *>(sum)));
    }
    fence();
  }
  for (; i < count; ++i) to[i] = a[i] + scale * b[i];
}

extern const BandwidthLoops compiled_bandwidth_loops;
const BandwidthLoops compiled_bandwidth_loops{read, write, copy, triad};

} // namespace RIDGELINE_ISA
} // namespace ridgeline
