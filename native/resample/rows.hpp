// Trajectories of any type of values. Part of the loops: compiled once per instruction set. rows_half.cpp has the 16-bit
// types and rows_full.cpp the others, so that several cores share the work of compiling.
//
// There are three paths, fastest first:
//   plain_rows   all channels linear, ends clamped, no gaps, everything contiguous
//   ruled_row    all channels linear, previous or nearest, any rule for ends and gaps, everything contiguous
//   general_row  everything else: block by block through interpolate() (kinds.cpp)
#pragma once

#include <algorithm>
#include <limits>
#include <type_traits>
#include <vector>

#include "resample/kinds.hpp"
#include "resample/locate.hpp"
#include "resample/loops.hpp"
#include "resample/mix.hpp"

namespace ridgeline {
namespace RIDGELINE_ISA {
namespace {

// ---- ruled ----

inline bool is_ruled(const ResampleJob &job) {
  return job.groups.size() == 1 && job.groups[0].start == 0 && job.groups[0].stop == job.channels &&
         (job.groups[0].kind == Kind::linear || job.groups[0].kind == Kind::previous || job.groups[0].kind == Kind::nearest) &&
         job.outside != Outside::extrapolate && job.value_stride[2] == 1 && job.out_stride[2] == 1 &&
         job.time_stride[1] == 1 && job.at_stride[1] == 1;
}

// One trajectory with n > 0 stamps; targets [0, count). The rules are the same for all targets, so the branches on them
// cost next to nothing. `mask`: one item per target, or null.
template <class V, class T, class Out>
[[gnu::noinline]] void ruled_row(const ResampleJob &job, const V *values, const T *times, std::int64_t n, const T *targets,
                                 std::int64_t count, Out out, std::uint8_t *mask) {
  using C = typename ComputeOf<V>::type;
  const Kind kind = job.groups[0].kind;
  const std::int64_t channels = job.channels, out_step = job.out_stride[1];
  const Rules<T> rules(job, times, n);
  Prefetch prefetch(n * job.value_stride[1] * std::int64_t(sizeof(V)), std::max<std::int64_t>(1, count));
  prefetch.set(values);
  Merge<V, T, AnyShape, false> merge(values, times, n, AnyShape{channels, job.value_stride[1], out_step}, job.narrow_times);
  for (std::int64_t k = 0; k < count; ++k, out.out += out_step) {
    const T t = targets[k];
    if (k % Prefetch::kSteps == 0 && merge.left) prefetch.set(merge.left);
    prefetch.fetch();
    const double weight = merge.find(t);
    const bool valid = rules.allow(merge, t);
    if (mask) mask[k] = valid;
    if (__builtin_expect(!valid, 0)) {
      for (std::int64_t d = 0; d < channels; ++d) out.none(d);
    } else if (kind == Kind::linear) {
      if (const C w = C(weight); w != 0) mix(merge.left, merge.right, w, out, channels);
      else copy_frame(merge.left, out, channels);
    } else {
      const bool right = kind == Kind::previous ? weight >= 1 : weight > 0.5;
      copy_frame(merge.left + right * (merge.right - merge.left), out, channels);
    }
  }
}

// ---- plain ----

// With 16-bit values a variable `narrow` costs 15 to 19 % with AVX2 (measured), so float32 stamps take ruled_row.
template <class V> constexpr bool kPlainNarrow = sizeof(V) > 2;

// Trajectories of equal length, each with equally many targets; consecutive ones are `*_stride` items apart.
template <class V, class O, class T> struct RegularBatch {
  const V *values;
  const T *times, *targets;
  O *out;
  std::int64_t n, count, value_stride, time_stride, target_stride, out_stride;
};

// It stores nothing but the result, not even a register on the stack: on a Neoverse-N1 another store between two
// trajectories stops the CPU from writing whole cache lines without reading them first.
template <class V, class O, class T, class Shape>
[[gnu::always_inline]] inline void plain_row(const V *values, const T *times, std::int64_t n, const T *target,
                                             std::int64_t count, O *out, Prefetch &prefetch, const Shape &shape, bool narrow) {
  using C = typename ComputeOf<V>::type;
  const auto write = [&](const V *left, const V *right, double weight) __attribute__((always_inline)) {
    const C w = C(weight);
    if (__builtin_expect(w != 0, 1)) { // or NaN, from infinite spans
      mix(left, right, w, PlainOut<O>{out}, shape.channels);
    } else if (left) {
      copy_frame(left, PlainOut<O>{out}, shape.channels);
    } else {
      for (std::int64_t d = 0; d < shape.channels; ++d) set_nan(out[d]);
    }
    out += shape.out_step;
  };
  prefetch.set(values);
  Merge<V, T, Shape, true> merge(values, times, n, shape, narrow);
  const T *const last = target + count - 1;
  // It finds a target before it mixes the previous one, so that the division overlaps with the mixing.
  double next_weight = merge.find(*target);
  while (target < last) {
    for (const T *const stop = last - target < Prefetch::kSteps ? last : target + Prefetch::kSteps; target < stop;) {
      prefetch.fetch();
      const V *left = merge.left, *right = merge.right;
      const double weight = next_weight;
      next_weight = merge.find(*++target);
      write(left, right, weight);
    }
    if (merge.left) prefetch.set(merge.left);
  }
  prefetch.fetch();
  write(merge.left, merge.right, next_weight);
}

// With `check` it stops at the first trajectory whose stamps are unsorted. Returns the number of trajectories it has done.
template <class V, class O, class T, class Shape>
[[gnu::noinline]] std::int64_t plain_rows(const ResampleJob &job, const RegularBatch<V, O, T> &batch, std::int64_t rows,
                                          bool check, const Shape shape) {
  Prefetch prefetch(batch.n * shape.step * std::int64_t(sizeof(V)), batch.count);
  bool distinct = false;
  for (std::int64_t b = 0; b < rows; ++b) {
    asm volatile("" ::: "memory"); // reload the constants of the batch: the compiler would spill them to the stack
    const V *const values = batch.values + b * batch.value_stride;
    const T *const times = batch.times + b * batch.time_stride, *const targets = batch.targets + b * batch.target_stride;
    O *const out = batch.out + b * batch.out_stride;
    Prefetch::fetch(times + batch.time_stride, batch.n), Prefetch::fetch(targets + batch.target_stride, batch.count);
    if (b == 0 || batch.time_stride != 0) {
      distinct = is_sorted_and_distinct(times, batch.n) && times[0] >= std::numeric_limits<T>::lowest();
      if (!distinct && check && !is_sorted(times, batch.n, 1)) return b;
    }
    if (distinct) plain_row(values, times, batch.n, targets, batch.count, out, prefetch, shape, kPlainNarrow<V> && job.narrow_times);
    else ruled_row(job, values, times, batch.n, targets, batch.count, PlainOut<O>{out}, nullptr);
  }
  return rows;
}

// Calls `run` with the number of channels as a constant where frames have a common number: an arm, an arm with a gripper,
// two arms, and powers of two.
template <class V, class Do> std::int64_t run_with_shape(const AnyShape &shape, Do run) {
#if !defined(RIDGELINE_COMPACT)
  if constexpr (sizeof(V) > 2)
    if (shape.is_contiguous()) switch (shape.channels) {
      case 7: return run(FixedShape<7>{});
      case 8: return run(FixedShape<8>{});
      case 14: return run(FixedShape<14>{});
      case 16: return run(FixedShape<16>{});
      case 32: return run(FixedShape<32>{});
      case 64: return run(FixedShape<64>{});
      }
#endif
  return run(shape);
}

// ---- general ----

template <class V, class C> void widen_frame(const V *frame, std::int64_t step, std::int64_t channels, C *to) {
  for_channels<V>(
      step == 1, 0, channels,
      [&](std::int64_t d, auto type) __attribute__((always_inline)) { store_narrow(load_wide<decltype(type)>(frame + d), to + d); },
      [&](std::int64_t d) { to[d] = widen(frame[d * step]); });
}

template <class C, class O>
void store_row(const C *row, std::int64_t channels, const C *scale, const C *shift, O *out, std::int64_t step) {
  if (scale) {
    for (std::int64_t d = 0; d < channels; ++d) narrow(add_product(shift[d], row[d], scale[d]), out[d * step]);
    return;
  }
  for_channels<O>(
      step == 1, 0, channels,
      [&](std::int64_t d, auto type) __attribute__((always_inline)) { store_narrow(load<decltype(type)>(row + d), out + d); },
      [&](std::int64_t d) { narrow(row[d], out[d * step]); });
}

// One trajectory: targets [from, job.targets), of which those from `count` on have no result. `out` and `mask` are those
// of target 0. Results that need no other type, scale or stride are interpolated in place. Others go block by block
// through a buffer of the compute type.
template <class V, class O, class T>
[[gnu::noinline]] void general_row(const ResampleJob &job, const V *values, const Stamps<T> stamps, const T *targets,
                                   std::int64_t from, std::int64_t count, O *out, std::uint8_t *mask) {
  using C = typename ComputeOf<V>::type;
  constexpr std::int64_t kBlockTargets = 64, kBlockValues = 4096; // the buffer fits the first cache
  const C *scale = static_cast<const C *>(job.scale), *shift = static_cast<const C *>(job.shift);
  const std::int64_t channels = job.channels, value_step = job.value_stride[1], channel_step = job.value_stride[2];
  const std::int64_t out_step = job.out_stride[1], out_channel_step = job.out_stride[2];
  if (stamps.n == 0) count = from;
  std::int64_t k = from;
  if (k < count) {
    const std::int64_t block = std::clamp<std::int64_t>(kBlockValues / std::max<std::int64_t>(1, channels), 1, kBlockTargets);
    thread_local std::vector<C> buffer;
    if (std::int64_t(buffer.size()) < (block + 4) * channels) buffer.resize((block + 4) * channels);
    C *const rows = buffer.data(), *const wide = rows + block * channels; // [block, channels]; four widened frames
    const bool in_place = std::is_same_v<O, C> && !scale && out_channel_step == 1;
    const auto result_row = [&](std::int64_t k, std::int64_t j) -> C * {
      if constexpr (std::is_same_v<O, C>)
        if (in_place) return out + k * out_step;
      return rows + j * channels;
    };
    const auto frame = [&](std::int64_t i, int slot) -> const C * {
      const V *const at = values + i * value_step;
      if constexpr (std::is_same_v<V, C>) return at;
      else return widen_frame(at, channel_step, channels, wide + slot * channels), wide + slot * channels;
    };
    bool has_cubic = false;
    for (const ChannelGroup &group : job.groups) has_cubic |= group.kind == Kind::cubic;
    const bool merges = stamps.step == 1 && job.outside != Outside::extrapolate;
    PositionMerge<T> merge(job, stamps.times, merges ? stamps.n : 1);
    SlerpBatch<C> batch{};
    std::int64_t hint = -1;
    bool valid[kBlockTargets];
    while (k < count) {
      const std::int64_t in_block = std::min(block, count - k);
      for (std::int64_t j = 0; j < in_block; ++j) {
        const T t = targets[(k + j) * job.at_stride[1]];
        const Position position = merges ? merge.find(t) : locate(job, stamps, t, hint);
        valid[j] = position.valid;
        if (!position.valid) continue;
        const auto [i, right, weight, ignored] = position;
        Neighbours<C> frames{};
        frames.left = frame(i, 0);
        frames.right = right == i ? frames.left : frame(right, 1);
        frames.channel_step = std::is_same_v<V, C> ? channel_step : 1;
        frames.weight = weight;
        if (has_cubic && C(weight) != 0 && right != i) {
          const std::int64_t before = stamps.last_smaller(i), after = right + 1 < stamps.n ? stamps.last_equal(right + 1) : -1;
          frames.span = C(stamps.span(i, right));
          if (before >= 0) frames.before = frame(before, 2), frames.span_before = C(stamps.span(before, i));
          if (after >= 0) frames.after = frame(after, 3), frames.span_after = C(stamps.span(right, after));
        }
        interpolate(job, frames, batch, result_row(k + j, j));
      }
      finish(batch);
      for (std::int64_t j = 0; j < in_block; ++j, ++k) {
        O *const to = out + k * out_step;
        if (mask) mask[k] = valid[j];
        if (valid[j]) {
          if (!in_place) store_row(rows + j * channels, channels, scale, shift, to, out_channel_step);
        } else for (std::int64_t d = 0; d < channels; ++d) set_nan(to[d * out_channel_step]);
      }
    }
  }
  for (; k < job.targets; ++k) {
    if (mask) mask[k] = false;
    for (std::int64_t d = 0; d < channels; ++d) set_nan(out[k * out_step + d * out_channel_step]);
  }
}

// ---- choice of the path ----

template <class V, class O, class T>
std::int64_t interpolate_typed(const ResampleJob &job, std::int64_t from, std::int64_t to, bool check) {
  using C = typename ComputeOf<V>::type;
  constexpr bool kSameType = std::is_same_v<V, O>; // results wider than 16-bit values are rarer: they have fewer fast paths
  const V *values = static_cast<const V *>(job.values);
  const T *times = static_cast<const T *>(job.times), *targets = static_cast<const T *>(job.at);
  const C *scale = static_cast<const C *>(job.scale), *shift = static_cast<const C *>(job.shift);
  const bool ruled = is_ruled(job) && (kSameType || !scale);
  const bool plain = kSameType && ruled && job.groups[0].kind == Kind::linear && job.outside == Outside::clamp &&
                     !job.has_gap && !scale && job.targets > 0 && (kPlainNarrow<V> || !job.narrow_times);
  const auto run_plain = [&](std::int64_t b, std::int64_t rows, std::int64_t first, std::int64_t n) -> std::int64_t {
    if constexpr (kSameType) {
      const RegularBatch<V, O, T> batch{values + b * job.value_stride[0] + first * job.value_stride[1],
                                        times + b * job.time_stride[0] + first,
                                        targets + b * job.at_stride[0],
                                        static_cast<O *>(job.out) + b * job.out_stride[0],
                                        n, job.targets, job.value_stride[0], job.time_stride[0], job.at_stride[0], job.out_stride[0]};
      if (job.mask) // only NaN targets have no result
        for (std::int64_t row = 0; row < rows; ++row)
          for (std::int64_t k = 0; k < batch.count; ++k) {
            const T t = batch.targets[row * batch.target_stride + k];
            job.mask[(b + row) * job.targets + k] = t == t;
          }
      return run_with_shape<V>(AnyShape{job.channels, job.value_stride[1], job.out_stride[1]},
                               [&](auto shape) { return plain_rows(job, batch, rows, check, shape); });
    }
    return rows;
  };
  if (plain && job.stamps > 0 && !job.offsets && !job.lengths && !job.at_lengths) {
    const std::int64_t done = run_plain(from, to - from, 0, job.stamps);
    return from + done < to ? from + done : -1;
  }
  for (std::int64_t b = from; b < to; ++b) {
    const std::int64_t first = first_stamp(job, b), n = stamp_count(job, b);
    const std::int64_t count = job.at_lengths ? std::clamp<std::int64_t>(job.at_lengths[b], 0, job.targets) : job.targets;
    if (plain && n > 0 && count == job.targets) {
      if (run_plain(b, 1, first, n) == 0) return b;
      continue;
    }
    const V *const frames = values + b * job.value_stride[0] + first * job.value_stride[1];
    const Stamps<T> stamps{times + b * job.time_stride[0] + first * job.time_stride[1], n, job.time_stride[1], job.narrow_times};
    if (check && (b == from || !stamps_are_shared(job)) && !is_sorted(stamps.times, n, stamps.step)) return b;
    const T *const row = targets + b * job.at_stride[0];
    O *const out = static_cast<O *>(job.out) + b * job.out_stride[0];
    std::uint8_t *const mask = job.mask ? job.mask + b * job.targets : nullptr;
    std::int64_t done = 0;
    if (ruled && n > 0) {
      done = count;
      if (!scale) ruled_row(job, frames, stamps.times, n, row, count, PlainOut<O>{out}, mask);
      else if constexpr (kSameType) ruled_row(job, frames, stamps.times, n, row, count, ScaledOut<O, C>{out, scale, shift}, mask);
    }
    general_row(job, frames, stamps, row, done, count, out, mask); // after ruled_row: the targets without a result
  }
  return -1;
}

template <class V, class O> std::int64_t select_time(const ResampleJob &job, std::int64_t from, std::int64_t to, bool check) {
  return job.time_type == TimeType::i64 ? interpolate_typed<V, O, std::int64_t>(job, from, to, check)
                                        : interpolate_typed<V, O, double>(job, from, to, check);
}

} // namespace
} // namespace RIDGELINE_ISA
} // namespace ridgeline
