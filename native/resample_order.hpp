// Stamps, several at a time: whether they are in order, and how many a target has passed. Part of the loops: compiled once
// per instruction set.
#pragma once

#include <cstdint>
#include <cstring>

namespace ridgeline {
namespace RIDGELINE_ISA {
namespace {

// Whether every stamp is a number and not before the one ahead of it, or with `Strict` after it. Contiguous ones eight at a
// time and without an early way out; said so, because of a loop over eight a compiler for AVX-512 made hundreds of shuffles.
template <bool Strict, class T> inline bool rising(const T *stamps, std::int64_t n, std::int64_t step) {
  using Eight [[gnu::vector_size(8 * sizeof(T))]] = T;
  if (n > 0 && !(stamps[0] == stamps[0])) return false;
  std::int64_t i = 1;
  if (step == 1) {
    Eight now{}, before{};
    auto fine = now == before; // all of it
    for (; i + 8 <= n; i += 8) {
      std::memcpy(&now, stamps + i, sizeof now);
      std::memcpy(&before, stamps + i - 1, sizeof before);
      fine &= Strict ? now > before : now >= before;
    }
    auto all = fine[0];
    for (int k = 1; k < 8; ++k) all &= fine[k];
    if (!all) return false;
  }
  for (; i < n; ++i) {
    const T now = stamps[i * step], before = stamps[(i - 1) * step];
    if (!(Strict ? now > before : now >= before)) return false;
  }
  return true;
}
template <class T> [[gnu::noinline]] bool in_order(const T *stamps, std::int64_t n, std::int64_t step) {
  return rising<false>(stamps, n, step);
}
template <class T> inline bool all_differ(const T *stamps, std::int64_t n) { // and are in order
  return rising<true>(stamps, n, 1);
}

// How many of four stamps in order are not after t: counted, not branched on, and as wide as the addresses it is added to.
template <class T> [[gnu::always_inline]] inline std::int64_t passed_of_four(const T *stamps, T t) {
  std::int64_t passed = stamps[0] <= t;
  passed += stamps[1] <= t, passed += stamps[2] <= t, passed += stamps[3] <= t;
  return passed;
}

} // namespace
} // namespace RIDGELINE_ISA
} // namespace ridgeline
