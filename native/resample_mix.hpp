// Two frames mixed into one. Part of the loops: compiled once per instruction set.
#pragma once

#include <algorithm>
#include <cstdint>

#include "resample_wide.hpp"

namespace ridgeline {
namespace RIDGELINE_ISA {
namespace {

// Channels as many at a time as fit into a register of `Bytes`; those that are left over with the ones before them, which
// are mixed once more: the answer lies elsewhere. False: there are fewer.
template <int Bytes, class V, class O, class C>
[[gnu::always_inline]] inline bool mix_by(const V *a, const V *b, C w, O *out, std::int64_t channels) {
  constexpr std::int64_t kAtOnce = Bytes / sizeof(C);
  if (channels < kAtOnce) return false;
  using Many = Wide<C, Bytes>;
  const auto some = [&](std::int64_t d) __attribute__((always_inline)) {
    const Many from = widened<Many>(a + d), to = widened<Many>(b + d);
    narrowed(plus(from, to - from, w - Many{}), out + d);
  };
  std::int64_t d = 0;
  for (; d + kAtOnce <= channels; d += kAtOnce) some(d);
  if (d < channels) some(channels - kAtOnce);
  return true;
}

// Said lane by lane, a compiler unrolls loops over few channels before it looks for vectors in them, and finds none.
template <class V, class O, class C>
[[gnu::always_inline]] inline void mix(const V *a, const V *b, C w, O *out, std::int64_t channels) {
  constexpr int kLeast = 16;
  if constexpr (kSideBySide<V>)
    if (channels >= kLeast / std::int64_t(sizeof(C))) {
      if (kRegister >= 64 && mix_by<std::min(kRegister, 64)>(a, b, w, out, channels)) return;
      if (kRegister >= 32 && mix_by<std::min(kRegister, 32)>(a, b, w, out, channels)) return;
      mix_by<kLeast>(a, b, w, out, channels);
      return;
    }
  for (std::int64_t d = 0; d < channels; ++d) {
    const C from = wide(a[d]);
    narrow(plus(from, wide(b[d]) - from, w), out[d]);
  }
}

} // namespace
} // namespace RIDGELINE_ISA
} // namespace ridgeline
