// Compiled once per instruction set (CMakeLists.txt), each time into a namespace of its own.
#include "sieve.hpp"

namespace ridgeline {
namespace RIDGELINE_ISA {
namespace {

constexpr std::int64_t kWidth = 16;

std::int64_t above(const float *s, const float *bias, float offset, float bar, std::int64_t n, std::int32_t *hits,
                   float *sums) {
  std::int64_t found = 0, i = 0;
  float sum[kWidth];
  for (; i + kWidth <= n; i += kWidth) {
    int any = 0;
    for (std::int64_t u = 0; u < kWidth; ++u) {
      sum[u] = s[i + u] + offset + (bias ? bias[i + u] : 0.0f);
      any |= sum[u] >= bar;
    }
    if (!any) continue;
    for (std::int64_t u = 0; u < kWidth; ++u)
      if (sum[u] >= bar) hits[found] = std::int32_t(i + u), sums[found++] = sum[u];
  }
  for (; i < n; ++i) {
    const float one = s[i] + offset + (bias ? bias[i] : 0.0f);
    if (one >= bar) hits[found] = std::int32_t(i), sums[found++] = one;
  }
  return found;
}

template <class Term> double sum_of(std::int64_t d, Term term) {
  double part[kWidth] = {};
  std::int64_t i = 0;
  for (; i + kWidth <= d; i += kWidth)
    for (std::int64_t u = 0; u < kWidth; ++u) part[u] += term(i + u);
  double rest = 0;
  for (; i < d; ++i) rest += term(i);
  for (std::int64_t u = 0; u < kWidth; ++u) rest += part[u];
  return rest;
}

double dot(const float *q, const float *x, std::int64_t d) {
  return sum_of(d, [=](std::int64_t i) { return double(q[i]) * double(x[i]); });
}

double distance(const float *q, const float *x, std::int64_t d) {
  return sum_of(d, [=](std::int64_t i) {
    const double apart = double(q[i]) - double(x[i]);
    return apart * apart;
  });
}

float dot_bytes(const float *q, const std::uint8_t *codes, std::int64_t d) {
  float part[kWidth] = {}, rest = 0;
  std::int64_t i = 0;
  for (; i + kWidth <= d; i += kWidth)
    for (std::int64_t u = 0; u < kWidth; ++u) part[u] += q[i + u] * float(codes[i + u]);
  for (; i < d; ++i) rest += q[i] * float(codes[i]);
  for (std::int64_t u = 0; u < kWidth; ++u) rest += part[u];
  return rest;
}

void look_up(const float *tables, const std::uint8_t *codes, std::int64_t parts, std::int64_t n, float *out) {
  for (std::int64_t r = 0; r < n; ++r, codes += parts) {
    // Four sums at a time: one chain of additions would wait for itself.
    float a = 0, b = 0, c = 0, e = 0;
    std::int64_t j = 0;
    for (; j + 4 <= parts; j += 4) {
      const float *t = tables + 256 * j;
      a += t[codes[j]], b += t[256 + codes[j + 1]], c += t[512 + codes[j + 2]], e += t[768 + codes[j + 3]];
    }
    for (; j < parts; ++j) a += tables[256 * j + codes[j]];
    out[r] = (a + b) + (c + e);
  }
}

} // namespace

extern const SieveLoops loops_of_sieve;
const SieveLoops loops_of_sieve{above, dot, distance, dot_bytes, look_up};

} // namespace RIDGELINE_ISA
} // namespace ridgeline
