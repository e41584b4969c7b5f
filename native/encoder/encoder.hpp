// The layers of a text encoder in float16, for ARM CPUs with half-precision arithmetic. Factors are float16. Sums are
// float16 over a few terms (tile.hpp) and float32 beyond.
//
// All steps share one layout: groups of eight tokens, [tokens / 8][features][8] float16, the features padded to a multiple
// of 32. No step transposes its input.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "encoder/activation.hpp"

// Defined in files that are compiled for these instructions (CMakeLists.txt); other files see declarations only.
#if defined(__aarch64__) && defined(__linux__) && defined(__ARM_FEATURE_FP16_VECTOR_ARITHMETIC)
#define RIDGELINE_HALF 1
#endif

namespace ridgeline {

// y = x · weightᵀ + bias. The layout of the weight is [out / 12][in][12], padded with zeros.
struct HalfLinear {
  HalfLinear(const float *weight, const float *bias, std::size_t in, std::size_t out); // weight [out, in]
  std::size_t in, out;                                                                 // multiples of 32
  std::vector<std::uint16_t> weight, bias;
};

struct HalfNorm {
  std::vector<float> weight, bias; // [features]
};

struct HalfLayer {
  HalfLinear qkv, out;
  HalfNorm out_norm;
  HalfLinear up, down;
  HalfNorm down_norm;
};

class HalfEmbedding; // embedding.hpp

struct HalfEncoder {
  std::size_t hidden, heads, width; // the width of a head is a multiple of 16
  float scale, epsilon;             // scale of the queries (a score is the base-2 logarithm of a weight); epsilon of the norms
  Activation activation;
  std::vector<HalfLayer> layers;
  std::shared_ptr<HalfEmbedding> embedding; // of the tokens, before the first layer
};

bool half_supported(); // compiled in, and this CPU has the instructions

// Runs ids [tokens] through all layers and writes rows [tokens, hidden]; text k is offsets[k] to offsets[k + 1].
void encode(const HalfEncoder &stack, const std::int32_t *ids, const std::int64_t *offsets, std::size_t texts,
                    int threads, float *rows);

} // namespace ridgeline
