// An encoder's layers in float16 on ARM CPUs with half-precision arithmetic. Factors are float16, sums only over a few
// terms (half_tile.hpp), then float32.
//
// Between the steps numbers lie as tiles want them: eight tokens side by side, [tokens / 8][features][8] float16, the
// features a multiple of 32. Every step reads and leaves them so; nothing is turned around in between.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

// Set in the files that are compiled for these instructions (CMakeLists.txt); the others see declarations only.
#if defined(__aarch64__) && defined(__linux__) && defined(__ARM_FEATURE_FP16_VECTOR_ARITHMETIC)
#define RIDGELINE_HALF 1
#endif

namespace ridgeline {

enum class Activation { none, relu, gelu, tanh }; // tanh: gelu by the tanh formula

// y = x · weightᵀ + bias. The weight is laid out as [out / 12][in][12], zeros up to whole tiles.
struct HalfLinear {
  HalfLinear(const float *weight, const float *bias, std::size_t in, std::size_t out); // weight [out, in]
  std::size_t in, out;                                                                 // multiples of 32
  std::vector<std::uint16_t> weight, bias;
};

struct HalfNorm {
  std::vector<float> weight, bias; // as many as there are features
};

struct HalfLayer {
  HalfLinear qkv, out;
  HalfNorm out_norm;
  HalfLinear up, down;
  HalfNorm down_norm;
};

class HalfWords; // half_words.hpp

struct HalfStack {
  std::size_t hidden, heads, width; // the width of a head is a multiple of 16
  float scale, epsilon;             // of queries: a score is the binary logarithm of a share; of norms
  Activation activation;
  std::vector<HalfLayer> layers;
  std::shared_ptr<HalfWords> words; // what tokens are before the first layer
};

bool half_here(); // compiled in, and this CPU has the instructions

// ids [tokens] → rows [tokens, hidden], after all layers; text k is offsets[k] to offsets[k + 1].
void through_layers(const HalfStack &stack, const std::int32_t *ids, const std::int64_t *offsets, std::size_t texts,
                    int threads, float *rows);

} // namespace ridgeline
