// Compiled once per instruction set (CMakeLists.txt), each time into a namespace of its own.
#include <algorithm>
#include <cstring>
#include <limits>
#include <type_traits>

#include "resample_kinds.hpp"

namespace ridgeline {
namespace RIDGELINE_ISA {
namespace {

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

// How many channels a frame has, and how far frames lie apart: known while compiling for the usual ones, side by side.
// Every instruction less lets the processor see farther ahead, and more of its waits for memory run at once.
template <std::int64_t Channels> struct Fixed {
  static constexpr std::int64_t channels = Channels, step = Channels, out_step = Channels;
};
struct Any {
  std::int64_t channels, step, out_step;
  bool side_by_side() const { return step == channels && out_step == channels; }
};

// Fetches frames before the targets reach them. It walks at the pace the targets have on average and is set right now and
// then: what to fetch does not wait for what the merge finds.
class Ahead {
public:
  static constexpr std::int64_t kSteps = 32; // targets after which it is set right

  Ahead(std::int64_t bytes, std::int64_t targets)
      : pace(bytes / targets), start(std::max<std::int64_t>(1024, 2 * pace)), many(pace > kLine) {}

  void set(const void *frame) { at = static_cast<const char *>(frame) + start; }
  [[gnu::always_inline]] inline void fetch() {
#if defined(__aarch64__) // a Xeon fetches as well by itself, and better: asking cost it 4 %
    __builtin_prefetch(at);
    if (many)
      for (int line = 1; line < kLines; ++line) __builtin_prefetch(at + kLine * line);
    at += pace;
#endif
  }

private:
  static constexpr std::int64_t kLine = 64, kLines = 4; // bytes; neither more lines nor another start was faster
  const std::int64_t pace, start;                       // bytes per target; bytes ahead
  const bool many;
  const char *at = nullptr;
};

// Whether every stamp and the one before it are as `right(now, before)` says, and all are numbers. Contiguous ones without
// an early way out, and floats eight at a time: the loops are vectorised.
template <class T, class Right> inline bool all_stamps(const T *stamps, std::int64_t n, std::int64_t step, Right right) {
  using Count = std::conditional_t<sizeof(T) == 4, std::int32_t, std::int64_t>; // as wide as a stamp: nothing to narrow
  Count bad = n > 0 && !(stamps[0] == stamps[0]);
  std::int64_t i = 1;
  if (std::is_floating_point_v<T> && step == 1)
    for (; i + 8 <= n; i += 8)
      for (int k = 0; k < 8; ++k) bad |= !right(stamps[i + k], stamps[i + k - 1]);
  if (step == 1)
    for (; i < n; ++i) bad |= !right(stamps[i], stamps[i - 1]);
  else
    for (; i < n; ++i) bad |= !right(stamps[i * step], stamps[(i - 1) * step]);
  return !bad;
}
template <class T> inline bool in_order(const T *stamps, std::int64_t n, std::int64_t step) {
  return all_stamps(stamps, n, step, [](T now, T before) { return now >= before; });
}
template <class T> inline bool all_differ(const T *stamps, std::int64_t n) { // and are in order
  return all_stamps(stamps, n, 1, [](T now, T before) { return now > before; });
}

inline bool one_clock(const ResampleJob &job) { return job.time_stride[0] == 0 && !job.offsets && !job.lengths; }

// Trajectories of one length each with as many targets, one behind the other, `*_stride` apart.
template <class V, class O, class T> struct Regular {
  const V *values;
  const T *times, *targets;
  O *out;
  std::int64_t n, wanted, value_stride, time_stride, target_stride, out_stride;
};

// The everyday case, all channels linear, ends held, stamps and channels contiguous: a merge without side paths. What a
// target needs besides its mixing is what such a call takes longer than moving its bytes, so it is little, and all of it
// is kept in registers. `Differ`: no two stamps are known to be equal.
template <class V, class T, class Shape, bool Differ> class Merge {
public:
  using C = typename ComputeOf<V>::type;

  Merge(const V *frames, const T *times, std::int64_t n, const Shape &as)
      : left(frames), right(frames), values(frames), shape(as), first(times), end(times + n),
        four_from_end(n < 4 ? times : end - 4), next(times + 1), before(times[0]) {}

  // Where the target falls: `left`, `right` and how much of `right`; no `left` if it is no number.
  [[gnu::always_inline]] inline C find(T t) {
    if (__builtin_expect(!(t >= before), 0)) return find_back(t);
    before = t;
    // Four stamps at a time, counted rather than branched on: the next target is one to four stamps on, and which of
    // them no predictor knows.
    if (__builtin_expect(next <= four_from_end, 1)) {
      const std::int64_t passed = four(next, t);
      next += passed, left += passed * shape.step;
      if (__builtin_expect(passed == 4, 0)) {
        next = walk_on(first, end, next, t);
        left = frame(next - 1);
      }
    } else {
      for (; next < end && *next <= t; ++next) left += shape.step;
    }
    return share(t);
  }

  const V *left, *right;

private:
  const V *frame(const T *stamp) const { return values + (stamp - first) * shape.step; }

  // The rare cases are functions that do not know the merge: what an address was taken of is kept in memory.
  static Track<V, T> track(const T *first, const T *end) { return {nullptr, first, end - first, 0, 0, 1}; }
  [[gnu::noinline]] static const T *walk_on(const T *first, const T *end, const T *next, T t) {
    std::int64_t passed = 4;
    for (int near = 0; near < 32 && passed == 4 && end - next >= 4; ++near) next += passed = four(next, t);
    if (passed == 4 && end - next >= 4) // far ahead
      return first + track(first, end).bisect(t, next - first - 1, end - first) + 1;
    while (next < end && *next <= t) ++next;
    return next;
  }
  // The stamp that t does not come before, or the last of those at the beginning.
  [[gnu::noinline]] static const T *search(const T *first, const T *end, T t) {
    const std::int64_t place = track(first, end).bisect(t, -1, end - first);
    return place < 0 ? last_of(first, end, first) : first + place;
  }
  [[gnu::noinline]] static const T *last_of(const T *first, const T *end, const T *stamp) {
    return first + track(first, end).last_of(stamp - first);
  }

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
    const T *const here = search(first, end, t);
    const bool outside = t < *first;
    next = here + 1, left = frame(here);
    before = outside ? *first : t;
    return outside ? (right = left, C(0)) : share(t);
  }

