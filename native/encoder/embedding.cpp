#include "encoder/embedding.hpp"

#include <algorithm>
#include <cmath>
#include <new>

#include "encoder/steps.hpp"

namespace ridgeline {

#if RIDGELINE_HALF
namespace {

constexpr std::size_t kWordsAtOnce = 192; // words multiplied at once: they fit the second cache

Half *half(std::uint16_t *at) { return reinterpret_cast<Half *>(at); }

// Writes eight rows (value - mean) · scale · weight + bias as [features][8].
void normalize_group(const float *rows, std::size_t features, const HalfGroup &group, const HalfNorm &norm, Half *to) {
  for (std::size_t f = 0; f < features; f += 8) {
    Eight from[8], columns_out[8];
    const Wide weight = load(norm.weight.data() + f), bias = load(norm.bias.data() + f);
    for (std::size_t i = 0; i < kLanes; ++i)
      from[i] = narrow(fma(bias, (load(rows + i * features + f) - all(group.mean[i])) * all(group.scale[i]), weight));
    transpose(from, columns_out);
    for (std::size_t i = 0; i < 8; ++i) vst1q_f16(to + (f + i) * kLanes, columns_out[i]);
  }
}

float total(const float *row, std::size_t width, float offset, bool squared) {
  Wide sum = all(0);
  std::size_t k = 0;
  for (; k + 8 <= width; k += 8) {
    const Wide v = load(row + k) - all(offset);
    sum = squared ? fma(sum, v, v) : sum + v;
  }
  float sum_all = vaddvq_f32(vaddq_f32(sum.low, sum.high));
  for (; k < width; ++k) sum_all += squared ? (row[k] - offset) * (row[k] - offset) : row[k] - offset;
  return sum_all;
}

// The approximate magnitude of the numbers, from a sample: a power of two, so that a division by it is exact.
float estimate_magnitude(const float *numbers, std::size_t count) {
  double sum = 0, samples = 0;
  for (std::size_t k = 0; k < count; k += 1 + count / 100'003, ++samples) sum += double(numbers[k]) * numbers[k];
  return std::isnormal(sum) ? float(std::exp2(std::round(std::log2(std::sqrt(sum / samples))))) : 1.0f;
}

} // namespace

HalfProducts::HalfProducts(HalfLinear factors, std::vector<float> positions, std::vector<float> ones, std::vector<float> constant,
                           HalfTable table)
    : by_words(std::move(factors)), by_positions(std::move(positions)), by_ones(std::move(ones)), rest(std::move(constant)),
      words(table), magnitude(estimate_magnitude(words.rows, words.count * words.width)), is_ready(words.count),
      products(static_cast<std::uint16_t *>(std::malloc(words.count * by_words.out * sizeof(Half)))) {
  if (!products) throw std::bad_alloc();
}

void HalfProducts::prepare(const std::int32_t *ids, std::size_t tokens, int threads) {
  const std::lock_guard<std::mutex> lock(mutex);
  std::vector<std::int32_t> missing;
  for (std::size_t k = 0; k < tokens; ++k)
    if (!is_ready[std::size_t(ids[k])]) {
      is_ready[std::size_t(ids[k])] = 1;
      missing.push_back(ids[k]);
    }
  try {
    if (!missing.empty()) multiply(missing, threads);
  } catch (...) {
    for (const std::int32_t word : missing) is_ready[std::size_t(word)] = 0;
    throw;
  }
}

void HalfProducts::multiply(const std::vector<std::int32_t> &missing, int threads) {
  const std::size_t in = by_words.in, out = by_words.out, capacity = std::min(missing.size(), kWordsAtOnce) + kLanes;
  const HalfNorm identity{std::vector<float>(in, 1.0f), std::vector<float>(in)};
  std::vector<Half> x(capacity * in), y(capacity * out);
  for (std::size_t first = 0; first < missing.size(); first += kWordsAtOnce) {
    const std::size_t count = std::min(kWordsAtOnce, missing.size() - first), groups = (count + kLanes - 1) / kLanes;
    share_pieces(threads, groups, [&](std::size_t g) {
      HalfGroup group{missing.data() + first + g * kLanes, nullptr, std::min(kLanes, count - g * kLanes), {}, {}};
      std::fill(group.scale, group.scale + kLanes, 1 / magnitude);
      std::vector<float> rows(kLanes * in);
      for (std::size_t i = 0; i < group.count; ++i)
        std::copy_n(words.row(group.words[i]), words.width, rows.data() + i * in);
      normalize_group(rows.data(), in, group, identity, x.data() + g * in * kLanes);
    });
    share_pieces(threads, panels(by_words), [&](std::size_t p) { product(by_words, p, x.data(), groups, Activation::none, y.data()); });
    share_pieces(threads, groups, [&](std::size_t g) {
      for (std::size_t f = 0; f < out; f += 8) {
        Eight columns[8], rows[8];
        for (std::size_t i = 0; i < 8; ++i) columns[i] = vld1q_f16(y.data() + (g * out + f + i) * kLanes);
        transpose(columns, rows);
        for (std::size_t i = 0; i < std::min(kLanes, count - g * kLanes); ++i)
          vst1q_f16(half(products.get()) + std::size_t(missing[first + g * kLanes + i]) * out + f, rows[i]);
      }
    });
  }
}

void HalfProducts::write_products(const HalfGroup &group, std::uint16_t *qkv) const {
  const std::size_t out = by_words.out;
  for (std::size_t f = 0; f < out; f += 8) {
    Eight rows[8] = {}, columns[8];
    const Wide ones = load(by_ones.data() + f), constant = load(rest.data() + f);
    for (std::size_t i = 0; i < group.count; ++i) {
      const Wide word = widen(half(products.get()) + std::size_t(group.words[i]) * out + f);
      const Wide position = load(by_positions.data() + std::size_t(group.positions[i]) * out + f);
      const Wide sum = fma(fma(position, ones, all(-group.mean[i])), word, all(magnitude));
      rows[i] = narrow(fma(constant, sum, all(group.scale[i])));
    }
    transpose(rows, columns);
    for (std::size_t i = 0; i < 8; ++i) vst1q_f16(half(qkv) + (f + i) * kLanes, columns[i]);
  }
}

HalfEmbedding::HalfEmbedding(HalfTable word_table, HalfTable position_table, HalfNorm embedding_norm, std::int64_t padding_word)
    : words(word_table), positions(position_table), padding(padding_word), norm(std::move(embedding_norm)) {
  const std::size_t features = up_to(norm.weight.size(), kShort);
  norm.weight.resize(features), norm.bias.resize(features);
}

void HalfEmbedding::embed(HalfGroup group, float epsilon, std::uint16_t *x, std::uint16_t *qkv) const {
  const std::size_t features = norm.weight.size(), hidden = words.width;
  thread_local std::vector<float> rows;
  rows.assign(kLanes * features, 0.0f);
  for (std::size_t i = 0; i < group.count; ++i) {
    const float *word = words.row(group.words[i]), *position = positions.row(group.positions[i]);
    float *row = rows.data() + i * features;
    for (std::size_t k = 0; k < hidden; ++k) row[k] = word[k] + position[k];
    group.mean[i] = total(row, hidden, 0, false) / float(hidden);
    group.scale[i] = 1 / std::sqrt(total(row, hidden, group.mean[i], true) / float(hidden) + epsilon);
  }
  normalize_group(rows.data(), features, group, norm, half(x));
  if (products) products->write_products(group, qkv);
}

#else // bind_encoder.cpp creates none

HalfProducts::HalfProducts(HalfLinear factors, std::vector<float>, std::vector<float>, std::vector<float>, HalfTable table)
    : by_words(std::move(factors)), words(table) {}
void HalfProducts::prepare(const std::int32_t *, std::size_t, int) {}
void HalfProducts::write_products(const HalfGroup &, std::uint16_t *) const {}
HalfEmbedding::HalfEmbedding(HalfTable word_table, HalfTable position_table, HalfNorm embedding_norm, std::int64_t padding_word)
    : words(word_table), positions(position_table), padding(padding_word), norm(std::move(embedding_norm)) {}
void HalfEmbedding::embed(HalfGroup, float, std::uint16_t *, std::uint16_t *) const {}

#endif
} // namespace ridgeline
