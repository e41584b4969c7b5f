// How channels of each kind go from one frame to the next. Part of the loops: compiled once per instruction set. Nothing of it
// knows the type of the stamps, and each is a function by itself, not one more copy in every loop over targets: else they
// would be compiled three times over.
#pragma once

#include <algorithm>
#include <cmath>
#include <type_traits>

#include "resample_mix.hpp"
#include "resample_slerp.hpp"
#include "resample_track.hpp"

namespace ridgeline {
namespace RIDGELINE_ISA {
namespace {

// Channels that lie side by side are known to do so while compiling: only then can the loops over them be vectorised.
template <class V, class Do> [[gnu::always_inline]] inline void by_step(const Frames<V> &frames, Do run) {
  if (frames.channel_step == 1) run(std::integral_constant<std::int64_t, 1>{});
  else run(frames.channel_step);
}

template <class V, class C, class Put>
[[gnu::noinline]] void linear(const Frames<V> &frames, const Spot<C> &at, std::int64_t from, std::int64_t to, Put put) {
  const V *a = frames.frame(at.i), *b = frames.frame(at.j);
  const C w = at.w;
  if (frames.channel_step == 1) return w == 0 ? hold(a, put, from, to) : mix(a, b, w, put, from, to);
  for (std::int64_t d = from; d < to; ++d) {
    const C left = wide(a[d * frames.channel_step]);
    put.one(d, w == 0 ? left : plus(left, wide(b[d * frames.channel_step]) - left, w));
  }
}

// x less whole turns, in [-π, π]. 2π is taken away in two parts, the first of few bits, so that its multiples are exact;
// beyond that reach the library does it, slowly.
inline double wrapped(double x) {
  constexpr double kWhole = 6755399441055744.0; // 1.5 · 2⁵²: added and taken away again it leaves a whole number
  constexpr double kHigh = 0x1.921fb544p+2, kLow = 0x1.0b4611a626331p-32, kPi = 3.141592653589793;
  const double turns = (x * 0.15915494309189535 + kWhole) - kWhole;
  const double rest = (x - turns * kHigh) - turns * kLow;
  return rest > kPi ? kPi : rest < -kPi ? -kPi : rest; // comparisons let NaN through
}
constexpr double kFarthest = 1e6; // turns · kHigh has 33 + 20 bits

// `give` gets each of `count` channels, `step` apart, w of the way from a to b.
template <class V, class Step, class Give>
[[gnu::always_inline]] inline void turned(const V *a, const V *b, Step step, double w, std::int64_t count, Give give) {
  using C = typename ComputeOf<V>::type;
  int far = 0;
  for (std::int64_t d = 0; d < count; ++d)
    far |= (std::fabs(wide(a[d * step])) > C(kFarthest)) | (std::fabs(wide(b[d * step])) > C(kFarthest));
  if (far) {
    constexpr double kTurn = 6.283185307179586476925;
    for (std::int64_t d = 0; d < count; ++d) {
      const double left = wide(a[d * step]), way = std::remainder(wide(b[d * step]) - left, kTurn);
      give(d, C(std::remainder(w == 0 ? left : plus(left, way, w), kTurn)));
    }
  } else {
    for (std::int64_t d = 0; d < count; ++d) {
      const double left = wide(a[d * step]), way = wrapped(double(wide(b[d * step])) - left);
      give(d, C(wrapped(w == 0 ? left : plus(left, way, w))));
    }
  }
}

template <class V, class C, class Put>
[[gnu::noinline]] void angle(const Frames<V> &frames, const Spot<C> &at, std::int64_t from, std::int64_t to, Put put) {
  const V *a = frames.frame(at.i), *b = frames.frame(at.j);
  const double w = at.w;
  // By whole registers of floats or doubles: no compiler widens and narrows 16 bits side by side, and what is left over, of
  // few channels most, it does one by one.
  constexpr std::int64_t kAtOnce = 32, kWhole = 8;
  const std::int64_t all = to - from;
  const bool worth = sizeof(V) == 2 ? all > 3 : all < kAtOnce && all % kWhole > 2;
  if constexpr (kSideBySide<V> && Put::kSideBySide)
    if (worth && frames.channel_step == 1 && put.together()) {
      C left[kAtOnce]{}, right[kAtOnce]{};
      for (std::int64_t d = from; d < to; d += kAtOnce) {
        const std::int64_t count = std::min(kAtOnce, to - d), whole = (count + kWhole - 1) / kWhole * kWhole;
        hold(a + d, Straight<C>{left}, 0, count), hold(b + d, Straight<C>{right}, 0, count);
        turned(left, right, std::integral_constant<std::int64_t, 1>{}, w, whole, [&](std::int64_t k, C v) { left[k] = v; });
        channels<V>(
            true, 0, count,
            [&](std::int64_t k, auto kind) __attribute__((always_inline)) {
              put.several(d + k, load<decltype(kind)>(left + k));
            },
            [&](std::int64_t k) { put.one(d + k, left[k]); });
      }
      return;
    }
  by_step(frames, [=](auto step) {
    turned(a + from * step, b + from * step, step, w, all, [=](std::int64_t d, auto v) { put.one(from + d, v); });
  });
}

// Beyond either end, where the angle counts many times over and a cosine near 1 does not know it well: by the tangent.
template <class V, class C, class Put>
[[gnu::noinline]] void slerp_beyond(const Frames<V> &frames, const Spot<C> &at, std::int64_t d, Put put) {
  const auto size = [](const double (&q)[4]) { return std::sqrt(q[0] * q[0] + q[1] * q[1] + q[2] * q[2] + q[3] * q[3]); };
  double p[4], q[4], apart[4], along[4];
  for (int k = 0; k < 4; ++k) p[k] = frames.value(at.i, d + k), q[k] = frames.value(at.j, d + k);
  const double dot = p[0] * q[0] + p[1] * q[1] + p[2] * q[2] + p[3] * q[3];
  const double per_p = 1 / size(p), per_q = (dot < 0 ? -1 : 1) / size(q);
  for (int k = 0; k < 4; ++k) p[k] *= per_p, q[k] *= per_q, apart[k] = p[k] - q[k], along[k] = p[k] + q[k];
  const double theta = 2 * std::atan2(size(apart), size(along)), w = at.w;
  const double left = theta > 0 ? std::sin((1 - w) * theta) : 1, right = theta > 0 ? std::sin(w * theta) : 0;
  for (int k = 0; k < 4; ++k) along[k] = left * p[k] + right * q[k];
  for (int k = 0; k < 4; ++k) put.one(d + k, C(along[k] / size(along)));
}

// Between two frames they wait until there are enough to be turned together, of one target or of several.
template <class C, class Put> class Turning {
public:
  template <class V>
  [[gnu::noinline]] void slerp(const Frames<V> &frames, const Spot<C> &at, std::int64_t from, std::int64_t to, const Put &put) {
    const bool beyond = !(at.w >= 0 && at.w <= 1); // or no number, which spans that are infinite make
    for (std::int64_t d = from; d + 4 <= to; d += 4) {
      if (beyond) {
        slerp_beyond(frames, at, d, put);
        continue;
      }
      take(frames, at.i, d, turns.from);
      take(frames, at.w == 0 ? at.i : at.j, d, turns.to); // what is not asked for may be no rotation
      turns.share[count] = at.w, puts[count] = put, channel[count] = d;
      if (++count == kTurns) finish();
    }
  }

  void finish() {
    turn(turns, count);
    for (int i = 0; i < count; ++i) give(puts[i], channel[i], i);
    count = 0;
  }

private:
  template <class V> void take(const Frames<V> &frames, std::int64_t frame, std::int64_t d, C (&to)[4][kTurns]) {
    if (frames.channel_step == 1) {
      const V *const from = frames.frame(frame) + d;
      if constexpr (sizeof(V) == 2 && kSideBySide<V>) {
        const auto four = widened<Wide<float, 16>>(from);
        for (int k = 0; k < 4; ++k) to[k][count] = four[k];
      } else {
        for (int k = 0; k < 4; ++k) to[k][count] = wide(from[k]);
      }
      return;
    }
    for (int k = 0; k < 4; ++k) to[k][count] = frames.value(frame, d + k);
  }
  void give(const Put &put, std::int64_t d, int i) const {
    if constexpr (sizeof(C) == 4 && Put::kSideBySide)
      if (put.together()) {
        const auto &q = turns.from;
        return put.several(d, Wide<C, 16>{q[0][i], q[1][i], q[2][i], q[3][i]});
      }
    for (int k = 0; k < 4; ++k) put.one(d + k, turns.from[k][i]);
  }

  Turns<C> turns{};
  Put puts[kTurns]{};
  std::int64_t channel[kTurns];
  int count = 0;
};

// The slope of monotone pchip at a node between spans h0, h1 with secants m0, m1 (Fritsch and Butland 1984): their
// weighted harmonic mean, written with one division; 0 where the curve turns. They are of one channel or of several side by
// side.
template <class C, class Some> [[gnu::always_inline]] inline Some inner_slope(C h0, C h1, Some m0, Some m1) {
  const C w0 = 2 * h1 + h0, w1 = h1 + 2 * h0;
  const Some product = m0 * m1, slope = (w0 + w1) * product / (w0 * m1 + w1 * m0);
  return product <= C(0) ? Some{} : slope; // NaN stays NaN
}
// At an end: the three-point formula, kept from overshooting.
template <class C> inline C end_slope(C h0, C h1, C m0, C m1) {
  const C d = ((2 * h0 + h1) * m0 - h0 * m1) / (h0 + h1);
  if (d * m0 <= 0) return C(0);
  return m0 * m1 <= 0 && std::fabs(d) > 3 * std::fabs(m0) ? 3 * m0 : d;
}

// Beside the two frames around a target: the one before them and the one after, -1 where there is none, and the spans.
template <class C> struct Beyond {
  std::int64_t before, after;
  C h0, h, h1;

  template <class V, class T> static Beyond of(const Track<V, T> &track, const Spot<C> &at) {
    if (at.w == 0 || at.i == at.j) return {-1, -1, C(0), C(0), C(0)}; // asks for none
    const std::int64_t before = track.before(at.i), after = at.j + 1 < track.n ? track.last_of(at.j + 1) : -1;
    return {before, after, before < 0 ? C(0) : C(track.span(before, at.i)), C(track.span(at.i, at.j)),
            after < 0 ? C(0) : C(track.span(at.j, after))};
  }
};

template <class V, class C, class Put>
[[gnu::noinline]] void cubic(const Frames<V> &frames, const Spot<C> &at, const Beyond<C> &beyond, std::int64_t from,
                             std::int64_t to, Put put) {
  if (at.w == 0 || at.i == at.j) return linear(frames, at, from, to, put);
  const auto [before, after, h0, h, h1] = beyond;
  const C w = at.w, v = 1 - w, per_h = 1 / h;
  // The Hermite basis at w, once for all channels.
  const C at_a = v * v * (1 + 2 * w), at_b = w * w * (3 - 2 * w), at_left = h * w * v * v, at_right = -h * w * w * v;
  if (before >= 0 && after >= 0) {
    const C per_h0 = 1 / h0, per_h1 = 1 / h1;
    const V *p = frames.frame(before), *l = frames.frame(at.i), *r = frames.frame(at.j), *q = frames.frame(after);
    const auto between = [=, h0 = h0, h = h, h1 = h1](auto x, auto a, auto b, auto y) __attribute__((always_inline)) {
      const auto m0 = (a - x) * per_h0, m = (b - a) * per_h, m1 = (y - b) * per_h1;
      return a * at_a + b * at_b + inner_slope(h0, h, m0, m) * at_left + inner_slope(h, h1, m, m1) * at_right;
    };
    const std::int64_t step = frames.channel_step;
    channels<V>(
        step == 1 && put.together(), from, to,
        [&](std::int64_t d, auto kind) __attribute__((always_inline)) {
          using Many = decltype(kind);
          put.several(d, between(widened<Many>(p + d), widened<Many>(l + d), widened<Many>(r + d), widened<Many>(q + d)));
        },
        [&](std::int64_t d) {
          put.one(d, between(wide(p[d * step]), wide(l[d * step]), wide(r[d * step]), wide(q[d * step])));
        });
    return;
  }
  for (std::int64_t d = from; d < to; ++d) { // neither: two stamps only, a straight line
    const C a = frames.value(at.i, d), b = frames.value(at.j, d), m = (b - a) * per_h;
    C left = m, right = m;
    if (before >= 0) {
      const C m0 = (a - frames.value(before, d)) / h0;
      left = inner_slope(h0, h, m0, m), right = end_slope(h, h0, m, m0);
    } else if (after >= 0) {
      const C m1 = (frames.value(after, d) - b) / h1;
      left = end_slope(h, h1, m, m1), right = inner_slope(h, h1, m, m1);
    }
    put.one(d, a * at_a + b * at_b + left * at_left + right * at_right);
  }
}

template <class V, class T, class Put>
void emit(const ResampleJob &job, const Track<V, T> &track, const Spot<typename Track<V, T>::C> &at, Put put,
          Turning<typename Track<V, T>::C, Put> &turning) {
  using C = typename Track<V, T>::C;
  const Frames<V> &frames = track;
  for (const Channels &group : job.groups) {
    switch (group.kind) {
    case Kind::previous: linear(frames, Spot<C>{at.previous, 0, 0, true}, group.start, group.stop, put); break;
    case Kind::nearest: linear(frames, Spot<C>{at.nearest, 0, 0, true}, group.start, group.stop, put); break;
    case Kind::linear: linear(frames, at, group.start, group.stop, put); break;
    case Kind::cubic: cubic(frames, at, Beyond<C>::of(track, at), group.start, group.stop, put); break;
    case Kind::slerp: turning.slerp(frames, at, group.start, group.stop, put); break;
    case Kind::angle: angle(frames, at, group.start, group.stop, put); break;
    }
  }
}

} // namespace
} // namespace RIDGELINE_ISA
} // namespace ridgeline
