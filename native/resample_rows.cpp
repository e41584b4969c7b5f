// Trajectories whose values are of type RIDGELINE_VALUES. Compiled once per instruction set, each time into a namespace of
// its own, and once per type, so that the compilers of several cores share the work (CMakeLists.txt).
#include "resample_rows.hpp"

#include <algorithm>
#include <type_traits>

#include "resample_kinds.hpp"
#include "resample_plain.hpp"

namespace ridgeline {
namespace RIDGELINE_ISA {
namespace {

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

// Channels of any kind, targets [from, job.targets), of which those from `wanted` on have no answer. `put` is where the first
// target goes.
template <class V, class T, class Put>
[[gnu::noinline]] void any_row(const ResampleJob &job, const Track<V, T> track, const T *row, std::uint8_t *mask,
                               std::int64_t from, std::int64_t wanted, Put put) {
  using C = typename ComputeOf<V>::type;
  const std::int64_t out_step = job.out_stride[1];
  const auto nothing = [&] {
    for (std::int64_t d = 0; d < job.channels; ++d) put.none(d);
  };
  std::int64_t k = from;
  put.out += from * out_step;
  if (k < wanted && track.n > 0) {
    const bool merges = track.time_step == 1 && job.outside != Outside::extrapolate;
    Places<C, T> places(job, track.times, merges ? track.n : 1);
    Turning<C, Put> turning;
    std::int64_t hint = -1;
    for (; k < wanted; ++k, put.out += out_step) {
      const T t = row[k * job.at_stride[1]];
      const Spot<C> at = merges ? places.find(t) : find(job, track, t, hint);
      if (mask) mask[k] = at.valid;
      if (at.valid) emit(job, track, at, put, turning);
      else nothing();
    }
    turning.finish();
  }
  for (; k < job.targets; ++k, put.out += out_step) {
    if (mask) mask[k] = false;
    nothing();
  }
}

template <class V, class O, class T>
std::int64_t rows(const ResampleJob &job, std::int64_t from, std::int64_t to, bool check) {
  using C = typename ComputeOf<V>::type;
  const V *values = static_cast<const V *>(job.values);
  const T *times = static_cast<const T *>(job.times), *targets = static_cast<const T *>(job.at);
  const C *scale = static_cast<const C *>(job.scale), *shift = static_cast<const C *>(job.shift);
  const bool ruled = follows_rules(job), plain = ruled && job.groups[0].kind == Kind::linear &&
                                                 job.outside == Outside::clamp && !job.has_gap && !scale && job.targets > 0;
  const auto plainly = [&](std::int64_t b, std::int64_t rows, std::int64_t first, std::int64_t n) {
    const Regular<V, O, T> at{values + b * job.value_stride[0] + first * job.value_stride[1],
                              times + b * job.time_stride[0] + first,
                              targets + b * job.at_stride[0],
                              static_cast<O *>(job.out) + b * job.out_stride[0],
                              n, job.targets, job.value_stride[0], job.time_stride[0], job.at_stride[0], job.out_stride[0]};
    const Any any{job.channels, job.value_stride[1], job.out_stride[1]};
    const auto run = [&](auto shape) { return plain_rows(job, at, rows, check, shape); };
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
    const std::int64_t wanted =
        job.at_lengths ? std::clamp<std::int64_t>(job.at_lengths[b], 0, job.targets) : job.targets;
    if (plain && n > 0 && wanted == job.targets) {
      if (plainly(b, 1, first, n) == 0) return b;
      continue;
    }
    const Track<V, T> track{{values + b * job.value_stride[0] + first * job.value_stride[1],
                             job.value_stride[1], job.value_stride[2]},
                            times + b * job.time_stride[0] + first * job.time_stride[1],
                            n, job.time_stride[1]};
    if (check && (b == from || !one_clock(job)) && !in_order(track.times, n, track.time_step)) return b;
    const T *const row = targets + b * job.at_stride[0];
    O *const out = static_cast<O *>(job.out) + b * job.out_stride[0];
    std::uint8_t *const mask = job.mask ? job.mask + b * job.targets : nullptr;
    const auto answer = [&](auto put) {
      std::int64_t done = 0;
      if constexpr (!std::is_same_v<decltype(put), Apart<O>>)
        if (ruled && n > 0) ruled_row(job, track.values, track.times, n, row, done = wanted, put, mask);
      any_row(job, track, row, mask, done, wanted, put); // of those with rules the rest, which has no answer
    };
    if (scale) answer(Scaled<O, C>{out, job.out_stride[2], scale, shift});
    else if (job.out_stride[2] == 1) answer(Straight<O>{out});
    else answer(Apart<O>{out, job.out_stride[2]});
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

template <ValueType> struct Held;
template <> struct Held<ValueType::f16> { using type = F16; };
template <> struct Held<ValueType::bf16> { using type = BF16; };
template <> struct Held<ValueType::f32> { using type = float; };
template <> struct Held<ValueType::f64> { using type = double; };

} // namespace

template <>
std::int64_t rows_of<ValueType::RIDGELINE_VALUES>(const ResampleJob &job, std::int64_t from, std::int64_t to, bool check) {
  using V = Held<ValueType::RIDGELINE_VALUES>::type;
  if constexpr (sizeof(V) == 2)
    if (job.out_is_wide) return by_time<V, float>(job, from, to, check);
  return by_time<V, V>(job, from, to, check);
}

} // namespace RIDGELINE_ISA
} // namespace ridgeline
