// Rotations on the way from one to the next, many at a time. Part of the loops: compiled once per instruction set.
#pragma once

#include <cstdint>

#include "resample_wide.hpp"

namespace ridgeline {
namespace RIDGELINE_ISA {
namespace {

template <class Many, class C, int Terms> [[gnu::always_inline]] inline Many polynomial(const C (&terms)[Terms], Many x) {
  Many sum = terms[Terms - 1] - Many{};
  for (int k = Terms - 2; k >= 0; --k) sum = plus(terms[k] - Many{}, sum, x);
  return sum;
}

// Interpolation at Chebyshev's points, in each type as long as its rounding can tell: θ² / u for u = (1 - cos θ) / 2 up to a
// right angle (relative error 7e-9 and 1e-17), and sin(x) / x by x² up to there (3e-11 and 3e-19).
template <class C> struct Arc;
template <> struct Arc<float> {
  static constexpr float square[] = {4.0f,         1.33332753f,   0.711427093f, 0.450719863f, 0.388891399f,
                                     -0.100448288f, 1.25914824f, -1.61303437f, 1.45985377f};
  static constexpr float sine[] = {1.0f, -0.166666672f, 0.00833333097f, -0.000198408627f, 2.75252614e-06f, -2.38880471e-08f};
};
template <> struct Arc<double> {
  static constexpr double square[] = {
      4.0,                   1.3333333333333548,   0.71111111110367886, 0.45714285800474413, 0.32507931478344176,
      0.24627399905584854,   0.19481264357100322,  0.1597701573865675,  0.12571228063734488, 0.17752004703123087,
      -0.32103596817216695,  2.1937375857991306,   -8.0911023807189153, 24.442359493369903,  -55.503776081497314,
      95.18945854379939,     -118.6060643039026,   102.166712075147,    -54.484769661706544, 13.8220762574974};
  static constexpr double sine[] = {1.0,
                                    -0.16666666666666666,
                                    0.0083333333333331944,
                                    -0.00019841269841210424,
                                    2.7557319211394028e-06,
                                    -2.5052106897633096e-08,
                                    1.605894094466029e-10,
                                    -7.6430224865998081e-13,
                                    2.7214827883840319e-15};
};

// So many of them that a register is full whatever its width, few enough to stay near.
constexpr int kTurns = 32;
template <class C> struct Turns { // four numbers of a rotation each, beside those of the others
  C from[4][kTurns], to[4][kTurns], share[kTurns];
};

// The first `count`: [0, 1] of the way between two rotations, the short one; the answer, a unit quaternion, takes the place
// of `from`. What is no rotation, (0, 0, 0, 0), becomes NaN, not an invented one.
//
// That is sin((1 - w) θ) p + sin(w θ) q by its size, for unit p and q and θ between them. Either factor by θ is w S(w² θ²),
// with S the sine of a root by that root, and θ² a function of the cosine, both smooth down to no angle at all: polynomials
// do, with no arc cosine, no sine and no case by itself.
template <class C> [[gnu::noinline]] void turn(Turns<C> &turns, int count) {
  using Many = Wide<C, kRegister>;
  constexpr int kAtOnce = kRegister / sizeof(C);
  for (int i = 0; i < count; i += kAtOnce) { // what follows the last of them is anything
    Many p[4], q[4];
    for (int k = 0; k < 4; ++k) p[k] = load<Many>(turns.from[k] + i), q[k] = load<Many>(turns.to[k] + i);
    const auto product = [](const Many (&a)[4], const Many (&b)[4]) __attribute__((always_inline)) {
      return plus(plus(plus(a[0] * b[0], a[1], b[1]), a[2], b[2]), a[3], b[3]);
    };
    const Many pp = product(p, p), sizes = root(pp / product(q, q)), cosine = product(p, q) * sizes / pp;
    const Many u = (1 - (cosine < 0 ? -cosine : cosine)) / 2, square = u * polynomial(Arc<C>::square, u);
    const Many w = load<Many>(turns.share + i), v = 1 - w;
    const Many left = v * polynomial(Arc<C>::sine, v * v * square);
    const Many right = (cosine < 0 ? -w : w) * sizes * polynomial(Arc<C>::sine, w * w * square); // q and -q are one
    for (int k = 0; k < 4; ++k) p[k] = plus(left * p[k], right, q[k]);
    const Many per_size = 1 / root(product(p, p));
    for (int k = 0; k < 4; ++k) p[k] *= per_size, narrowed(p[k], turns.from[k] + i);
  }
}

} // namespace
} // namespace RIDGELINE_ISA
} // namespace ridgeline
