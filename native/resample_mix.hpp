// Frames into the answer: held, or two of them mixed, by as many channels at a time as a register has. Part of the loops:
// compiled once per instruction set.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include "resample_wide.hpp"

namespace ridgeline {
namespace RIDGELINE_ISA {
namespace {

template <class O> inline void no_number(O &to) { narrow(std::numeric_limits<typename ComputeOf<O>::type>::quiet_NaN(), to); }

// Where channel d goes, by itself or, if they lie together, with those after it; or that it has no answer.
template <class O> struct Straight {
  static constexpr bool kSideBySide = ridgeline::RIDGELINE_ISA::kSideBySide<O>; // if they lie together
  O *out;
  static constexpr bool together() { return true; }
  void none(std::int64_t d) const { no_number(out[d]); }
  template <class C> void one(std::int64_t d, C v) const { narrow(v, out[d]); }
  template <class Many> void several(std::int64_t d, Many v) const { narrowed(v, out + d); }
};
template <class O> struct Apart {
  static constexpr bool kSideBySide = false;
  O *out;
  std::int64_t step;
  static constexpr bool together() { return false; }
  void none(std::int64_t d) const { no_number(out[d * step]); }
  template <class C> void one(std::int64_t d, C v) const { narrow(v, out[d * step]); }
  template <class Many> void several(std::int64_t, Many) const {}
};
template <class O, class C> struct Scaled {
  static constexpr bool kSideBySide = ridgeline::RIDGELINE_ISA::kSideBySide<O>;
  O *out;
  std::int64_t step;
  const C *scale, *shift;
  bool together() const { return step == 1; }
  void none(std::int64_t d) const { no_number(out[d * step]); }
  void one(std::int64_t d, C v) const { narrow(plus(shift[d], v, scale[d]), out[d * step]); }
  template <class Many> void several(std::int64_t d, Many v) const {
    narrowed(plus(load<Many>(shift + d), v, load<Many>(scale + d)), out + d);
  }
};

// [from, to) as many at a time as fit into a register of `Bytes`; those that are left over with the ones before them, once
// more: the answer lies elsewhere. False: there are fewer.
template <int Bytes, class C, class Do> [[gnu::always_inline]] inline bool by(std::int64_t from, std::int64_t to, Do some) {
  constexpr std::int64_t kAtOnce = Bytes / sizeof(C);
  if (to - from < kAtOnce) return false;
  const Wide<C, Bytes> kind{};
  for (; from + kAtOnce <= to; from += kAtOnce) some(from, kind);
  if (from < to) some(to - kAtOnce, kind);
  return true;
}

// Said one by one, a compiler unrolls loops over few channels before it looks for vectors in them, and finds none.
template <class V, class Some, class One>
[[gnu::always_inline]] inline void channels(bool together, std::int64_t from, std::int64_t to, Some some, One one) {
  using C = typename ComputeOf<V>::type;
  constexpr int kLeast = 16;
  if constexpr (kSideBySide<V>)
    if (together && to - from >= kLeast / std::int64_t(sizeof(C))) {
      if (kRegister >= 64 && by<std::min(kRegister, 64), C>(from, to, some)) return;
      if (kRegister >= 32 && by<std::min(kRegister, 32), C>(from, to, some)) return;
      by<kLeast, C>(from, to, some);
      return;
    }
  for (std::int64_t d = from; d < to; ++d) one(d);
}

template <class V, class C, class Put>
[[gnu::always_inline]] inline void mix(const V *a, const V *b, C w, const Put &put, std::int64_t from, std::int64_t to) {
  channels<V>(
      put.together(), from, to,
      [&](std::int64_t d, auto kind) __attribute__((always_inline)) {
        using Many = decltype(kind);
        const Many left = widened<Many>(a + d), right = widened<Many>(b + d);
        put.several(d, plus(left, right - left, w - Many{}));
      },
      [&](std::int64_t d) {
        const C left = wide(a[d]);
        put.one(d, plus(left, wide(b[d]) - left, w));
      });
}

template <class V, class Put>
[[gnu::always_inline]] inline void hold(const V *a, const Put &put, std::int64_t from, std::int64_t to) {
  channels<V>(
      put.together(), from, to,
      [&](std::int64_t d, auto kind) __attribute__((always_inline)) { put.several(d, widened<decltype(kind)>(a + d)); },
      [&](std::int64_t d) { put.one(d, wide(a[d])); });
}

} // namespace
} // namespace RIDGELINE_ISA
} // namespace ridgeline
