// Attention of short texts: one head of one text at a time, eight queries with all keys.
//
// Queries and keys stay in their groups of eight tokens. The first and the last group of a text may hold tokens of other
// texts: those get no weight as keys and are not written as queries.
#include "encoder/steps.hpp"

#if RIDGELINE_HALF

#include <vector>

namespace ridgeline {
namespace {

constexpr int kShortTerms = 16;            // terms: a head is at most some dozens wide
constexpr std::size_t kSummed = 8; // weights that are summed in float16, then float32

// 2ʸ for y ≤ 0 with a relative error below 6e-4, and 0 below 2^-24: 2ⁿ · 2^f with |f| ≤ ½, by a polynomial. Adding
// 1561 = 1536 + 25 rounds to an integer and leaves n + 25 in the lowest bits, which are the exponent of 2^(n + 10).
inline Eight power_of_two(Eight y) {
  const auto constant_vector = [](float v) { return vdupq_n_f16(Half(v)); };
  y = maximum(y, constant_vector(-25)); // NaN stays
  const Eight rounded = y + constant_vector(1561), f = y - (rounded - constant_vector(1561));
  const Eight power = vreinterpretq_f16_u16(vshlq_n_u16(vreinterpretq_u16_f16(rounded), 10));
  const Eight root = fma(constant_vector(0.99992807f), fma(constant_vector(0.69326101f), fma(constant_vector(0.24261114f), constant_vector(0.05517155f), f), f), f);
  return root * power * constant_vector(0x1p-10f);
}

// Replaces scores [keys][8] by 2^(score - highest) and returns 1 / their sum, for each of 8 queries.
Wide softmax_weights(Half *scores, std::size_t keys) {
  Eight highest = vld1q_f16(scores);
  for (std::size_t k = 1; k < keys; ++k) highest = maximum(highest, vld1q_f16(scores + k * kLanes));
  Wide sum = all(0);
  for (std::size_t first = 0; first < keys; first += kSummed) {
    Eight partial = vdupq_n_f16(0);
    for (std::size_t k = first; k < std::min(keys, first + kSummed); ++k) {
      const Eight weight = power_of_two(vld1q_f16(scores + k * kLanes) - highest);
      vst1q_f16(scores + k * kLanes, weight);
      partial = partial + weight;
    }
    sum = sum + widen(partial);
  }
  return each(sum, [](float32x4_t s) { return vdivq_f32(vdupq_n_f32(1.0f), s); });
}

} // namespace

void attend(const HalfEncoder &stack, const HalfLayer &layer, std::size_t head, const Half *qkv, std::size_t first,
            std::size_t last, Half *mixed) {
  const std::size_t width = stack.width, inner = stack.heads * width, at = head * width;
  const std::size_t begin = first / kLanes, end = (last + kLanes - 1) / kLanes;
  const std::size_t before = first - begin * kLanes, beyond = last - begin * kLanes; // keys of this text
  const std::size_t terms = (beyond - before + kShortTerms - 1) / kShortTerms * kShortTerms, keys = before + terms;
  thread_local std::vector<Half> buffer;
  const std::size_t capacity = keys + kLanes; // the last group may reach beyond
  buffer.resize(std::max(buffer.size(), capacity * (width + kLanes) + width * kLanes));
  Half *values = buffer.data(), *scores = values + capacity * width; // [capacity][width], [capacity][8]
  Half *sums = scores + capacity * kLanes;                         // [width][8]
  const auto feature = [&](std::size_t group, std::size_t f) { return qkv + (group * layer.qkv.out + f) * kLanes; };

  for (std::size_t g = begin; g < end; ++g)
    for (std::size_t d = 0; d < width; d += 8) {
      Eight rows[8], columns[8];
      for (std::size_t i = 0; i < 8; ++i) rows[i] = vld1q_f16(feature(g, 2 * inner + at + d + i));
      transpose(rows, columns);
      for (std::size_t i = 0; i < 8; ++i) vst1q_f16(values + ((g - begin) * kLanes + i) * width + d, columns[i]);
    }
  std::fill(values + beyond * width, values + keys * width, Half(0));

  for (std::size_t g = begin; g < end; ++g) {
    for (std::size_t k = begin; k < end; ++k)
      tile_8<kShortTerms>(kZeros, feature(k, inner + at), kLanes, feature(g, at), width, scores + (k - begin) * 8 * kLanes);
    Half *text_scores = scores + before * kLanes; // the sums of a text begin with its first key
    const Wide inverse = softmax_weights(text_scores, beyond - before);
    std::fill(scores + beyond * kLanes, scores + keys * kLanes, Half(0));
    for (std::size_t d = 0; d < width; d += 8)
      tile_8<kShortTerms>(kZeros, values + before * width + d, width, text_scores, terms, sums + d * kLanes);
    Half *to = mixed + (g * layer.out.in + at) * kLanes;
    const std::size_t low = g == begin ? before : 0, high = std::min(kLanes, last - g * kLanes);
    for (std::size_t d = 0; d < width; ++d, to += kLanes) {
      const Eight result = narrow(widen(sums + d * kLanes) * inverse);
      if (high - low == kLanes) vst1q_f16(to, result);
      else {
        vst1q_f16(sums, result); // its first row is no longer needed
        std::copy(sums + low, sums + high, to + low);
      }
    }
  }
}

} // namespace ridgeline

#endif