  [[gnu::always_inline]] inline C share(T t) {
    right = left + shape.step;
    if (__builtin_expect(next == end, 0)) return 0;
    if (!Differ && next + 1 < end && __builtin_expect(next[1] == next[0], 0)) // of equal ones the last counts
      right = frame(last_of(first, end, next));
    // Divided before it is narrowed, as in find(): a span of 1e-50 or 1e300 is nothing or infinite in float.
    return C(double(t - next[-1]) / double(next[0] - next[-1]));
  }

  const V *const values;
  const Shape shape;
  const T *const first, *const end, *const four_from_end;
  const T *next; // the first stamp after the target before
  T before;      // that target; no smaller one goes on from here
};

// Nothing is stored but the answer, not even a register on the stack: stores elsewhere between two trajectories cost a
// Neoverse-N1 its way of writing whole cache lines unread.
template <bool Differ, class V, class O, class T, class Shape>
[[gnu::always_inline]] inline void plain_row(const V *values, const T *times, std::int64_t n, const T *target,
                                             std::int64_t wanted, O *out, Ahead &ahead, const Shape &shape) {
  using C = typename ComputeOf<V>::type;
  const auto put = [&](const V *left, const V *right, C w) __attribute__((always_inline)) {
    if (__builtin_expect(w != 0, 1)) { // or no number, which spans that are infinite make
      mix(left, right, w, out, shape.channels);
    } else if (left) {
      for (std::int64_t d = 0; d < shape.channels; ++d) narrow(wide(left[d]), out[d]);
    } else {
      for (std::int64_t d = 0; d < shape.channels; ++d) narrow(std::numeric_limits<C>::quiet_NaN(), out[d]);
    }
    out += shape.out_step;
  };
  ahead.set(values);
  Merge<V, T, Shape, Differ> merge(values, times, n, shape);
  const T *const last = target + wanted - 1;
  // A target is searched for before the one ahead of it is mixed: its division is under way meanwhile.
  C share = merge.find(*target);
  while (target < last) {
    for (const T *const pause = last - target < Ahead::kSteps ? last : target + Ahead::kSteps; target < pause;) {
      ahead.fetch();
      const V *left = merge.left, *right = merge.right;
      const C w = share;
      share = merge.find(*++target);
      put(left, right, w);
    }
    if (merge.left) ahead.set(merge.left);
  }
  ahead.fetch();
  put(merge.left, merge.right, share);
}

// With `check` it ends before the first trajectory that is out of order; returns how many there were before it.
template <class V, class O, class T, class Shape>
[[gnu::noinline]] std::int64_t plain_rows(const Regular<V, O, T> &at, std::int64_t rows, bool check, const Shape shape) {
  Ahead ahead(at.n * shape.step * std::int64_t(sizeof(V)), at.wanted);
  bool differ = false;
  for (std::int64_t b = 0; b < rows; ++b) {
    asm volatile("" ::: "memory"); // what is the same for all is read again: kept, it would have to be kept on the stack
    const V *const values = at.values + b * at.value_stride;
    const T *const times = at.times + b * at.time_stride, *const targets = at.targets + b * at.target_stride;
    O *const out = at.out + b * at.out_stride;
    if (check && (b == 0 || at.time_stride != 0)) {
      differ = all_differ(times, at.n);
      if (!differ && !in_order(times, at.n, 1)) return b;
    }
    if (differ) plain_row<true>(values, times, at.n, targets, at.wanted, out, ahead, shape);
    else plain_row<false>(values, times, at.n, targets, at.wanted, out, ahead, shape);
  }
  return rows;
}

// The usual numbers of channels: an arm, an arm with a gripper, two arms, and the powers of two.
template <class Do> std::int64_t by_channels(const Any &any, Do run) {
  switch (any.channels) {
  case 7: return run(Fixed<7>{});
  case 8: return run(Fixed<8>{});
  case 14: return run(Fixed<14>{});
  case 16: return run(Fixed<16>{});
  case 32: return run(Fixed<32>{});
  case 64: return run(Fixed<64>{});
  default: return run(any);
  }
}

template <class V, class O, class T>
std::int64_t rows(const ResampleJob &job, std::int64_t from, std::int64_t to, bool check) {
  using C = typename ComputeOf<V>::type;
  const V *values = static_cast<const V *>(job.values);
  const T *times = static_cast<const T *>(job.times), *targets = static_cast<const T *>(job.at);
  const C *scale = static_cast<const C *>(job.scale), *shift = static_cast<const C *>(job.shift);
  const bool plain = job.groups.size() == 1 && job.groups[0].kind == Kind::linear && job.outside == Outside::clamp &&
                     !job.has_gap && !scale && job.value_stride[2] == 1 && job.out_stride[2] == 1 &&
                     job.time_stride[1] == 1 && job.at_stride[1] == 1 && job.targets > 0;
  const auto plainly = [&](std::int64_t b, std::int64_t rows, std::int64_t first, std::int64_t n) {
    const Regular<V, O, T> at{values + b * job.value_stride[0] + first * job.value_stride[1],
                              times + b * job.time_stride[0] + first,
                              targets + b * job.at_stride[0],
                              static_cast<O *>(job.out) + b * job.out_stride[0],
                              n, job.targets, job.value_stride[0], job.time_stride[0], job.at_stride[0], job.out_stride[0]};
    const Any any{job.channels, job.value_stride[1], job.out_stride[1]};
    const auto run = [&](auto shape) { return plain_rows(at, rows, check, shape); };
    if (job.mask) // only what is no number has no answer
      for (std::int64_t row = 0; row < rows; ++row)
        for (std::int64_t k = 0; k < at.wanted; ++k) {
          const T t = at.targets[row * at.target_stride + k];
          job.mask[(b + row) * job.targets + k] = t == t;
        }
    if constexpr (std::is_same_v<V, C>) {
      if (any.side_by_side()) return by_channels(any, run);
    }
    return run(any);
  };
  if (plain && job.stamps > 0 && !job.offsets && !job.lengths && !job.at_lengths) {
    const std::int64_t done = plainly(from, to - from, 0, job.stamps);
    return from + done < to ? from + done : -1;
  }
  for (std::int64_t b = from; b < to; ++b) {
    const std::int64_t first = job.offsets ? job.offsets[b] : 0;
    std::int64_t n = job.offsets ? job.offsets[b + 1] - first : job.stamps;
    if (job.lengths) n = std::min(n, job.lengths[b]);
    const std::int64_t wanted = job.at_lengths ? std::min(job.targets, job.at_lengths[b]) : job.targets;
    if (plain && n > 0 && wanted == job.targets) {
      if (plainly(b, 1, first, n) == 0) return b;
      continue;
    }
    Track<V, T> track{values + b * job.value_stride[0] + first * job.value_stride[1],
                      times + b * job.time_stride[0] + first * job.time_stride[1],
                      n, job.value_stride[1], job.value_stride[2], job.time_stride[1]};
    if (check && (b == from || !one_clock(job)) && !in_order(track.times, n, track.time_step)) return b;
    const T *row = targets + b * job.at_stride[0];
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
  return -1;
}

template <class V, class O> std::int64_t by_time(const ResampleJob &job, std::int64_t from, std::int64_t to, bool check) {
  switch (job.time_type) {
  case TimeType::f32: return rows<V, O, float>(job, from, to, check);
  case TimeType::f64: return rows<V, O, double>(job, from, to, check);
  default: return rows<V, O, std::int64_t>(job, from, to, check);
  }
}

template <class T> std::int64_t disorder(const ResampleJob &job, std::int64_t from, std::int64_t to) {
  const T *times = static_cast<const T *>(job.times);
  const std::int64_t step = job.time_stride[1];
  if (one_clock(job)) to = std::min(to, from + 1);
  for (std::int64_t b = from; b < to; ++b) {
    const std::int64_t first = job.offsets ? job.offsets[b] : 0;
    std::int64_t n = job.offsets ? job.offsets[b + 1] - first : job.stamps;
    if (job.lengths) n = std::min(n, job.lengths[b]);
    if (!in_order(times + b * job.time_stride[0] + first * step, n, step)) return b;
  }
  return -1;
}

std::int64_t all_rows(const ResampleJob &job, std::int64_t from, std::int64_t to, bool check) {
  const auto narrow_or_wide = [&](auto value) {
    using V = decltype(value);
    return job.out_is_wide ? by_time<V, float>(job, from, to, check) : by_time<V, V>(job, from, to, check);
  };
  switch (job.value_type) {
  case ValueType::f16: return narrow_or_wide(F16{});
  case ValueType::bf16: return narrow_or_wide(BF16{});
  case ValueType::f32: return by_time<float, float>(job, from, to, check);
  default: return by_time<double, double>(job, from, to, check);
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
