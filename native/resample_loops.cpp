// Compiled once per instruction set (CMakeLists.txt), each time into a namespace of its own.
#include <algorithm>
#include <limits>
#include <type_traits>

#include "resample_kinds.hpp"
#include "resample_plain.hpp"

namespace ridgeline {
namespace RIDGELINE_ISA {
namespace {

inline bool one_clock(const ResampleJob &job) { return job.time_stride[0] == 0 && !job.offsets && !job.lengths; }

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

// Channels of any kind, targets [from, job.targets), of which those from `wanted` on have no answer.
template <class O, class V, class T>
[[gnu::noinline]] void any_row(const ResampleJob &job, const Track<V, T> track, const T *row, std::int64_t b,
                               std::int64_t from, std::int64_t wanted) {
  using C = typename ComputeOf<V>::type;
  const C *scale = static_cast<const C *>(job.scale), *shift = static_cast<const C *>(job.shift);
  const std::int64_t step = job.out_stride[2];
  std::int64_t hint = -1;
  for (std::int64_t k = from; k < job.targets; ++k) {
    Spot<C> at{0, 0, 0, false};
    if (k < wanted) at = find(job, track, row[k * job.at_stride[1]], hint);
    O *out = static_cast<O *>(job.out) + b * job.out_stride[0] + k * job.out_stride[1];
    if (job.mask) job.mask[b * job.targets + k] = at.valid;
    if (!at.valid) {
      for (std::int64_t d = 0; d < job.channels; ++d) narrow(std::numeric_limits<C>::quiet_NaN(), out[d * step]);
    } else if (scale) {
      emit(job, track, at, Scaled<O, C>{out, step, scale, shift});
    } else if (step == 1) {
      emit(job, track, at, Straight<O>{out});
    } else {
      emit(job, track, at, Apart<O>{out, step});
    }
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
    Track<V, T> track{values + b * job.value_stride[0] + first * job.value_stride[1],
                      times + b * job.time_stride[0] + first * job.time_stride[1],
                      n, job.value_stride[1], job.value_stride[2], job.time_stride[1]};
    if (check && (b == from || !one_clock(job)) && !in_order(track.times, n, track.time_step)) return b;
    const T *const row = targets + b * job.at_stride[0];
    if (ruled && n > 0) {
      O *const out = static_cast<O *>(job.out) + b * job.out_stride[0];
      std::uint8_t *const mask = job.mask ? job.mask + b * job.targets : nullptr;
      if (scale) ruled_row(job, track.values, track.times, n, row, wanted, Scaled<O, C>{out, 1, scale, shift}, mask);
      else ruled_row(job, track.values, track.times, n, row, wanted, Straight<O>{out}, mask);
      any_row<O>(job, track, row, b, wanted, wanted); // the rest has no answer
    } else {
      any_row<O>(job, track, row, b, 0, wanted);
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
