// Compiled once per instruction set (CMakeLists.txt), each time into a namespace of its own.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

#include "resample.hpp"

namespace ridgeline {
namespace RIDGELINE_ISA {
namespace {

struct F16 {
  std::uint16_t bits;
};
struct BF16 {
  std::uint16_t bits;
};

inline float from_bits(std::uint32_t u) {
  float f;
  std::memcpy(&f, &u, 4);
  return f;
}
inline std::uint32_t to_bits(float f) {
  std::uint32_t u;
  std::memcpy(&u, &f, 4);
  return u;
}

inline double wide(double v) { return v; }
inline float wide(float v) { return v; }
inline float wide(BF16 v) { return from_bits(std::uint32_t(v.bits) << 16); }
inline float wide(F16 v) {
  // Exponent and mantissa move into place, then one multiplication mends the bias, subnormals included.
  const std::uint32_t sign = std::uint32_t(v.bits & 0x8000) << 16, rest = v.bits & 0x7fff;
  if (rest >= 0x7c00) return from_bits(sign | 0x7f800000 | (rest & 0x3ff) << 13);
  return from_bits(sign | to_bits(from_bits(rest << 13) * 0x1p112f));
}

inline void narrow(double v, double &to) { to = v; }
inline void narrow(float v, float &to) { to = v; }
inline void narrow(float v, BF16 &to) {
  const std::uint32_t u = to_bits(v);
  to.bits = (u & 0x7fffffff) > 0x7f800000 ? 0x7fc0 : (u + 0x7fff + (u >> 16 & 1)) >> 16;
}
inline void narrow(float v, F16 &to) {
  const std::uint32_t u = to_bits(v), sign = u >> 16 & 0x8000;
  const float magnitude = std::fabs(v);
  if (!(magnitude == magnitude)) to.bits = 0x7e00;
  else if (magnitude >= 65520.0f) to.bits = sign | 0x7c00;
  else if (magnitude < 0x1p-14f) // subnormal: the addition rounds to the nearest even multiple of 2^-24
    to.bits = sign | (to_bits(magnitude + 0x1p-1f) - to_bits(0x1p-1f));
  else {
    const std::uint32_t m = to_bits(magnitude);
    to.bits = sign | ((m + 0xfff + (m >> 13 & 1) - (112u << 23)) >> 13);
  }
}

template <class V> struct ComputeOf { using type = float; };
template <> struct ComputeOf<double> { using type = double; };

#if defined(__AVX512F__)
constexpr int kRegister = 64; // bytes
#elif defined(__AVX__)
constexpr int kRegister = 32;
#else
constexpr int kRegister = 16;
#endif
constexpr int kAhead = 512, kLinesAhead = 4; // bytes and cache lines; more or fewer were slower

// Where a target falls: between stamps i and j with weight w, or nowhere.
template <class C> struct Spot {
  std::int64_t i, j;
  C w;
  bool valid;
};

// One trajectory: its stamps and values, whatever their strides.
template <class V, class T> struct Track {
  using C = typename ComputeOf<V>::type;
  const V *values;
  const T *times;
  std::int64_t n, value_step, channel_step, time_step;

  T time(std::int64_t i) const { return times[i * time_step]; }
  C value(std::int64_t i, std::int64_t d) const { return wide(values[i * value_step + d * channel_step]); }

  // Of stamps that are equal the last one counts.
  std::int64_t last_of(std::int64_t i) const {
    while (i + 1 < n && time(i + 1) == time(i)) ++i;
    return i;
  }
  std::int64_t before(std::int64_t i) const { // the last index with a smaller stamp, or -1
    const T now = time(i);
    while (i >= 0 && time(i) == now) --i;
    return i;
  }
  // The last index whose stamp is not after t, or -1; `hint` is where the last target was found.
  std::int64_t locate(T t, std::int64_t hint) const {
    if (hint >= 0 && time(hint) <= t) {
      std::int64_t i = hint;
      for (int near = 0; near < 16; ++near) {
        if (i + 1 >= n || time(i + 1) > t) return i;
        ++i;
      }
      return bisect(t, i, n);
    }
    return bisect(t, -1, hint >= 0 ? hint : n);
  }
  std::int64_t bisect(T t, std::int64_t low, std::int64_t high) const { // time(low) <= t < time(high)
    while (high - low > 1) {
      const std::int64_t middle = low + (high - low) / 2;
      if (time(middle) <= t) low = middle;
      else high = middle;
    }
    return low;
  }
  double span(std::int64_t i, std::int64_t j) const { return double(time(j) - time(i)); }
};

template <class T> inline bool too_far(const ResampleJob &job, T span);
template <> inline bool too_far(const ResampleJob &job, std::int64_t span) { return span > job.gap_int; }
template <> inline bool too_far(const ResampleJob &job, double span) { return span > job.gap_float; }
template <> inline bool too_far(const ResampleJob &job, float span) { return span > float(job.gap_float); }

template <class V, class T>
Spot<typename ComputeOf<V>::type> find(const ResampleJob &job, const Track<V, T> &track, T t, std::int64_t &hint) {
  using C = typename ComputeOf<V>::type;
  if (!(t == t) || track.n == 0) return {0, 0, 0, false};
  std::int64_t i = track.locate(t, hint);
  hint = i;
  if (i < 0 || (i == track.n - 1 && t > track.time(i))) { // outside
    if (job.outside == Outside::nan) return {0, 0, 0, false};
    const std::int64_t end = i < 0 ? track.last_of(0) : i;
    std::int64_t left = end, right = end;
    if (job.outside == Outside::extrapolate) {
      if (i < 0) right = end + 1 < track.n ? track.last_of(end + 1) : end;
      else if ((left = track.before(end)) < 0) left = end;
    }
    if (left == right) return {end, end, 0, true};
    return {left, right, C(double(t - track.time(left)) / track.span(left, right)), true};
  }
  if (track.time(i) == t || i + 1 >= track.n) return {i, i, 0, true};
  const std::int64_t j = track.last_of(i + 1);
  const T span = track.time(j) - track.time(i);
  if (job.has_gap && too_far(job, span)) return {0, 0, 0, false};
  return {i, j, C(double(t - track.time(i)) / double(span)), true};
}

// ---- one kind each, over channels [from, to) ----

template <class V, class T, class Put>
void linear(const Track<V, T> &track, const Spot<typename Track<V, T>::C> &at, std::int64_t from, std::int64_t to, Put put) {
  using C = typename Track<V, T>::C;
  const V *a = track.values + at.i * track.value_step, *b = track.values + at.j * track.value_step;
  const C w = at.w;
  if (w == 0) {
    for (std::int64_t d = from; d < to; ++d) put(d, wide(a[d * track.channel_step]));
  } else if (track.channel_step == 1) {
    for (std::int64_t d = from; d < to; ++d) {
      const C left = wide(a[d]);
      put(d, left + (wide(b[d]) - left) * w);
    }
  } else {
    for (std::int64_t d = from; d < to; ++d) {
      const C left = wide(a[d * track.channel_step]);
      put(d, left + (wide(b[d * track.channel_step]) - left) * w);
    }
  }
}

template <class C> C wrapped(C x) { return C(std::remainder(double(x), 6.283185307179586476925)); }

template <class V, class T, class Put>
void angle(const Track<V, T> &track, const Spot<typename Track<V, T>::C> &at, std::int64_t from, std::int64_t to, Put put) {
  using C = typename Track<V, T>::C;
  for (std::int64_t d = from; d < to; ++d) {
    const C a = track.value(at.i, d);
    put(d, at.w == 0 ? wrapped(a) : wrapped(a + wrapped(track.value(at.j, d) - a) * at.w));
  }
}

template <class V, class T, class Put>
void slerp(const Track<V, T> &track, const Spot<typename Track<V, T>::C> &at, std::int64_t from, std::int64_t to, Put put) {
  using C = typename Track<V, T>::C;
  const auto unit = [](C *q) {
    const C size = std::sqrt(q[0] * q[0] + q[1] * q[1] + q[2] * q[2] + q[3] * q[3]);
    for (int k = 0; k < 4; ++k) q[k] /= size; // no rotation at all (0, 0, 0, 0) becomes NaN, not an invented one
  };
  for (std::int64_t d = from; d + 4 <= to; d += 4) {
    C p[4], q[4];
    for (int k = 0; k < 4; ++k) p[k] = track.value(at.i, d + k);
    unit(p);
    if (at.w != 0) {
      for (int k = 0; k < 4; ++k) q[k] = track.value(at.j, d + k);
      unit(q);
      C dot = p[0] * q[0] + p[1] * q[1] + p[2] * q[2] + p[3] * q[3];
      const C side = dot < 0 ? C(-1) : C(1); // q and -q are one rotation: take the short way
      dot *= side;
      C left = 1 - at.w, right = at.w * side;
      if (!(dot > C(0.9995))) {
        const C theta = std::acos(dot), sine = std::sin(theta);
        left = std::sin((1 - at.w) * theta) / sine;
        right = std::sin(at.w * theta) / sine * side;
      }
      for (int k = 0; k < 4; ++k) p[k] = left * p[k] + right * q[k];
      unit(p);
    }
    for (int k = 0; k < 4; ++k) put(d + k, p[k]);
  }
}

// The slope of monotone pchip at a node between spans h0, h1 with secants m0, m1 (Fritsch and Butland 1984): their
// weighted harmonic mean, written with one division; 0 where the curve turns.
template <class C> inline C inner_slope(C h0, C h1, C m0, C m1) {
  const C w0 = 2 * h1 + h0, w1 = h1 + 2 * h0, product = m0 * m1;
  const C slope = (w0 + w1) * product / (w0 * m1 + w1 * m0);
  return product <= 0 ? C(0) : slope; // NaN stays NaN
}
// At an end: the three-point formula, kept from overshooting.
template <class C> inline C end_slope(C h0, C h1, C m0, C m1) {
  const C d = ((2 * h0 + h1) * m0 - h0 * m1) / (h0 + h1);
  if (d * m0 <= 0) return C(0);
  return m0 * m1 <= 0 && std::fabs(d) > 3 * std::fabs(m0) ? 3 * m0 : d;
}

template <class V, class T, class Put>
void cubic(const Track<V, T> &track, const Spot<typename Track<V, T>::C> &at, std::int64_t from, std::int64_t to, Put put) {
  using C = typename Track<V, T>::C;
  if (at.w == 0 || at.i == at.j) return linear(track, at, from, to, put);
  const std::int64_t before = track.before(at.i), after = at.j + 1 < track.n ? track.last_of(at.j + 1) : -1;
  const C h = C(track.span(at.i, at.j)), w = at.w, v = 1 - w, per_h = 1 / h;
  // The Hermite basis at w, once for all channels.
  const C at_a = v * v * (1 + 2 * w), at_b = w * w * (3 - 2 * w), at_left = h * w * v * v, at_right = -h * w * w * v;
  if (before >= 0 && after >= 0) {
    const C h0 = C(track.span(before, at.i)), h1 = C(track.span(at.j, after)), per_h0 = 1 / h0, per_h1 = 1 / h1;
    for (std::int64_t d = from; d < to; ++d) {
      const C a = track.value(at.i, d), b = track.value(at.j, d), m = (b - a) * per_h;
      const C m0 = (a - track.value(before, d)) * per_h0, m1 = (track.value(after, d) - b) * per_h1;
      put(d, a * at_a + b * at_b + inner_slope(h0, h, m0, m) * at_left + inner_slope(h, h1, m, m1) * at_right);
    }
    return;
  }
  const std::int64_t other = before >= 0 ? before : after; // -1: two stamps only, a straight line
  const C ho = other < 0 ? C(1) : C(before >= 0 ? track.span(before, at.i) : track.span(at.j, after));
  for (std::int64_t d = from; d < to; ++d) {
    const C a = track.value(at.i, d), b = track.value(at.j, d), m = (b - a) * per_h;
    C left = m, right = m;
    if (before >= 0) {
      const C m0 = (a - track.value(before, d)) / ho;
      left = inner_slope(ho, h, m0, m), right = end_slope(h, ho, m, m0);
    } else if (after >= 0) {
      const C m1 = (track.value(after, d) - b) / ho;
      left = end_slope(h, ho, m, m1), right = inner_slope(h, ho, m, m1);
    }
    put(d, a * at_a + b * at_b + left * at_left + right * at_right);
  }
}

template <class V, class T, class Put>
void emit(const ResampleJob &job, const Track<V, T> &track, Spot<typename Track<V, T>::C> at, Put put) {
  using C = typename Track<V, T>::C;
  for (const Channels &group : job.groups) {
    Spot<C> held = at;
    switch (group.kind) {
    case Kind::previous:
      held = {at.w >= 1 ? at.j : at.i, 0, 0, true};
      linear(track, held, group.start, group.stop, put);
      break;
    case Kind::nearest:
      held = {at.w > C(0.5) ? at.j : at.i, 0, 0, true};
      linear(track, held, group.start, group.stop, put);
      break;
    case Kind::linear: linear(track, at, group.start, group.stop, put); break;
    case Kind::cubic: cubic(track, at, group.start, group.stop, put); break;
    case Kind::slerp: slerp(track, at, group.start, group.stop, put); break;
    case Kind::angle: angle(track, at, group.start, group.stop, put); break;
    }
  }
}

// Channels of one target, from `a` to `b` by `w`: several registers at a time where nothing has to be converted.
// Written out, because the compiler's own loop checks its bounds for longer than a row of 32 channels takes.
template <class V, class O, class C>
inline void mix(const V *__restrict a, const V *__restrict b, C w, O *__restrict out, std::int64_t channels) {
  std::int64_t d = 0;
  if constexpr (std::is_same_v<V, C> && std::is_same_v<O, C>) {
    typedef C Lane __attribute__((vector_size(kRegister)));
    constexpr std::int64_t kLane = sizeof(Lane) / sizeof(C);
    const auto lane = [&](std::int64_t at) {
      Lane from, to;
      std::memcpy(&from, a + at, sizeof from);
      std::memcpy(&to, b + at, sizeof to);
      to = from + (to - from) * w;
      std::memcpy(out + at, &to, sizeof to);
    };
    for (; d + 4 * kLane <= channels; d += 4 * kLane) lane(d), lane(d + kLane), lane(d + 2 * kLane), lane(d + 3 * kLane);
    for (; d + kLane <= channels; d += kLane) lane(d);
  }
  for (; d < channels; ++d) {
    const C from = wide(a[d]);
    narrow(from + (wide(b[d]) - from) * w, out[d]);
  }
}

// The everyday case, all channels linear, ends held, stamps and channels contiguous: a merge without side paths, the
// channels of each target at once, so that the search for the next one is already under way meanwhile.
template <class V, class O, class T>
void plain_row(const Track<V, T> &track, const T *targets, std::int64_t count, O *out, std::int64_t out_step,
               std::int64_t channels, std::uint8_t *mask) {
  using C = typename ComputeOf<V>::type;
  const T *const first = track.times, *const end = first + track.n;
  const T *next = first + 1; // the first stamp after the target
  if (mask) std::memset(mask, 1, count);
  for (std::int64_t k = 0; k < count; ++k, out += out_step) {
    const T t = targets[k];
    bool before = false;
    if (!(next[-1] <= t)) { // it went back, or lies before the first stamp, or is no number
      if (!(t == t)) {
        for (std::int64_t d = 0; d < channels; ++d) narrow(std::numeric_limits<C>::quiet_NaN(), out[d]);
        if (mask) mask[k] = 0;
        continue;
      }
      const std::int64_t left = track.bisect(t, -1, next - first - 1);
      before = left < 0;
      next = first + (before ? track.last_of(0) : left) + 1;
    } else {
      // Four stamps at a time, counted rather than branched on: the next target is one to four stamps on, and
      // which of them no predictor knows.
      int passed = 4;
      const auto four = [&] {
        passed = (next[0] <= t) + (next[1] <= t) + (next[2] <= t) + (next[3] <= t);
        next += passed;
      };
      if (next + 8 <= end) four(); // by far the most often; once more is what the loop is for
      if (passed == 4)
        for (int near = 0; near < 32 && passed == 4 && next + 4 <= end; ++near) four();
      if (passed == 4 && next + 4 <= end) next = first + track.bisect(t, next - first - 1, track.n) + 1; // far ahead
      if (next + 4 > end)
        while (next < end && *next <= t) ++next;
    }
    const V *a = track.values + (next - first - 1) * track.value_step;
    for (int line = 0; line < kLinesAhead; ++line) // where the targets to come will read
      __builtin_prefetch(reinterpret_cast<const char *>(a) + kAhead + 64 * line);
    // Divided before it is narrowed, as in find(): a span of 1e-50 or 1e300 is nothing or infinite in float.
    const C w = before || next == end ? C(0) : C(double(t - next[-1]) / double(next[0] - next[-1]));
    if (w == 0) {
      for (std::int64_t d = 0; d < channels; ++d) narrow(wide(a[d]), out[d]);
    } else { // of equal stamps the last counts, on the right as on the left
      mix(a, track.values + track.last_of(next - first) * track.value_step, w, out, channels);
    }
  }
}

template <class V, class O, class T> void rows(const ResampleJob &job, std::int64_t from, std::int64_t to) {
  using C = typename ComputeOf<V>::type;
  const V *values = static_cast<const V *>(job.values);
  const T *times = static_cast<const T *>(job.times), *targets = static_cast<const T *>(job.at);
  const C *scale = static_cast<const C *>(job.scale), *shift = static_cast<const C *>(job.shift);
  const bool plain = job.groups.size() == 1 && job.groups[0].kind == Kind::linear && job.outside == Outside::clamp &&
                     !job.has_gap && !scale && job.value_stride[2] == 1 && job.out_stride[2] == 1 &&
                     job.time_stride[1] == 1 && job.at_stride[1] == 1;
  for (std::int64_t b = from; b < to; ++b) {
    const std::int64_t first = job.offsets ? job.offsets[b] : 0;
    std::int64_t n = job.offsets ? job.offsets[b + 1] - first : job.stamps;
    if (job.lengths) n = std::min(n, job.lengths[b]);
    Track<V, T> track{values + b * job.value_stride[0] + first * job.value_stride[1],
                      times + b * job.time_stride[0] + first * job.time_stride[1],
                      n, job.value_stride[1], job.value_stride[2], job.time_stride[1]};
    const std::int64_t wanted = job.at_lengths ? std::min(job.targets, job.at_lengths[b]) : job.targets;
    const T *row = targets + b * job.at_stride[0];
    if (plain && n > 0 && wanted == job.targets) {
      plain_row(track, row, wanted, static_cast<O *>(job.out) + b * job.out_stride[0], job.out_stride[1], job.channels,
                job.mask ? job.mask + b * job.targets : nullptr);
      continue;
    }
    std::int64_t hint = -1;
    for (std::int64_t k = 0; k < job.targets; ++k) {
      Spot<C> at{0, 0, 0, false};
      if (k < wanted) at = find(job, track, row[k * job.at_stride[1]], hint);
      O *out = static_cast<O *>(job.out) + b * job.out_stride[0] + k * job.out_stride[1];
      const std::int64_t step = job.out_stride[2];
      if (job.mask) job.mask[b * job.targets + k] = at.valid;
      if (!at.valid) {
        for (std::int64_t d = 0; d < job.channels; ++d) narrow(std::numeric_limits<C>::quiet_NaN(), out[d * step]);
      } else if (scale) {
        emit(job, track, at, [=](std::int64_t d, C v) { narrow(v * scale[d] + shift[d], out[d * step]); });
      } else if (step == 1) {
        emit(job, track, at, [=](std::int64_t d, C v) { narrow(v, out[d]); });
      } else {
        emit(job, track, at, [=](std::int64_t d, C v) { narrow(v, out[d * step]); });
      }
    }
  }
}

template <class V, class O> void by_time(const ResampleJob &job, std::int64_t from, std::int64_t to) {
  switch (job.time_type) {
  case TimeType::f32: return rows<V, O, float>(job, from, to);
  case TimeType::f64: return rows<V, O, double>(job, from, to);
  case TimeType::i64: return rows<V, O, std::int64_t>(job, from, to);
  }
}

template <class T> std::int64_t disorder(const ResampleJob &job, std::int64_t from, std::int64_t to) {
  const T *times = static_cast<const T *>(job.times);
  const std::int64_t step = job.time_stride[1];
  if (job.time_stride[0] == 0 && !job.offsets && !job.lengths) to = std::min(to, from + 1); // one clock for all
  for (std::int64_t b = from; b < to; ++b) {
    const std::int64_t first = job.offsets ? job.offsets[b] : 0;
    std::int64_t n = job.offsets ? job.offsets[b + 1] - first : job.stamps;
    if (job.lengths) n = std::min(n, job.lengths[b]);
    const T *row = times + b * job.time_stride[0] + first * step;
    bool ok = n == 0 || row[0] == row[0];
    if (step == 1)
      for (std::int64_t i = 1; i < n; ++i) ok &= row[i] >= row[i - 1]; // no early way out: the loop is vectorised
    else
      for (std::int64_t i = 1; i < n; ++i) ok &= row[i * step] >= row[(i - 1) * step];
    if (!ok) return b;
  }
  return -1;
}

void all_rows(const ResampleJob &job, std::int64_t from, std::int64_t to) {
  switch (job.value_type) {
  case ValueType::f16: return job.out_is_wide ? by_time<F16, float>(job, from, to) : by_time<F16, F16>(job, from, to);
  case ValueType::bf16: return job.out_is_wide ? by_time<BF16, float>(job, from, to) : by_time<BF16, BF16>(job, from, to);
  case ValueType::f32: return by_time<float, float>(job, from, to);
  case ValueType::f64: return by_time<double, double>(job, from, to);
  }
}

std::int64_t all_disorder(const ResampleJob &job, std::int64_t from, std::int64_t to) {
  switch (job.time_type) {
  case TimeType::f32: return disorder<float>(job, from, to);
  case TimeType::f64: return disorder<double>(job, from, to);
  default: return disorder<std::int64_t>(job, from, to);
  }
}

} // namespace

extern const ResampleLoops resample_loops;
const ResampleLoops resample_loops{all_rows, all_disorder};

} // namespace RIDGELINE_ISA
} // namespace ridgeline
