// Interpolation of one target by the kind of each channel: linear, previous, nearest, cubic, slerp, angle.
// The functions know float and double only; rows.hpp widens 16-bit frames for them and narrows their results. So they are
// compiled twice per instruction set, not once for each type of values, stamps and results.
#pragma once

#include <cstdint>

#include "resample/resample.hpp"

namespace ridgeline {
namespace RIDGELINE_ISA {

// The frames around a target.
template <class C> struct Neighbours {
  const C *before, *left, *right, *after; // `before` and `after` are for cubic; null where the trajectory has none
  std::int64_t channel_step;
  double weight;                   // of `right`
  C span_before, span, span_after; // for cubic: the time between two of the frames each
};

// Rotations that wait for their interpolation: a whole vector of them is interpolated at once. The number fills a
// register of any width and fits the first cache.
constexpr int kRotations = 32;
template <class C> struct SlerpBatch {
  C from[4][kRotations], to[4][kRotations], weight[kRotations];
  C *result[kRotations]; // where the four components of each one go
  int count = 0;
};

// Writes all channels of a target to row [channels]. The channels of kind slerp are complete after `finish`.
void interpolate(const ResampleJob &job, const Neighbours<float> &frames, SlerpBatch<float> &batch, float *row);
void interpolate(const ResampleJob &job, const Neighbours<double> &frames, SlerpBatch<double> &batch, double *row);
void finish(SlerpBatch<float> &batch);
void finish(SlerpBatch<double> &batch);

} // namespace RIDGELINE_ISA
} // namespace ridgeline
