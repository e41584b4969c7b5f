// Where targets lie among the stamps of a trajectory. Part of the loops: compiled once per instruction set.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "resample/resample.hpp"

namespace ridgeline {
namespace RIDGELINE_ISA {
namespace {

// ---- order of stamps ----

// Whether every stamp is a number and not smaller (with `Strict`: larger) than the stamp before it. Contiguous stamps are
// compared eight at a time and without an early exit; with a plain loop over eight, GCC for AVX-512 emits hundreds of
// shuffles.
template <bool Strict, class T> inline bool rises(const T *stamps, std::int64_t n, std::int64_t step) {
  using Eight [[gnu::vector_size(8 * sizeof(T))]] = T;
  if (n > 0 && !(stamps[0] == stamps[0])) return false;
  std::int64_t i = 1;
  if (step == 1) {
    Eight current{}, previous{};
    auto ordered = current == previous; // all bits set
    for (; i + 8 <= n; i += 8) {
      std::memcpy(&current, stamps + i, sizeof current);
      std::memcpy(&previous, stamps + i - 1, sizeof previous);
      ordered &= Strict ? current > previous : current >= previous;
    }
    auto all = ordered[0];
    for (int k = 1; k < 8; ++k) all &= ordered[k];
    if (!all) return false;
  }
  for (; i < n; ++i) {
    const T current = stamps[i * step], previous = stamps[(i - 1) * step];
    if (!(Strict ? current > previous : current >= previous)) return false;
  }
  return true;
}
template <class T> [[gnu::noinline]] bool is_sorted(const T *stamps, std::int64_t n, std::int64_t step) {
  return rises<false>(stamps, n, step);
}
template <class T> inline bool is_sorted_and_distinct(const T *stamps, std::int64_t n) { return rises<true>(stamps, n, 1); }

// How many of four sorted stamps are not after t. It counts without branches, because no predictor knows the result.
template <class T> [[gnu::always_inline]] inline std::int64_t count_not_after(const T *stamps, T t) {
  std::int64_t count = stamps[0] <= t;
  count += stamps[1] <= t, count += stamps[2] <= t, count += stamps[3] <= t;
  return count;
}

// ---- time differences ----

// With `narrow` both stamps are float32 values in doubles, and the difference is rounded to float32: the same bits as a
// subtraction in float32, since a double has more than twice the digits.
inline double difference(double later, double earlier, bool narrow) {
  const double exact = later - earlier;
  return narrow ? double(float(exact)) : exact;
}
inline double difference(std::int64_t later, std::int64_t earlier, bool) { return double(later - earlier); }

inline bool is_gap(const ResampleJob &job, double later, double earlier) {
  return difference(later, earlier, job.narrow_times) > job.gap_float;
}
inline bool is_gap(const ResampleJob &job, std::int64_t later, std::int64_t earlier) { return later - earlier > job.gap_int; }

// ---- positions of single targets ----

// A target lies between the stamps `left` and `right`, at `weight` of the way. Kinds `previous` and `nearest` decide by
// this double and not by the narrowed weight: a target before the next stamp must not be rounded onto it.
struct Position {
  std::int64_t left, right;
  double weight;
  bool valid;
};

template <class T> struct Stamps {
  const T *times;
  std::int64_t n, step;
  bool narrow;

  T time(std::int64_t i) const { return times[i * step]; }
  double span(std::int64_t i, std::int64_t j) const { return difference(time(j), time(i), narrow); }

  // Of equal stamps the last one counts.
  std::int64_t last_equal(std::int64_t i) const {
    while (i + 1 < n && time(i + 1) == time(i)) ++i;
    return i;
  }
  // The last index with a smaller stamp, or -1.
  std::int64_t last_smaller(std::int64_t i) const {
    const T limit = time(i);
    while (i >= 0 && time(i) == limit) --i;
    return i;
  }
  // The last index whose stamp is not after t, or -1. `hint` is the result for the target before.
  std::int64_t search(T t, std::int64_t hint) const {
    if (hint < 0 || !(time(hint) <= t)) return bisect(t, -1, hint >= 0 ? hint : n);
    std::int64_t i = hint;
    if (step == 1) {
      for (int tries = 0; tries < 8 && i + 4 < n; ++tries) {
        const std::int64_t passed = count_not_after(times + i + 1, t);
        i += passed;
        if (passed < 4) return i;
      }
    }
    for (int tries = 0; tries < 4; ++tries) {
      if (i + 1 >= n || time(i + 1) > t) return i;
      ++i;
    }
    return bisect(t, i, n);
  }
  std::int64_t bisect(T t, std::int64_t low, std::int64_t high) const { // time(low) <= t < time(high)
    while (high - low > 1) {
      const std::int64_t middle = low + (high - low) / 2;
      if (time(middle) <= t) low = middle;
      else high = middle;
    }
    return low;
  }
};

// For stamps of any stride, and for extrapolation.
template <class T> [[gnu::always_inline]] inline Position locate(const ResampleJob &job, const Stamps<T> &stamps, T t, std::int64_t &hint) {
  if (!(t == t) || stamps.n == 0) return {0, 0, 0, false};
  const std::int64_t i = hint = stamps.search(t, hint);
  if (i < 0 || (i == stamps.n - 1 && t > stamps.time(i))) { // outside the stamps
    if (job.outside == Outside::nan) return {0, 0, 0, false};
    const std::int64_t end = i < 0 ? stamps.last_equal(0) : i;
    std::int64_t left = end, right = end;
    if (job.outside == Outside::extrapolate) {
      if (i < 0) right = end + 1 < stamps.n ? stamps.last_equal(end + 1) : end;
      else if ((left = stamps.last_smaller(end)) < 0) left = end;
    }
    if (left == right) return {end, end, 0, true};
    return {left, right, difference(t, stamps.time(left), stamps.narrow) / stamps.span(left, right), true};
  }
  if (stamps.time(i) == t || i + 1 >= stamps.n) return {i, i, 0, true};
  const std::int64_t j = stamps.last_equal(i + 1);
  if (job.has_gap && is_gap(job, stamps.time(j), stamps.time(i))) return {0, 0, 0, false};
  return {i, j, difference(t, stamps.time(i), stamps.narrow) / stamps.span(i, j), true};
}

// ---- merge of contiguous stamps and targets ----

// Prefetches frames before the targets reach them. It advances by the average distance of two targets and is set to the
// true position every kSteps targets, so that prefetching does not wait for the merge.
class Prefetch {
public:
  static constexpr std::int64_t kSteps = 32;
#if defined(__aarch64__) // measured on a Neoverse-N1: more lines or another distance were not faster
  static constexpr std::int64_t kDistance = 1024, kLeastPace = 0; // bytes; bytes per target
  static constexpr bool kStamps = false;
#else // the hardware prefetcher stops at the end of a page: this distance reaches into the next one
  static constexpr std::int64_t kDistance = 4096, kLeastPace = 32;
  static constexpr bool kStamps = true;
#endif

