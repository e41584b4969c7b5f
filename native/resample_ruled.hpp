// One trajectory of channels that are all linear, previous or nearest, with or without a rule for ends and gaps, a mask and a
// scale. Part of the loops: compiled once per instruction set.
#pragma once

#include "resample_merge.hpp"
#include "resample_mix.hpp"

namespace ridgeline {
namespace RIDGELINE_ISA {
namespace {

inline bool follows_rules(const ResampleJob &job) {
  return job.groups.size() == 1 && job.groups[0].start == 0 && job.groups[0].stop == job.channels &&
         (job.groups[0].kind == Kind::linear || job.groups[0].kind == Kind::previous || job.groups[0].kind == Kind::nearest) &&
         job.outside != Outside::extrapolate && job.value_stride[2] == 1 && job.out_stride[2] == 1 &&
         job.time_stride[1] == 1 && job.at_stride[1] == 1;
}

// What the job says about ends and gaps, of targets that a merge has found.
template <class T> class Rules {
public:
  Rules(const ResampleJob &as, const T *times, std::int64_t n)
      : job(as), gaps(as.has_gap), hold_ends(as.outside == Outside::clamp), first(times[0]), last(times[n - 1]) {}

  template <class Merged> [[gnu::always_inline]] inline bool allow(const Merged &merge, T t) const {
    bool valid = merge.left;
    if (!hold_ends && (t < first || t > last)) valid = false;
    if (gaps && valid && merge.inside(t) && too_far<T>(job, merge.span())) valid = false;
    return valid;
  }

private:
  const ResampleJob &job;
  const bool gaps, hold_ends;
  const T first, last;
};

// Its rules are the same for all targets: to ask for them each time costs next to nothing. `mask`: one for each target, or
// null.
template <class V, class T, class Put>
[[gnu::noinline]] void ruled_row(const ResampleJob &job, const V *values, const T *times, std::int64_t n, const T *target,
                                 std::int64_t wanted, Put put, std::uint8_t *mask) {
  using C = typename ComputeOf<V>::type;
  const Kind kind = job.groups[0].kind;
  const std::int64_t channels = job.channels, out_step = job.out_stride[1];
  const Rules<T> rules(job, times, n);
  Ahead ahead(n * job.value_stride[1] * std::int64_t(sizeof(V)), std::max<std::int64_t>(1, wanted));
  ahead.set(values);
  Merge<V, T, Any, false> merge(values, times, n, Any{channels, job.value_stride[1], out_step});
  for (std::int64_t k = 0; k < wanted; ++k, put.out += out_step) {
    const T t = target[k];
    if (k % Ahead::kSteps == 0 && merge.left) ahead.set(merge.left);
    ahead.fetch();
    const double share = merge.find(t);
    const bool valid = rules.allow(merge, t);
    if (mask) mask[k] = valid;
    if (__builtin_expect(!valid, 0)) {
      for (std::int64_t d = 0; d < channels; ++d) put.none(d);
    } else if (kind == Kind::linear) {
      if (const C w = C(share); w != 0) mix(merge.left, merge.right, w, put, 0, channels);
      else hold(merge.left, put, 0, channels);
    } else {
      const bool right = kind == Kind::previous ? share >= 1 : share > 0.5; // as Spot decides
      hold(merge.left + right * (merge.right - merge.left), put, 0, channels);
    }
  }
}

// The same places, as numbers of frames. What lies beyond the ends must be held or have no answer.
template <class C, class T> class Places {
public:
  Places(const ResampleJob &job, const T *times, std::int64_t n)
      : rules(job, times, n), origin(reinterpret_cast<const char *>(times)), merge(origin, times, n, Any{1, 1, 1}) {}

  [[gnu::always_inline]] inline Spot<C> find(T t) {
    const double share = merge.find(t);
    if (!rules.allow(merge, t)) return {0, 0, 0, false};
    const std::int64_t i = merge.left - origin;
    return Spot<C>::between(i, share == 0 ? i : merge.right - origin, share);
  }

private:
  const Rules<T> rules;
  const char *const origin; // frames of a byte each: the merge counts
  Merge<char, T, Any, false> merge;
};

} // namespace
} // namespace RIDGELINE_ISA
} // namespace ridgeline
