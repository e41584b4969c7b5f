// Trajectories onto new stamps: one merge over stamps and targets, then every channel by its kind.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "isa.hpp"

namespace ridgeline {

enum class Kind { linear, previous, nearest, cubic, slerp, angle };
enum class Outside { clamp, nan, extrapolate };
enum class ValueType { f16, bf16, f32, f64 };
enum class TimeType { f32, f64, i64 };

struct Channels {
  std::int64_t start, stop;
  Kind kind;
};

// Strides are in elements. A trajectory b has stamps times[b, 0 … length) and targets at[b, 0 … targets): rows of
// a padded batch, or, with `offsets`, slices of one long packed array.
struct ResampleJob {
  const void *values;
  std::int64_t value_stride[3]; // batch, stamp, channel
  ValueType value_type;
  const void *times;
  std::int64_t time_stride[2];
  TimeType time_type;
  const void *at;
  std::int64_t at_stride[2];
  void *out;
  std::int64_t out_stride[3];
  bool out_is_wide; // float32 for f16, bf16, f32; float64 for f64; else out has the type of the values
  std::uint8_t *mask;          // [batch, targets] contiguous, or null
  const std::int64_t *lengths; // [batch], or null
  const std::int64_t *at_lengths;
  const std::int64_t *offsets; // [batch + 1], or null
  std::int64_t batch, stamps, targets, channels;
  std::vector<Channels> groups;
  Outside outside;
  bool has_gap;
  double gap_float; // the largest span that is bridged, in the type of the times
  std::int64_t gap_int;
  const void *scale, *shift; // [channels] of the compute type, or both null
};

// Over trajectories [from, to).
struct ResampleLoops {
  // With `check` up to the first one out of order; both tell which: -1 if all stamps rise and are numbers.
  std::int64_t (*rows)(const ResampleJob &job, std::int64_t from, std::int64_t to, bool check);
  std::int64_t (*disorder)(const ResampleJob &job, std::int64_t from, std::int64_t to);
};

// With `check` the stamps are looked at first, a trajectory at a time while they are at hand: the answer is the first
// trajectory out of order, or -1, and if there is one `out` holds nothing of use. Threads 0: as many as the work is worth.
// `before` is done first, by the caller, while the others come and fetch what they will need: it may still set `out` and
// its strides, and if it returns false nothing is done.
std::int64_t resample(const ResampleJob &job, Isa isa, int threads, bool check,
                      const std::function<bool()> &before = {});
std::int64_t first_disorder(const ResampleJob &job, Isa isa);

} // namespace ridgeline
