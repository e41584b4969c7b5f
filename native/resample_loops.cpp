// Compiled once per instruction set (CMakeLists.txt), each time into a namespace of its own.
#include <algorithm>
#include <cstring>
#include <limits>
#include <type_traits>

#include "resample_kinds.hpp"

namespace ridgeline {
namespace RIDGELINE_ISA {
namespace {

constexpr int kAhead = 640, kLinesAhead = 5; // bytes and cache lines; more or fewer were slower
constexpr int kMany = 32, kSome = 16; // channels that are mixed without a loop

template <class V, class O, class C>
inline void mix(const V *__restrict a, const V *__restrict b, C w, O *__restrict out, std::int64_t channels) {
  const auto one = [&](std::int64_t d) {
    const C from = wide(a[d]);
    narrow(from + (wide(b[d]) - from) * w, out[d]);
  };
  std::int64_t d = 0;
#if defined(__aarch64__)
  if constexpr (std::is_same_v<V, F16>)
    for (; d + 8 <= channels; d += 8) {
      const Eight from = wide_8(a + d), to = wide_8(b + d);
      narrow_8({vfmaq_n_f32(from.low, vsubq_f32(to.low, from.low), w),
                vfmaq_n_f32(from.high, vsubq_f32(to.high, from.high), w)}, out + d);
    }
#endif
  for (; d + kMany <= channels; d += kMany)
    for (int k = 0; k < kMany; ++k) one(d + k);
  if (__builtin_expect(d == channels, 1)) return;
  for (; d + kSome <= channels; d += kSome)
    for (int k = 0; k < kSome; ++k) one(d + k);
  for (; d < channels; ++d) one(d);
}

// The everyday case, all channels linear, ends held, stamps and channels contiguous: a merge without side paths. What a
// target needs besides its mixing is what such a call takes longer than moving its bytes, so it is little, and all of it
// is kept in registers.
template <class V, class T> class Merge {
public:
  using C = typename ComputeOf<V>::type;

  explicit Merge(const Track<V, T> &of)
      : left(of.values), right(left), track(of), step(of.value_step), first(of.times), end(first + of.n),
        four_from_end(of.n < 4 ? first : end - 4), next(first + 1), before(first[0]) {}

  // Where the target falls: `left`, `right` and how much of `right`; no `left` if it is no number.
  [[gnu::always_inline]] inline C find(T t) {
    if (__builtin_expect(!(t >= before), 0)) return find_back(t);
    before = t;
    // Four stamps at a time, counted rather than branched on: the next target is one to four stamps on, and which of
    // them no predictor knows.
    if (__builtin_expect(next <= four_from_end, 1)) {
      const std::int64_t passed = four(next, t);
      next += passed, left += passed * step;
      if (__builtin_expect(passed == 4, 0)) {
        next = walk_on(track, next, t);
        left = track.values + (next - first - 1) * step;
      }
    } else {
      for (; next < end && *next <= t; ++next) left += step;
    }
    return share(t);
  }

  const V *left, *right;

private:
  // The rare cases are functions that do not know the merge: what an address was taken of is kept in memory.
  [[gnu::noinline]] static const T *walk_on(const Track<V, T> &track, const T *next, T t) {
    const T *const end = track.times + track.n;
    std::int64_t passed = 4;
    for (int near = 0; near < 32 && passed == 4 && end - next >= 4; ++near) next += passed = four(next, t);
    if (passed == 4 && end - next >= 4) // far ahead
      return track.times + track.bisect(t, next - track.times - 1, track.n) + 1;
    while (next < end && *next <= t) ++next;
    return next;
  }
  [[gnu::noinline]] static std::int64_t place_of(const Track<V, T> &track, T t) { return track.bisect(t, -1, track.n); }

  [[gnu::always_inline]] static inline std::int64_t four(const T *next, T t) {
    std::int64_t passed = next[0] <= t; // as wide as what it is added to
    passed += next[1] <= t, passed += next[2] <= t, passed += next[3] <= t;
    return passed;
  }

  inline C find_back(T t) { // it went back, or lies before the first stamp, or is no number
    if (!(t == t)) {
      left = nullptr;
      before = t; // nothing goes on from here, infinity neither: the next one is looked for anew
      return 0;
    }
    const std::int64_t place = place_of(track, t), here = place < 0 ? track.last_of(0) : place;
    next = first + here + 1, left = track.values + here * step;
    before = place < 0 ? first[0] : t;
    return place < 0 ? (right = left, C(0)) : share(t);
  }

  [[gnu::always_inline]] inline C share(T t) {
    for (int line = 0; line < kLinesAhead; ++line) // where the targets to come will read
      __builtin_prefetch(reinterpret_cast<const char *>(left) + kAhead + 64 * line);
    right = left + step;
    if (__builtin_expect(next + 1 < end, 1)) {
      if (__builtin_expect(next[1] == next[0], 0)) // of equal stamps the last counts, here as on the left
        right = track.values + track.last_of(next - first) * step;
    } else if (next == end) {
      return 0;
    }
    // Divided before it is narrowed, as in find(): a span of 1e-50 or 1e300 is nothing or infinite in float.
    return C(double(t - next[-1]) / double(next[0] - next[-1]));
  }

  const Track<V, T> &track;
  const std::int64_t step;
  const T *const first, *const end, *const four_from_end;
  const T *next; // the first stamp after the target before
  T before;      // that target; no smaller one goes on from here
};

// A target is searched for before the one ahead of it is mixed: its division is under way meanwhile.
template <class V, class O, class T>
void plain_row(const Track<V, T> &track, const T *targets, std::int64_t count, O *out, std::int64_t out_step,
               std::int64_t channels, std::uint8_t *mask) {
  using C = typename ComputeOf<V>::type;
  if (mask) std::memset(mask, 1, count);
  if (count == 0) return;
  Merge<V, T> merge(track);
  C next_share = merge.find(targets[0]);
  for (std::int64_t k = 0; k < count; ++k, out += out_step) {
    const V *left = merge.left, *right = merge.right;
    const C w = next_share;
    if (k + 1 < count) next_share = merge.find(targets[k + 1]);
    if (__builtin_expect(w != 0, 1)) { // or no number, which spans that are infinite make
      mix(left, right, w, out, channels);
    } else if (left) {
      for (std::int64_t d = 0; d < channels; ++d) narrow(wide(left[d]), out[d]);
    } else {
      for (std::int64_t d = 0; d < channels; ++d) narrow(std::numeric_limits<C>::quiet_NaN(), out[d]);
      if (mask) mask[k] = 0;
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
  using Count = std::conditional_t<sizeof(T) == 4, std::int32_t, std::int64_t>; // as wide as a stamp: nothing to narrow
  const std::int64_t step = job.time_stride[1];
  if (job.time_stride[0] == 0 && !job.offsets && !job.lengths) to = std::min(to, from + 1); // one clock for all
  for (std::int64_t b = from; b < to; ++b) {
    const std::int64_t first = job.offsets ? job.offsets[b] : 0;
    std::int64_t n = job.offsets ? job.offsets[b + 1] - first : job.stamps;
    if (job.lengths) n = std::min(n, job.lengths[b]);
    const T *row = times + b * job.time_stride[0] + first * step;
    Count bad = n > 0 && !(row[0] == row[0]);
    std::int64_t i = 1;
    // No early way out, and floats eight at a time: the loops are vectorised.
    if (std::is_floating_point_v<T> && step == 1)
      for (; i + 8 <= n; i += 8)
        for (int k = 0; k < 8; ++k) bad |= !(row[i + k] >= row[i + k - 1]);
    if (step == 1)
      for (; i < n; ++i) bad |= !(row[i] >= row[i - 1]);
    else
      for (; i < n; ++i) bad |= !(row[i * step] >= row[(i - 1) * step]);
    if (bad) return b;
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