  Prefetch(std::int64_t bytes, std::int64_t targets)
      : pace(bytes / targets), distance(std::max<std::int64_t>(kDistance, 2 * pace)) {}

  void set(const void *frame) { address = static_cast<const char *>(frame) + distance; }
  [[gnu::always_inline]] inline void fetch() {
    if (pace < kLeastPace) return;
    __builtin_prefetch(address);
    if (pace > kLine) {
      __builtin_prefetch(address + kLine);
      if (pace > 2 * kLine) __builtin_prefetch(address + 2 * kLine), __builtin_prefetch(address + 3 * kLine);
    }
    address += pace;
  }

  // The first stamps or targets of the next trajectory.
  template <class T> [[gnu::always_inline]] static inline void fetch(const T *stamps, std::int64_t n) {
    if (!kStamps) return;
    const char *line = reinterpret_cast<const char *>(stamps);
    for (const char *const end = line + std::min<std::int64_t>(n * sizeof(T), kBeginning); line < end; line += kLine)
      __builtin_prefetch(line);
  }

private:
  static constexpr std::int64_t kLine = 64, kBeginning = 1024; // bytes
  const std::int64_t pace, distance;                           // bytes per target; bytes ahead
  const char *address = nullptr;
};

// The number of channels of a frame and the distances between frames: constants for common numbers of channels, because
// every saved instruction lets the processor look further ahead for memory loads.
template <std::int64_t Channels> struct FixedShape {
  static constexpr std::int64_t channels = Channels, step = Channels, out_step = Channels;
};
struct AnyShape {
  std::int64_t channels, step, out_step;
  bool is_contiguous() const { return step == channels && out_step == channels; }
};

// Finds targets one after another among sorted stamps. `Distinct`: no two stamps are equal, and the first one is finite.
// Its state stays in registers: in a linear call the merge costs more than the bytes that move.
template <class V, class T, class Shape, bool Distinct> class Merge {
public:
  Merge(const V *frames, const T *times, std::int64_t n, const Shape &shape, bool narrow)
      : left(frames), right(frames), values(frames), shape(shape), first(times), end(times + n),
        four_from_end(n < 4 ? times : end - 4), next(times + 1), last_target(times[0]), narrow(narrow) {}

  // Sets `left` and `right`, the frames around the target, and returns the weight of `right`. For a NaN target `left` is
  // null. The caller narrows the weight after the division: a span of 1e-50 or 1e300 does not fit a float.
  [[gnu::always_inline]] inline double find(T t) {
    if (__builtin_expect(!(t >= last_target), 0)) return find_backwards(t);
    last_target = t;
    if (__builtin_expect(next <= four_from_end, 1)) { // the next target is usually one to four stamps ahead
      const std::int64_t passed = count_not_after(next, t);
      next += passed, left += passed * shape.step;
      if (__builtin_expect(passed == 4, 0)) {
        next = advance(first, end, next, t);
        left = frame(next - 1);
      }
    } else {
      for (; next < end && *next <= t; ++next) left += shape.step;
    }
    return weight(t);
  }

  // Whether the last target lies between two stamps, after the first of them.
  bool is_between(T t) const { return next < end && t > next[-1]; }
  bool is_in_gap(const ResampleJob &job) const { return is_gap(job, next[0], next[-1]); }

  const V *left, *right;

private:
  const V *frame(const T *stamp) const { return values + (stamp - first) * shape.step; }

  // The rare cases are static functions: a call that takes the address of a member would force it into memory.
  static Stamps<T> stamps(const T *first, const T *end) { return {first, end - first, 1, false}; }
  [[gnu::noinline]] static const T *advance(const T *first, const T *end, const T *next, T t) {
    std::int64_t passed = 4;
    for (int tries = 0; tries < 32 && passed == 4 && end - next >= 4; ++tries) next += passed = count_not_after(next, t);
    if (passed == 4 && end - next >= 4) return first + stamps(first, end).bisect(t, next - first - 1, end - first) + 1;
    while (next < end && *next <= t) ++next;
    return next;
  }
  // The last stamp that is not after t, or the last of the equal stamps at the beginning.
  [[gnu::noinline]] static const T *search(const T *first, const T *end, T t) {
    const std::int64_t index = stamps(first, end).bisect(t, -1, end - first);
    return index < 0 ? last_equal(first, end, first) : first + index;
  }
  [[gnu::noinline]] static const T *last_equal(const T *first, const T *end, const T *stamp) {
    return first + stamps(first, end).last_equal(stamp - first);
  }

  inline double find_backwards(T t) { // t is before the last target, before the first stamp, or NaN
    if (!(t == t)) {
      left = nullptr;
      last_target = t; // every target compares false with NaN, so the next one is searched for
      return 0;
    }
    const T *const stamp = search(first, end, t);
    const bool outside = t < *first;
    next = stamp + 1, left = frame(stamp);
    last_target = outside ? *first : t;
    return outside ? (right = left, 0.0) : weight(t);
  }

  [[gnu::always_inline]] inline double weight(T t) {
    right = left + shape.step;
    if (__builtin_expect(next == end, 0)) return 0;
    if (!Distinct && t == next[-1]) return 0; // also where that stamp is infinite
    if (!Distinct && next + 1 < end && __builtin_expect(next[1] == next[0], 0)) // of equal stamps the last one counts
      right = frame(last_equal(first, end, next));
    return difference(t, next[-1], narrow) / difference(next[0], next[-1], narrow);
  }

  const V *const values;
  const Shape shape;
  const T *const first, *const end, *const four_from_end;
  const T *next;  // the first stamp after the last target
  T last_target;  // a smaller target needs a new search
  const bool narrow;
};

// Whether the rules of the job for ends and gaps allow a target that a merge has found.
template <class T> class Rules {
public:
  Rules(const ResampleJob &job, const T *times, std::int64_t n)
      : job(job), gaps(job.has_gap), clamp(job.outside == Outside::clamp), first(times[0]), last(times[n - 1]) {}

  template <class Merged> [[gnu::always_inline]] inline bool allow(const Merged &merge, T t) const {
    bool valid = merge.left;
    if (!clamp && (t < first || t > last)) valid = false;
    if (gaps && valid && merge.is_between(t) && merge.is_in_gap(job)) valid = false;
    return valid;
  }

private:
  const ResampleJob &job;
  const bool gaps, clamp;
  const T first, last;
};

// A merge that returns positions. Targets outside the stamps are clamped or invalid, never extrapolated.
template <class T> class PositionMerge {
public:
  PositionMerge(const ResampleJob &job, const T *times, std::int64_t n)
      : rules(job, times, n), origin(reinterpret_cast<const char *>(times)),
        merge(origin, times, n, AnyShape{1, 1, 1}, job.narrow_times) {}

  [[gnu::always_inline]] inline Position find(T t) {
    const double weight = merge.find(t);
    if (!rules.allow(merge, t)) return {0, 0, 0, false};
    const std::int64_t i = merge.left - origin;
    return {i, weight == 0 ? i : merge.right - origin, weight, true};
  }

private:
  const Rules<T> rules;
  const char *const origin; // frames of one byte: pointers become indices
  Merge<char, T, AnyShape, false> merge;
};

} // namespace
} // namespace RIDGELINE_ISA
} // namespace ridgeline
