#include "encoder/embedding.hpp"

#include <algorithm>
#include <cmath>
#include <new>

#include "encoder/steps.hpp"

namespace ridgeline {

#if RIDGELINE_HALF
namespace {

constexpr std::size_t kTogether = 192; // words multiplied at a time: they stay in the second cache

Half *half(std::uint16_t *at) { return reinterpret_cast<Half *>(at); }

// Eight rows (value - mean) · scale · weight + bias → [features][8].
void lay_down(const float *rows, std::size_t features, const HalfGroup &by, const HalfNorm &norm, Half *to) {
  for (std::size_t f = 0; f < features; f += 8) {
    Eight from[8], turned[8];
    const Wide weight = load(norm.weight.data() + f), bias = load(norm.bias.data() + f);
    for (std::size_t i = 0; i < kLanes; ++i)
      from[i] = narrow(fma(bias, (load(rows + i * features + f) - all(by.mean[i])) * all(by.scale[i]), weight));
    turn(from, turned);
    for (std::size_t i = 0; i < 8; ++i) vst1q_f16(to + (f + i) * kLanes, turned[i]);
  }
}

float total(const float *row, std::size_t width, float off, bool squared) {
  Wide sum = all(0);
  std::size_t k = 0;
  for (; k + 8 <= width; k += 8) {
    const Wide v = load(row + k) - all(off);
    sum = squared ? fma(sum, v, v) : sum + v;
  }
  float found = vaddvq_f32(vaddq_f32(sum.low, sum.high));
  for (; k < width; ++k) found += squared ? (row[k] - off) * (row[k] - off) : row[k] - off;
  return found;
}

// Roughly the size of a number, by looking at some: a power of two, so that dividing by it loses nothing.
float size_of(const float *numbers, std::size_t count) {
  double sum = 0, seen = 0;
  for (std::size_t k = 0; k < count; k += 1 + count / 100'003, ++seen) sum += double(numbers[k]) * numbers[k];
  return std::isnormal(sum) ? float(std::exp2(std::round(std::log2(std::sqrt(sum / seen))))) : 1.0f;
}

} // namespace

HalfProducts::HalfProducts(HalfLinear by, std::vector<float> places, std::vector<float> ones, std::vector<float> other,
                           HalfTable table)
    : by_words(std::move(by)), by_places(std::move(places)), by_ones(std::move(ones)), rest(std::move(other)),
      words(table), size(size_of(words.rows, words.count * words.width)), there(words.count),
      kept(static_cast<std::uint16_t *>(std::malloc(words.count * by_words.out * sizeof(Half)))) {
  if (!kept) throw std::bad_alloc();
}

void HalfProducts::prepare(const std::int32_t *ids, std::size_t tokens, int threads) {
  const std::lock_guard<std::mutex> alone(making);
  std::vector<std::int32_t> missing;
  for (std::size_t k = 0; k < tokens; ++k)
    if (!there[std::size_t(ids[k])]) {
      there[std::size_t(ids[k])] = 1;
      missing.push_back(ids[k]);
    }
  try {
    if (!missing.empty()) make(missing, threads);
  } catch (...) {
    for (const std::int32_t word : missing) there[std::size_t(word)] = 0;
    throw;
  }
}

void HalfProducts::make(const std::vector<std::int32_t> &missing, int threads) {
  const std::size_t in = by_words.in, out = by_words.out, most = std::min(missing.size(), kTogether) + kLanes;
  const HalfNorm as_they_are{std::vector<float>(in, 1.0f), std::vector<float>(in)};
  std::vector<Half> x(most * in), y(most * out);
  for (std::size_t first = 0; first < missing.size(); first += kTogether) {
    const std::size_t count = std::min(kTogether, missing.size() - first), groups = (count + kLanes - 1) / kLanes;
    share(threads, groups, [&](std::size_t g) {
      HalfGroup group{missing.data() + first + g * kLanes, nullptr, std::min(kLanes, count - g * kLanes), {}, {}};
      std::fill(group.scale, group.scale + kLanes, 1 / size);
      std::vector<float> rows(kLanes * in);
      for (std::size_t i = 0; i < group.count; ++i)
        std::copy_n(words.row(group.words[i]), words.width, rows.data() + i * in);
      lay_down(rows.data(), in, group, as_they_are, x.data() + g * in * kLanes);
    });
    share(threads, panels(by_words), [&](std::size_t p) { product(by_words, p, x.data(), groups, Activation::none, y.data()); });
    share(threads, groups, [&](std::size_t g) {
      for (std::size_t f = 0; f < out; f += 8) {
        Eight columns[8], rows[8];
        for (std::size_t i = 0; i < 8; ++i) columns[i] = vld1q_f16(y.data() + (g * out + f + i) * kLanes);
        turn(columns, rows);
        for (std::size_t i = 0; i < std::min(kLanes, count - g * kLanes); ++i)
          vst1q_f16(half(kept.get()) + std::size_t(missing[first + g * kLanes + i]) * out + f, rows[i]);
      }
    });
  }
}

void HalfProducts::of(const HalfGroup &group, std::uint16_t *qkv) const {
  const std::size_t out = by_words.out;
  for (std::size_t f = 0; f < out; f += 8) {
    Eight rows[8] = {}, columns[8];
    const Wide ones = load(by_ones.data() + f), always = load(rest.data() + f);
    for (std::size_t i = 0; i < group.count; ++i) {
      const Wide word = widen(half(kept.get()) + std::size_t(group.words[i]) * out + f);
      const Wide place = load(by_places.data() + std::size_t(group.places[i]) * out + f);
      const Wide sum = fma(fma(place, ones, all(-group.mean[i])), word, all(size));
      rows[i] = narrow(fma(always, sum, all(group.scale[i])));
    }
    turn(rows, columns);
    for (std::size_t i = 0; i < 8; ++i) vst1q_f16(half(qkv) + (f + i) * kLanes, columns[i]);
  }
}

HalfWords::HalfWords(HalfTable of_words, HalfTable of_places, HalfNorm by, std::int64_t uncounted)
    : words(of_words), places(of_places), padding(uncounted), norm(std::move(by)) {
  const std::size_t features = up_to(norm.weight.size(), kShort);
  norm.weight.resize(features), norm.bias.resize(features);
}

void HalfWords::enter(HalfGroup group, float epsilon, std::uint16_t *x, std::uint16_t *qkv) const {
  const std::size_t features = norm.weight.size(), hidden = words.width;
  thread_local std::vector<float> rows;
  rows.assign(kLanes * features, 0.0f);
  for (std::size_t i = 0; i < group.count; ++i) {
    const float *word = words.row(group.words[i]), *place = places.row(group.places[i]);
    float *row = rows.data() + i * features;
    for (std::size_t k = 0; k < hidden; ++k) row[k] = word[k] + place[k];
    group.mean[i] = total(row, hidden, 0, false) / float(hidden);
    group.scale[i] = 1 / std::sqrt(total(row, hidden, group.mean[i], true) / float(hidden) + epsilon);
  }
  lay_down(rows.data(), features, group, norm, half(x));
  if (products) products->of(group, qkv);
}

#else // nobody makes any (bind_half.cpp)

HalfProducts::HalfProducts(HalfLinear by, std::vector<float>, std::vector<float>, std::vector<float>, HalfTable table)
    : by_words(std::move(by)), words(table) {}
void HalfProducts::prepare(const std::int32_t *, std::size_t, int) {}
void HalfProducts::of(const HalfGroup &, std::uint16_t *) const {}
HalfWords::HalfWords(HalfTable of_words, HalfTable of_places, HalfNorm by, std::int64_t uncounted)
    : words(of_words), places(of_places), padding(uncounted), norm(std::move(by)) {}
void HalfWords::enter(HalfGroup, float, std::uint16_t *, std::uint16_t *) const {}

#endif
} // namespace ridgeline
