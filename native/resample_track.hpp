// One trajectory, and where a target falls in it. Part of the loops: compiled once per instruction set.
#pragma once

#include "resample.hpp"
#include "resample_numbers.hpp"
#include "resample_order.hpp"

namespace ridgeline {
namespace RIDGELINE_ISA {
namespace {

// Where a target falls: between stamps i and j with weight w, or nowhere. Which of the two was the last and which is the
// nearest is decided before the weight is narrowed: what is not yet the next stamp must not become it.
template <class C> struct Spot {
  std::int64_t i, j;
  C w;
  bool valid;
  std::int64_t previous = i, nearest = i;

  static Spot between(std::int64_t i, std::int64_t j, double share) {
    return {i, j, C(share), true, share >= 1 ? j : i, share > 0.5 ? j : i};
  }
};

// The frames of a trajectory, whatever their strides.
template <class V> struct Frames {
  using C = typename ComputeOf<V>::type;
  const V *values;
  std::int64_t value_step, channel_step;

  const V *frame(std::int64_t i) const { return values + i * value_step; }
  C value(std::int64_t i, std::int64_t d) const { return wide(values[i * value_step + d * channel_step]); }
};

// They and their stamps.
template <class V, class T> struct Track : Frames<V> {
  const T *times;
  std::int64_t n, time_step;

  T time(std::int64_t i) const { return times[i * time_step]; }

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
      if (time_step == 1) { // which of the next four it is no predictor knows
        for (int near = 0; near < 8 && i + 4 < n; ++near) {
          const std::int64_t passed = passed_of_four(times + i + 1, t);
          i += passed;
          if (passed < 4) return i;
        }
      }
      for (int near = 0; near < 4; ++near) {
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
    return Spot<C>::between(left, right, double(t - track.time(left)) / track.span(left, right));
  }
  if (track.time(i) == t || i + 1 >= track.n) return {i, i, 0, true};
  const std::int64_t j = track.last_of(i + 1);
  const T span = track.time(j) - track.time(i);
  if (job.has_gap && too_far(job, span)) return {0, 0, 0, false};
  return Spot<C>::between(i, j, double(t - track.time(i)) / double(span));
}

} // namespace
} // namespace RIDGELINE_ISA
} // namespace ridgeline
