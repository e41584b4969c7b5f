// Resampling of trajectories: values at uneven stamps are interpolated at new stamps, the targets.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "threads/instruction_set.hpp"

namespace ridgeline {

enum class Kind { linear, previous, nearest, cubic, slerp, angle };
enum class Outside { clamp, nan, extrapolate };
enum class ValueType { f16, bf16, f32, f64 };
enum class TimeType { f32, f64, i64 };

inline std::int64_t item_bytes(ValueType type) { return type == ValueType::f64 ? 8 : type == ValueType::f32 ? 4 : 2; }
inline std::int64_t item_bytes(TimeType type) { return type == TimeType::f32 ? 4 : 8; }

// Channels [start, stop) of one kind.
struct ChannelGroup {
  std::int64_t start, stop;
  Kind kind;
};

// Strides count items. Trajectory b has stamps times[b, 0 … length) and targets at[b, 0 … targets): rows of a padded
// batch or, with `offsets`, slices of one packed array.
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
  bool out_is_wide; // out has the compute type (float for f16, bf16, f32; double for f64), else the type of the values
  std::uint8_t *mask;          // [batch, targets] contiguous, or null
  const std::int64_t *lengths; // [batch], or null
  const std::int64_t *at_lengths;
  const std::int64_t *offsets; // [batch + 1], or null
  std::int64_t batch, stamps, targets, channels;
  std::vector<ChannelGroup> groups;
  Outside outside;
  bool has_gap;
  double gap_float; // the longest span that is interpolated, in the type of the times
  std::int64_t gap_int;
  const void *scale, *shift; // [channels] of the compute type, or both null
  bool narrow_times = false; // the stamps are float32 values that lie in doubles: spans are rounded to float32
};

// Loops over trajectories [from, to).
struct ResampleLoops {
  // Interpolates. With `check` it stops at the first trajectory whose stamps are unsorted and returns its index; -1: all
  // are sorted.
  std::int64_t (*interpolate)(const ResampleJob &job, std::int64_t from, std::int64_t to, bool check);
  // The first trajectory with a stamp that is NaN or smaller than the stamp before it, or -1.
  std::int64_t (*first_unsorted)(const ResampleJob &job, std::int64_t from, std::int64_t to);
};

// Runs the job on `threads` threads (0: as many as the size of the job is worth). With `check` it returns the first
// trajectory whose stamps are unsorted, or -1; if there is one, `out` holds nothing of use.
std::int64_t resample(const ResampleJob &job, Isa isa, int threads, bool check);
std::int64_t first_unsorted(const ResampleJob &job, Isa isa);

} // namespace ridgeline
