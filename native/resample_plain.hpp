// The everyday case: all channels linear, ends held, stamps and channels contiguous. Part of the loops: compiled once per
// instruction set.
#pragma once

#include <limits>

#include "resample_merge.hpp"
#include "resample_mix.hpp"
#include "resample_order.hpp"
#include "resample_ruled.hpp"

namespace ridgeline {
namespace RIDGELINE_ISA {
namespace {

// How many channels a frame has, and how far frames lie apart: known while compiling for the usual ones, side by side.
// Every instruction less lets the processor see farther ahead, and more of its waits for memory run at once.
template <std::int64_t Channels> struct Fixed {
  static constexpr std::int64_t channels = Channels, step = Channels, out_step = Channels;
};

// Trajectories of one length each with as many targets, one behind the other, `*_stride` apart.
template <class V, class O, class T> struct Regular {
  const V *values;
  const T *times, *targets;
  O *out;
  std::int64_t n, wanted, value_stride, time_stride, target_stride, out_stride;
};

// Nothing is stored but the answer, not even a register on the stack: stores elsewhere between two trajectories cost a
// Neoverse-N1 its way of writing whole cache lines unread.
template <class V, class O, class T, class Shape>
[[gnu::always_inline]] inline void plain_row(const V *values, const T *times, std::int64_t n, const T *target,
                                             std::int64_t wanted, O *out, Ahead &ahead, const Shape &shape) {
  using C = typename ComputeOf<V>::type;
  const auto put = [&](const V *left, const V *right, double share) __attribute__((always_inline)) {
    const C w = C(share);
    if (__builtin_expect(w != 0, 1)) { // or no number, which spans that are infinite make
      mix(left, right, w, Straight<O>{out}, 0, shape.channels);
    } else if (left) {
      hold(left, Straight<O>{out}, 0, shape.channels);
    } else {
      for (std::int64_t d = 0; d < shape.channels; ++d) no_number(out[d]);
    }
    out += shape.out_step;
  };
  ahead.set(values);
  Merge<V, T, Shape, true> merge(values, times, n, shape);
  const T *const last = target + wanted - 1;
  // A target is searched for before the one ahead of it is mixed: its division is under way meanwhile.
  double share = merge.find(*target);
  while (target < last) {
    for (const T *const pause = last - target < Ahead::kSteps ? last : target + Ahead::kSteps; target < pause;) {
      ahead.fetch();
      const V *left = merge.left, *right = merge.right;
      const double part = share;
      share = merge.find(*++target);
      put(left, right, part);
    }
    if (merge.left) ahead.set(merge.left);
  }
  ahead.fetch();
  put(merge.left, merge.right, share);
}

// With `check` it ends before the first trajectory that is out of order; returns how many there were before it.
template <class V, class O, class T, class Shape>
[[gnu::noinline]] std::int64_t plain_rows(const ResampleJob &job, const Regular<V, O, T> &at, std::int64_t rows, bool check,
                                          const Shape shape) {
  Ahead ahead(at.n * shape.step * std::int64_t(sizeof(V)), at.wanted);
  bool differ = false;
  for (std::int64_t b = 0; b < rows; ++b) {
    asm volatile("" ::: "memory"); // what is the same for all is read again: kept, it would have to be kept on the stack
    const V *const values = at.values + b * at.value_stride;
    const T *const times = at.times + b * at.time_stride, *const targets = at.targets + b * at.target_stride;
    O *const out = at.out + b * at.out_stride;
    Ahead::fetch(times + at.time_stride, at.n), Ahead::fetch(targets + at.target_stride, at.wanted);
    if (b == 0 || at.time_stride != 0) {
      differ = all_differ(times, at.n) && times[0] >= std::numeric_limits<T>::lowest();
      if (!differ && check && !in_order(times, at.n, 1)) return b;
    }
    if (differ) plain_row(values, times, at.n, targets, at.wanted, out, ahead, shape);
    else ruled_row(job, values, times, at.n, targets, at.wanted, Straight<O>{out}, nullptr);
  }
  return rows;
}

} // namespace
} // namespace RIDGELINE_ISA
} // namespace ridgeline
