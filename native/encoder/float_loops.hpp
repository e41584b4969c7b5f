// The loops of the float32 encoder (float_encoder.hpp), compiled once per instruction set.
//
// A product multiplies rows of x with a panel of weights: [terms][columns] float32, or for 8 bits [terms / 4][columns][4]. A
// tile of 6 × 64 sums stays in registers; every sum adds its terms in order, so a row has the same bits in any batch.
#pragma once

#include <cstddef>
#include <cstdint>

#include "encoder/activation.hpp"
#include "encoder/int8_instructions.hpp"
#include "threads/instruction_set.hpp"

namespace ridgeline {

constexpr std::size_t kPanel = 64; // columns; the last panel of a weight may be narrower, by multiples of kColumns
constexpr std::size_t kColumns = 16;
constexpr std::size_t kTermMultiple = 64; // terms in 8 bits are padded to a multiple, rows of x to a multiple of kColumns

struct FloatPanel { // weight [terms][step], of which `columns` are multiplied; bias may be null
  const float *weight;
  std::size_t terms, columns, step;
  const float *bias;
};

struct BytePanel { // weight [terms / 4][columns][4], padded with zeros; `sums` is 128 times the sum of a column's weights
  const std::int8_t *weight;
  std::size_t terms, columns;
  const float *scales, *bias;
  const std::int32_t *sums;
};

struct EncoderLoops {
  // y[rows][columns] = activation(x[rows][terms] · weight + bias); rows of x and y are x_step and y_step apart.
  void (*multiply)(const FloatPanel &, const float *x, std::size_t x_step, std::size_t rows, Activation, float *y, std::size_t y_step);
  // The same for x of bytes, value = (byte - 128) · x_scales[row]; the padding of x may have any value.
  void (*multiply_bytes)(Int8Instructions, const BytePanel &, const std::uint8_t *x, const float *x_scales, std::size_t x_step, std::size_t rows, Activation, float *y, std::size_t y_step);
  // One row in 8 bits; returns its scale.
  float (*quantize)(const float *x, std::size_t count, std::uint8_t *to);
  // x = norm(x + sum); x and sum [width].
  void (*add_norm)(const float *sum, const float *weight, const float *bias, std::size_t width, float epsilon, float *x);
  // Weights of attention: row = 2^(row - max) / their sum; zeros from `count` to `padded`.
  void (*softmax)(float *row, std::size_t count, std::size_t padded);
};

RIDGELINE_LOOPS(EncoderLoops, encoder_loops)

#if defined(__aarch64__) && defined(__linux__)
void multiply_bytes_by_sdot(const BytePanel &, const std::uint8_t *x, const float *x_scales, std::size_t x_step, std::size_t rows, float *y, std::size_t y_step);
#endif

} // namespace ridgeline
