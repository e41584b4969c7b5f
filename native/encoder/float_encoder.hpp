// The layers of a BERT-like text encoder in one native call, for CPUs without arithmetic in 16 bits: products in float32, or
// in 8 bits with float32 everywhere else.
//
// What: rows of x go through all layers; weights lie in panels of 64 columns (float_loops.hpp). In 8 bits each row of x has
// a scale of its own and so has each output, so a text has the same bits in any batch, in both kinds.
// Why: with torch half of the time of one text is spent between the products (calls, threads, layouts).
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "encoder/float_loops.hpp"

namespace ridgeline {

// y = x · weightᵀ + bias; weight [out, in], both multiples of kColumns.
struct FloatLinear {
  FloatLinear(const float *weight, const float *bias, std::size_t in, std::size_t out, bool in_bytes);
  std::size_t in, out;
  std::vector<float> weight; // float32: [panel][in][columns]
  std::vector<float> bias;
  std::vector<std::int8_t> bytes; // 8 bits: [panel][in / 4][columns][4], `in` padded to kTermMultiple
  std::vector<float> scales;
  std::vector<std::int32_t> sums; // 128 times the sum of an output's weights
};

struct FloatNorm {
  std::vector<float> weight, bias;
};

struct FloatLayer {
  FloatLinear qkv, out;
  FloatNorm out_norm;
  FloatLinear up, down;
  FloatNorm down_norm;
};

struct FloatTable { // rows that the caller keeps
  const float *rows = nullptr;
  std::size_t count = 0;
};

struct FloatEncoder {
  std::size_t hidden, heads, width; // the width of a head is a multiple of kColumns
  float scale, epsilon;             // of the scores (queries are multiplied by scale · log2 e); of the norms
  Activation activation;
  bool in_bytes;
  Isa isa;
  Int8Instructions int8; // for in_bytes
  FloatTable words, positions;
  FloatNorm norm;
  std::int64_t padding = -1; // RoBERTa: the token that is not counted
  std::vector<FloatLayer> layers;
};

// Runs ids through all layers and writes rows [tokens, hidden]; text k is offsets[k] to offsets[k + 1].
void encode(const FloatEncoder &encoder, const std::int32_t *ids, const std::int64_t *offsets, std::size_t texts, int threads, float *rows);

} // namespace ridgeline
