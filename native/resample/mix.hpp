// Writes a frame, or a mix of two frames, to contiguous output channels. Part of the loops: compiled once per instruction
// set.
#pragma once

#include "resample/vectors.hpp"

namespace ridgeline {
namespace RIDGELINE_ISA {
namespace {

// Output frames whose channels are contiguous: as they are, or scaled (normalize=).
template <class O> struct PlainOut {
  O *out;
  void none(std::int64_t d) const { set_nan(out[d]); }
  template <class C> void one(std::int64_t d, C v) const { narrow(v, out[d]); }
  template <class Vec> void several(std::int64_t d, Vec v) const { store_narrow(v, out + d); }
};
template <class O, class C> struct ScaledOut {
  O *out;
  const C *scale, *shift;
  void none(std::int64_t d) const { set_nan(out[d]); }
  void one(std::int64_t d, C v) const { narrow(add_product(shift[d], v, scale[d]), out[d]); }
  template <class Vec> void several(std::int64_t d, Vec v) const {
    store_narrow(add_product(load<Vec>(shift + d), v, load<Vec>(scale + d)), out + d);
  }
};

// a + (b - a) * w for each channel.
template <class V, class C, class Out>
[[gnu::always_inline]] inline void mix(const V *a, const V *b, C w, const Out &out, std::int64_t channels) {
  for_channels<V>(
      true, 0, channels,
      [&](std::int64_t d, auto type) __attribute__((always_inline)) {
        using Vec = decltype(type);
        const Vec left = load_wide<Vec>(a + d), right = load_wide<Vec>(b + d);
        out.several(d, add_product(left, right - left, w - Vec{}));
      },
      [&](std::int64_t d) {
        const C left = widen(a[d]);
        out.one(d, add_product(left, widen(b[d]) - left, w));
      });
}

template <class V, class Out>
[[gnu::always_inline]] inline void copy_frame(const V *a, const Out &out, std::int64_t channels) {
  for_channels<V>(
      true, 0, channels,
      [&](std::int64_t d, auto type) __attribute__((always_inline)) { out.several(d, load_wide<decltype(type)>(a + d)); },
      [&](std::int64_t d) { out.one(d, widen(a[d])); });
}

} // namespace
} // namespace RIDGELINE_ISA
} // namespace ridgeline
