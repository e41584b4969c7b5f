// Where targets fall among stamps that lie side by side: a merge of the two. Part of the loops: compiled once per
// instruction set.
#pragma once

#include <algorithm>
#include <cstdint>

#include "resample_order.hpp"
#include "resample_track.hpp"

namespace ridgeline {
namespace RIDGELINE_ISA {
namespace {

// Fetches frames before the targets reach them. It walks at the pace the targets have on average and is set right now and
// then: what to fetch does not wait for what the merge finds.
class Ahead {
public:
  static constexpr std::int64_t kSteps = 32; // targets after which it is set right
#if defined(__aarch64__)
  static constexpr std::int64_t kStart = 1024, kLeast = 0; // bytes ahead, bytes per target; neither more lines nor another
  static constexpr bool kStamps = false;                   // start was faster, the next stamps were not tried
#else
  static constexpr std::int64_t kStart = 4096, kLeast = 32; // its own fetching ends with a page: this reaches into the next
  static constexpr bool kStamps = true;
#endif

  Ahead(std::int64_t bytes, std::int64_t targets)
      : pace(bytes / targets), start(std::max<std::int64_t>(kStart, 2 * pace)) {}

  void set(const void *frame) { at = static_cast<const char *>(frame) + start; }
  [[gnu::always_inline]] inline void fetch() {
    if (pace < kLeast) return;
    __builtin_prefetch(at);
    if (pace > kLine) {
      __builtin_prefetch(at + kLine);
      if (pace > 2 * kLine) __builtin_prefetch(at + 2 * kLine), __builtin_prefetch(at + 3 * kLine);
    }
    at += pace;
  }

  // The beginning of what the next trajectory has of stamps or targets.
  template <class T> [[gnu::always_inline]] static inline void fetch(const T *stamps, std::int64_t n) {
    if (!kStamps) return;
    const char *line = reinterpret_cast<const char *>(stamps);
    for (const char *const end = line + std::min<std::int64_t>(n * sizeof(T), kBeginning); line < end; line += kLine)
      __builtin_prefetch(line);
  }

private:
  static constexpr std::int64_t kLine = 64, kBeginning = 1024; // bytes
  const std::int64_t pace, start;                              // bytes per target; bytes ahead
  const char *at = nullptr;
};

struct Any {
  std::int64_t channels, step, out_step;
  bool side_by_side() const { return step == channels && out_step == channels; }
};

// A merge without side paths. What a target needs besides its mixing is what such a call takes longer than moving its bytes,
// so it is little, and all of it is kept in registers. `Differ`: no two stamps are
// equal, and the first is finite.
template <class V, class T, class Shape, bool Differ> class Merge {
public:
  Merge(const V *frames, const T *times, std::int64_t n, const Shape &as)
      : left(frames), right(frames), values(frames), shape(as), first(times), end(times + n),
        four_from_end(n < 4 ? times : end - 4), next(times + 1), before(times[0]) {}

  // Where the target falls: `left`, `right` and how much of `right`; no `left` if it is no number. Who narrows that does so
  // after the division, as in find(): a span of 1e-50 or 1e300 is nothing or infinite in float.
  [[gnu::always_inline]] inline double find(T t) {
    if (__builtin_expect(!(t >= before), 0)) return find_back(t);
    before = t;
    // The next target is one to four stamps on, and which of them no predictor knows.
    if (__builtin_expect(next <= four_from_end, 1)) {
      const std::int64_t passed = passed_of_four(next, t);
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

  // The last target found lies inside a span, after the stamp it begins with.
  bool inside(T t) const { return next < end && t > next[-1]; }
  T span() const { return next[0] - next[-1]; }

  const V *left, *right;

private:
  const V *frame(const T *stamp) const { return values + (stamp - first) * shape.step; }

  // The rare cases are functions that do not know the merge: what an address was taken of is kept in memory.
  static Track<V, T> track(const T *first, const T *end) { return {{nullptr, 0, 0}, first, end - first, 1}; }
  [[gnu::noinline]] static const T *walk_on(const T *first, const T *end, const T *next, T t) {
    std::int64_t passed = 4;
    for (int near = 0; near < 32 && passed == 4 && end - next >= 4; ++near) next += passed = passed_of_four(next, t);
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

  inline double find_back(T t) { // it went back, or lies before the first stamp, or is no number
    if (!(t == t)) {
      left = nullptr;
      before = t; // nothing goes on from here, infinity neither: the next one is looked for anew
      return 0;
    }
    const T *const here = search(first, end, t);
    const bool outside = t < *first;
    next = here + 1, left = frame(here);
    before = outside ? *first : t;
    return outside ? (right = left, 0.0) : share(t);
  }

  [[gnu::always_inline]] inline double share(T t) {
    right = left + shape.step;
    if (__builtin_expect(next == end, 0)) return 0;
    if (!Differ && t == next[-1]) return 0; // of an infinite stamp, too
    if (!Differ && next + 1 < end && __builtin_expect(next[1] == next[0], 0)) // of equal ones the last counts
      right = frame(last_of(first, end, next));
    return double(t - next[-1]) / double(next[0] - next[-1]);
  }

  const V *const values;
  const Shape shape;
  const T *const first, *const end, *const four_from_end;
  const T *next; // the first stamp after the target before
  T before;      // that target; no smaller one goes on from here
};

} // namespace
} // namespace RIDGELINE_ISA
} // namespace ridgeline
