// What a token is before the first layer: its word's row of one table plus its place's row of another, normed.
//
// The first layer's queries, keys and values are W·x + b of such an x, and a norm is linear but for two numbers:
// x = γ·(word + place - μ)/σ + β. With V = W·γ they are (V·word + V·place - μ·V·1)/σ + W·β + b, and the first of these
// depends on the word alone. So a word is multiplied when it first occurs, and its products are kept: with six layers a
// twenty-fourth of all that a token costs.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <vector>

#include "encoder/encoder.hpp"

namespace ridgeline {

// [count, width], somebody else's who keeps it.
struct HalfTable {
  const float *rows;
  std::size_t count, width;
  const float *row(std::int32_t k) const { return rows + std::size_t(k) * width; }
};

// One group of up to eight tokens, by token: the word, the place, and the norm of their sum.
struct HalfGroup {
  const std::int32_t *words;
  const std::int32_t *places;
  std::size_t count;
  float mean[8], scale[8]; // (value - mean) · scale
};

// The products of the words that have occurred. One caller at a time makes those that are missing, by several threads.
class HalfProducts {
public:
  HalfProducts(HalfLinear by_words, std::vector<float> by_places, std::vector<float> by_ones, std::vector<float> rest,
               HalfTable words);

  void prepare(const std::int32_t *ids, std::size_t tokens, int threads);
  void of(const HalfGroup &group, std::uint16_t *qkv) const; // [out][8]
  std::size_t out() const { return by_words.out; }

private:
  struct Free {
    void operator()(void *memory) const { std::free(memory); }
  };
  void make(const std::vector<std::int32_t> &missing, int threads);

  HalfLinear by_words;                         // V, without a bias
  std::vector<float> by_places, by_ones, rest; // V·place [places, out], V·1, W·β + b
  HalfTable words;
  float size; // words are divided by it: float16 has few digits for small numbers
  std::mutex making;
  std::vector<std::uint8_t> there;             // by word
  std::unique_ptr<std::uint16_t[], Free> kept; // [words, out]; what is not written takes no memory
};

class HalfWords {
public:
  HalfWords(HalfTable words, HalfTable places, HalfNorm norm, std::int64_t padding);

  // One group: x [features][8] and, where products are kept, the first layer's qkv [out][8].
  void enter(HalfGroup group, float epsilon, std::uint16_t *x, std::uint16_t *qkv) const;

  const HalfTable words, places;
  const std::int64_t padding; // a word that is not counted, and the place before the first; -1: places begin with 0
  std::unique_ptr<HalfProducts> products; // or none, where they would take too much memory

private:
  HalfNorm norm; // of whole features, zeros behind
};

} // namespace ridgeline
