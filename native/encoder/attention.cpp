// Attention of short texts: one head of one text at a time, eight queries against all keys.
//
// Queries and keys are taken in the groups of eight tokens in which they lie. A text's first and last group may hold
// tokens of its neighbours: those get no share, and as queries they are not written.
#include "encoder/steps.hpp"

#if RIDGELINE_HALF

#include <vector>

namespace ridgeline {
namespace {

constexpr int kFew = 16;            // terms: a head is at most some dozens wide
constexpr std::size_t kSummed = 8; // shares in float16, then float32

// 2ʸ for y ≤ 0, off by less than 6e-4 of it, and nothing below 2^-24: 2ⁿ · 2^f with |f| ≤ ½, by a polynomial. Adding
// 1561 = 1536 + 25 rounds to a whole number and leaves n + 25 in the lowest bits, which are the exponent of 2^(n + 10).
inline Eight power_of_two(Eight y) {
  const auto same = [](float v) { return vdupq_n_f16(Half(v)); };
  y = most(y, same(-25)); // NaN stays
  const Eight whole = y + same(1561), f = y - (whole - same(1561));
  const Eight power = vreinterpretq_f16_u16(vshlq_n_u16(vreinterpretq_u16_f16(whole), 10));
  const Eight root = fma(same(0.99992807f), fma(same(0.69326101f), fma(same(0.24261114f), same(0.05517155f), f), f), f);
  return root * power * same(0x1p-10f);
}

// Scores [keys][8] → 2^(score - highest), and 1 / their sum, for each of 8 queries.
Wide shares(Half *scores, std::size_t keys) {
  Eight highest = vld1q_f16(scores);
  for (std::size_t k = 1; k < keys; ++k) highest = most(highest, vld1q_f16(scores + k * kLanes));
  Wide sum = all(0);
  for (std::size_t first = 0; first < keys; first += kSummed) {
    Eight some = vdupq_n_f16(0);
    for (std::size_t k = first; k < std::min(keys, first + kSummed); ++k) {
      const Eight share = power_of_two(vld1q_f16(scores + k * kLanes) - highest);
      vst1q_f16(scores + k * kLanes, share);
      some = some + share;
    }
    sum = sum + widen(some);
  }
  return each(sum, [](float32x4_t s) { return vdivq_f32(vdupq_n_f32(1.0f), s); });
}

} // namespace

void attend(const HalfStack &stack, const HalfLayer &layer, std::size_t head, const Half *qkv, std::size_t first,
            std::size_t last, Half *mixed) {
  const std::size_t width = stack.width, inner = stack.heads * width, at = head * width;
  const std::size_t begin = first / kLanes, end = (last + kLanes - 1) / kLanes;
  const std::size_t before = first - begin * kLanes, beyond = last - begin * kLanes; // keys of this text
  const std::size_t terms = (beyond - before + kFew - 1) / kFew * kFew, keys = before + terms;
  thread_local std::vector<Half> room;
  const std::size_t most = keys + kLanes; // the last group may reach beyond
  room.resize(std::max(room.size(), most * (width + kLanes) + width * kLanes));
  Half *values = room.data(), *scores = values + most * width; // [most][width], [most][8]
  Half *sums = scores + most * kLanes;                         // [width][8]
  const auto feature = [&](std::size_t group, std::size_t f) { return qkv + (group * layer.qkv.out + f) * kLanes; };

  for (std::size_t g = begin; g < end; ++g)
    for (std::size_t d = 0; d < width; d += 8) {
      Eight rows[8], columns[8];
      for (std::size_t i = 0; i < 8; ++i) rows[i] = vld1q_f16(feature(g, 2 * inner + at + d + i));
      turn(rows, columns);
      for (std::size_t i = 0; i < 8; ++i) vst1q_f16(values + ((g - begin) * kLanes + i) * width + d, columns[i]);
    }
  std::fill(values + beyond * width, values + keys * width, Half(0));

  for (std::size_t g = begin; g < end; ++g) {
    for (std::size_t k = begin; k < end; ++k)
      tile_8<kFew>(kNothing, feature(k, inner + at), kLanes, feature(g, at), width, scores + (k - begin) * 8 * kLanes);
    Half *mine = scores + before * kLanes; // a text's sums begin with its first key, wherever it lies
    const Wide inverse = shares(mine, beyond - before);
    std::fill(scores + beyond * kLanes, scores + keys * kLanes, Half(0));
    for (std::size_t d = 0; d < width; d += 8)
      tile_8<kFew>(kNothing, values + before * width + d, width, mine, terms, sums + d * kLanes);
    Half *to = mixed + (g * layer.out.in + at) * kLanes;
    const std::size_t low = g == begin ? before : 0, high = std::min(kLanes, last - g * kLanes);
    for (std::size_t d = 0; d < width; ++d, to += kLanes) {
      const Eight found = narrow(widen(sums + d * kLanes) * inverse);
      if (high - low == kLanes) vst1q_f16(to, found);
      else {
        vst1q_f16(sums, found); // its first row has been read
        std::copy(sums + low, sums + high, to + low);
      }
    }
  }
}

} // namespace ridgeline

#endif
