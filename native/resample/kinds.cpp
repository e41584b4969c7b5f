// Compiled once per instruction set (CMakeLists.txt), each time in a namespace of its own.
#include "resample/kinds.hpp"

#include <algorithm>
#include <cmath>

#include "resample/vectors.hpp"

namespace ridgeline {
namespace RIDGELINE_ISA {
namespace {

// ---- linear ----

template <class C> void copy_channels(const C *frame, std::int64_t step, std::int64_t from, std::int64_t to, C *row) {
  for (std::int64_t d = from; d < to; ++d) row[d] = frame[d * step];
}

template <class C> void linear(const Neighbours<C> &frames, std::int64_t from, std::int64_t to, C *row) {
  const C *a = frames.left, *b = frames.right;
  const C w = C(frames.weight);
  const std::int64_t step = frames.channel_step;
  if (w == 0) return copy_channels(a, step, from, to, row);
  for_channels<C>(
      step == 1, from, to,
      [&](std::int64_t d, auto type) __attribute__((always_inline)) {
        using Vec = decltype(type);
        const Vec left = load<Vec>(a + d), right = load<Vec>(b + d);
        store_narrow(add_product(left, right - left, w - Vec{}), row + d);
      },
      [&](std::int64_t d) { row[d] = add_product(a[d * step], b[d * step] - a[d * step], w); });
}

// ---- angle ----

// x minus whole turns, in [-π, π]. 2π is subtracted in two parts; the first part has few bits, so its multiples are exact
// up to kFarthest. Beyond that limit std::remainder does it, slowly.
constexpr double kFarthest = 1e6; // turns · kHigh has 33 + 20 bits
inline double wrap(double x) {
  constexpr double kRound = 6755399441055744.0; // 1.5 · 2⁵²: adding and subtracting it rounds to an integer
  constexpr double kHigh = 0x1.921fb544p+2, kLow = 0x1.0b4611a626331p-32, kPi = 3.141592653589793;
  const double turns = (x * 0.15915494309189535 + kRound) - kRound;
  const double rest = (x - turns * kHigh) - turns * kLow;
  return rest > kPi ? kPi : rest < -kPi ? -kPi : rest; // comparisons keep NaN
}

// w of the way from left to right for each of `count` channels.
template <class C>
[[gnu::always_inline]] inline void turn(const C *left, const C *right, double w, std::int64_t count, C *__restrict out) {
  constexpr double kTurn = 6.283185307179586476925;
  int is_far = 0;
  for (std::int64_t d = 0; d < count; ++d) is_far |= (std::fabs(left[d]) > C(kFarthest)) | (std::fabs(right[d]) > C(kFarthest));
  if (is_far) {
    for (std::int64_t d = 0; d < count; ++d) {
      const double a = left[d], way = std::remainder(double(right[d]) - a, kTurn);
      out[d] = C(std::remainder(w == 0 ? a : add_product(a, way, w), kTurn));
    }
  } else {
    for (std::int64_t d = 0; d < count; ++d) {
      const double a = left[d], way = wrap(double(right[d]) - a);
      out[d] = C(wrap(w == 0 ? a : add_product(a, way, w)));
    }
  }
}

template <class C> void angle(const Neighbours<C> &frames, std::int64_t from, std::int64_t to, C *row) {
  constexpr std::int64_t kBlock = 32, kLanes = 8; // a partial vector is padded, or the compiler handles it one by one
  const std::int64_t step = frames.channel_step;
  const double w = C(frames.weight);
  if (step == 1 && (to - from) % kLanes == 0) return turn(frames.left + from, frames.right + from, w, to - from, row + from);
  for (std::int64_t start = from; start < to; start += kBlock) {
    const std::int64_t count = std::min(kBlock, to - start), padded = (count + kLanes - 1) / kLanes * kLanes;
    C left[kBlock], right[kBlock], result[kBlock];
    for (std::int64_t d = 0; d < padded; ++d) {
      const std::int64_t channel = (start + std::min(d, count - 1)) * step; // the last channel fills the vector
      left[d] = frames.left[channel], right[d] = frames.right[channel];
    }
    turn(left, right, w, padded, result);
    std::copy_n(result, count, row + start);
  }
}

// ---- slerp ----

template <class Vec, class C, int Terms> [[gnu::always_inline]] inline Vec polynomial(const C (&terms)[Terms], Vec x) {
  Vec sum = terms[Terms - 1] - Vec{};
  for (int k = Terms - 2; k >= 0; --k) sum = add_product(terms[k] - Vec{}, sum, x);
  return sum;
}

// Interpolation at Chebyshev's points, as many terms as the rounding of each type can show: θ² / u for u = (1 - cos θ) / 2
// up to a right angle (relative error 7e-9 and 1e-17), and sin(x) / x by x² up to there (3e-11 and 3e-19).
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

// Interpolates all rotations of the batch along the shorter arc. (0, 0, 0, 0) is not a rotation and gives NaN.
//
// The result is sin((1 - w) θ) p + sin(w θ) q, divided by its length, for unit p and q and the angle θ between them. Each
// factor divided by θ is w S(w² θ²) with S(x²) = sin(x) / x, and θ² is a function of the cosine. Both functions are
// smooth down to an angle of 0, so polynomials replace the arc cosine, the sines and the special case of small angles.
template <class C> void interpolate_batch(SlerpBatch<C> &batch) {
  using Vec = Vector<C, kRegister>;
  constexpr int kLanes = kRegister / sizeof(C);
  for (int i = 0; i < batch.count; i += kLanes) { // lanes after the last rotation hold anything
    Vec p[4], q[4];
    for (int k = 0; k < 4; ++k) p[k] = load<Vec>(batch.from[k] + i), q[k] = load<Vec>(batch.to[k] + i);
    const auto product = [](const Vec (&a)[4], const Vec (&b)[4]) __attribute__((always_inline)) {
      return add_product(add_product(add_product(a[0] * b[0], a[1], b[1]), a[2], b[2]), a[3], b[3]);
    };
    const Vec pp = product(p, p), sizes = square_root(pp / product(q, q)), cosine = product(p, q) * sizes / pp;
    const Vec u = (1 - (cosine < 0 ? -cosine : cosine)) / 2, square = u * polynomial(Arc<C>::square, u);
    const Vec w = load<Vec>(batch.weight + i), v = 1 - w;
    const Vec left = v * polynomial(Arc<C>::sine, v * v * square);
    const Vec right = (cosine < 0 ? -w : w) * sizes * polynomial(Arc<C>::sine, w * w * square); // q and -q are one rotation
    for (int k = 0; k < 4; ++k) p[k] = add_product(left * p[k], right, q[k]);
    const Vec per_length = 1 / square_root(product(p, p));
    for (int k = 0; k < 4; ++k) p[k] *= per_length, store_narrow(p[k], batch.from[k] + i);
  }
  for (int i = 0; i < batch.count; ++i)
    for (int k = 0; k < 4; ++k) batch.result[i][k] = batch.from[k][i];
  batch.count = 0;
}

// Outside the two frames the angle counts several times, and the cosine of a small angle is not exact enough: the angle
// comes from the tangent.
template <class C> [[gnu::noinline]] void extrapolate_rotation(const Neighbours<C> &frames, std::int64_t d, C *row) {
  const auto length = [](const double (&q)[4]) { return std::sqrt(q[0] * q[0] + q[1] * q[1] + q[2] * q[2] + q[3] * q[3]); };
  const std::int64_t step = frames.channel_step;
  double p[4], q[4], minus[4], plus[4];
  for (int k = 0; k < 4; ++k) p[k] = frames.left[(d + k) * step], q[k] = frames.right[(d + k) * step];
  const double dot = p[0] * q[0] + p[1] * q[1] + p[2] * q[2] + p[3] * q[3];
  const double per_p = 1 / length(p), per_q = (dot < 0 ? -1 : 1) / length(q);
  for (int k = 0; k < 4; ++k) p[k] *= per_p, q[k] *= per_q, minus[k] = p[k] - q[k], plus[k] = p[k] + q[k];
  const double theta = 2 * std::atan2(length(minus), length(plus)), w = C(frames.weight);
  const double left = theta > 0 ? std::sin((1 - w) * theta) : 1, right = theta > 0 ? std::sin(w * theta) : 0;
  for (int k = 0; k < 4; ++k) plus[k] = left * p[k] + right * q[k];
  for (int k = 0; k < 4; ++k) row[d + k] = C(plus[k] / length(plus));
}

template <class C>
void slerp(const Neighbours<C> &frames, std::int64_t from, std::int64_t to, SlerpBatch<C> &batch, C *row) {
  const C w = C(frames.weight);
  const bool outside = !(w >= 0 && w <= 1); // or NaN, from infinite spans
  const C *right = w == 0 ? frames.left : frames.right; // the right frame has no weight then and may hold no rotation
  for (std::int64_t d = from; d + 4 <= to; d += 4) {
    if (outside) {
      extrapolate_rotation(frames, d, row);
      continue;
    }
    const int n = batch.count;
    for (int k = 0; k < 4; ++k) {
      batch.from[k][n] = frames.left[(d + k) * frames.channel_step];
      batch.to[k][n] = right[(d + k) * frames.channel_step];
    }
    batch.weight[n] = w, batch.result[n] = row + d;
    if (++batch.count == kRotations) interpolate_batch(batch);
  }
}

// ---- cubic (monotone pchip) ----

// The slope at a node between spans h0, h1 with secants m0, m1 (Fritsch and Butland 1984): the weighted harmonic mean,
// with one division; 0 where the curve turns. `Some` is a number or a vector.
template <class C, class Some> [[gnu::always_inline]] inline Some inner_slope(C h0, C h1, Some m0, Some m1) {
  const C w0 = 2 * h1 + h0, w1 = h1 + 2 * h0;
  const Some product = m0 * m1, slope = (w0 + w1) * product / (w0 * m1 + w1 * m0);
  return product <= C(0) ? Some{} : slope; // NaN stays NaN
}
// At an end: the three-point formula, limited so that the curve does not overshoot.
template <class C> inline C end_slope(C h0, C h1, C m0, C m1) {
  const C d = ((2 * h0 + h1) * m0 - h0 * m1) / (h0 + h1);
  if (d * m0 <= 0) return C(0);
  return m0 * m1 <= 0 && std::fabs(d) > 3 * std::fabs(m0) ? 3 * m0 : d;
}

template <class C> void cubic(const Neighbours<C> &frames, std::int64_t from, std::int64_t to, C *row) {
  const C w = C(frames.weight), v = 1 - w;
  if (w == 0 || frames.left == frames.right) return linear(frames, from, to, row);
  const C h0 = frames.span_before, h = frames.span, h1 = frames.span_after, per_h = 1 / h;
  const C *x = frames.before, *l = frames.left, *r = frames.right, *y = frames.after;
  const std::int64_t step = frames.channel_step;
  // The Hermite basis at w, once for all channels.
  const C at_a = v * v * (1 + 2 * w), at_b = w * w * (3 - 2 * w), at_left = h * w * v * v, at_right = -h * w * w * v;
  if (x && y) {
    const C per_h0 = 1 / h0, per_h1 = 1 / h1;
    const auto value = [=](auto x, auto a, auto b, auto y) __attribute__((always_inline)) {
      const auto m0 = (a - x) * per_h0, m = (b - a) * per_h, m1 = (y - b) * per_h1;
      return a * at_a + b * at_b + inner_slope(h0, h, m0, m) * at_left + inner_slope(h, h1, m, m1) * at_right;
    };
    for_channels<C>(
        step == 1, from, to,
        [&](std::int64_t d, auto type) __attribute__((always_inline)) {
          using Vec = decltype(type);
          store_narrow(value(load<Vec>(x + d), load<Vec>(l + d), load<Vec>(r + d), load<Vec>(y + d)), row + d);
        },
        [&](std::int64_t d) { row[d] = value(x[d * step], l[d * step], r[d * step], y[d * step]); });
    return;
  }
  for (std::int64_t d = from; d < to; ++d) { // with two stamps in all: a straight line
    const C a = l[d * step], b = r[d * step], m = (b - a) * per_h;
    C left = m, right = m;
    if (x) {
      const C m0 = (a - x[d * step]) / h0;
      left = inner_slope(h0, h, m0, m), right = end_slope(h, h0, m, m0);
    } else if (y) {
      const C m1 = (y[d * step] - b) / h1;
      left = end_slope(h, h1, m, m1), right = inner_slope(h, h1, m, m1);
    }
    row[d] = a * at_a + b * at_b + left * at_left + right * at_right;
  }
}

template <class C>
void interpolate_groups(const ResampleJob &job, const Neighbours<C> &frames, SlerpBatch<C> &batch, C *row) {
  const std::int64_t step = frames.channel_step;
  for (const ChannelGroup &group : job.groups) {
    switch (group.kind) {
    case Kind::previous: copy_channels(frames.weight >= 1 ? frames.right : frames.left, step, group.start, group.stop, row); break;
    case Kind::nearest: copy_channels(frames.weight > 0.5 ? frames.right : frames.left, step, group.start, group.stop, row); break;
    case Kind::linear: linear(frames, group.start, group.stop, row); break;
    case Kind::cubic: cubic(frames, group.start, group.stop, row); break;
    case Kind::slerp: slerp(frames, group.start, group.stop, batch, row); break;
    case Kind::angle: angle(frames, group.start, group.stop, row); break;
    }
  }
}

} // namespace

void interpolate(const ResampleJob &job, const Neighbours<float> &frames, SlerpBatch<float> &batch, float *row) {
  interpolate_groups(job, frames, batch, row);
}
void interpolate(const ResampleJob &job, const Neighbours<double> &frames, SlerpBatch<double> &batch, double *row) {
  interpolate_groups(job, frames, batch, row);
}
void finish(SlerpBatch<float> &batch) { interpolate_batch(batch); }
void finish(SlerpBatch<double> &batch) { interpolate_batch(batch); }

} // namespace RIDGELINE_ISA
} // namespace ridgeline
