// The embedding of a token: the row of its word plus the row of its position, normalized.
//
// The first layer's queries, keys and values are W·x + b of such an x, and a norm is linear except for two numbers:
// x = γ·(word + position - μ)/σ + β. With V = W·γ they are (V·word + V·position - μ·V·1)/σ + W·β + b, and V·word depends
// on the word alone. So each word is multiplied once and its products are cached: with six layers that saves 1/24 of the
// cost of a token.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <vector>

#include "encoder/encoder.hpp"

namespace ridgeline {

// [count, width]; the caller owns the memory.
struct HalfTable {
  const float *rows;
  std::size_t count, width;
  const float *row(std::int32_t k) const { return rows + std::size_t(k) * width; }
};

// A group of up to eight tokens: for each token the word, the position, and the norm of their sum.
struct HalfGroup {
  const std::int32_t *words;
  const std::int32_t *positions;
  std::size_t count;
  float mean[8], scale[8]; // (value - mean) · scale
};

// The products of the words that have occurred. One caller at a time computes the missing ones, with several threads.
class HalfProducts {
public:
  HalfProducts(HalfLinear by_words, std::vector<float> by_positions, std::vector<float> by_ones, std::vector<float> rest,
               HalfTable words);

  void prepare(const std::int32_t *ids, std::size_t tokens, int threads);
  void write_products(const HalfGroup &group, std::uint16_t *qkv) const; // [out][8]
  std::size_t out() const { return by_words.out; }

private:
  struct Free {
    void operator()(void *memory) const { std::free(memory); }
  };
  void multiply(const std::vector<std::int32_t> &missing, int threads);

  HalfLinear by_words;                         // V, without a bias
  std::vector<float> by_positions, by_ones, rest; // V·position [positions, out], V·1, W·β + b
  HalfTable words;
  float magnitude; // the words are divided by it, because float16 has few digits for small numbers
  std::mutex mutex;
  std::vector<std::uint8_t> is_ready;             // by word
  std::unique_ptr<std::uint16_t[], Free> products; // [words, out]; pages that are not written take no memory
};

class HalfEmbedding {
public:
  HalfEmbedding(HalfTable words, HalfTable positions, HalfNorm norm, std::int64_t padding);

  // One group: x [features][8] and, where products are cached, the first layer's qkv [out][8].
  void embed(HalfGroup group, float epsilon, std::uint16_t *x, std::uint16_t *qkv) const;

  const HalfTable words, positions;
  const std::int64_t padding; // a word that is not counted, and the position before the first; -1: positions begin with 0
  std::unique_ptr<HalfProducts> products; // or null, where they would take too much memory

private:
  HalfNorm norm; // padded with zeros
};

} // namespace ridgeline
