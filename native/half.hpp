// Products of float16 on ARM CPUs with half-precision arithmetic: sums are float16 over a few terms only, then float32.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ridgeline {

enum class Activation { none, relu, gelu };

// y [rows, out] = activation(x [rows, in] · weightᵀ + bias) + residual; x and y are float32 or float16.
struct HalfProduct {
  const void *x;
  bool x_half;
  std::size_t rows, in, out;
  const std::uint16_t *weight; // as lay_out_half left it
  const float *bias;           // [out]
  const float *residual;       // [rows, out], or nothing
  Activation activation;
  void *y;
  bool y_half;
};

// Rows [rows, width] of mean 0 and variance 1, times weight plus bias, in place.
void norm_rows(float *values, std::size_t rows, std::size_t width, const float *weight, const float *bias, float epsilon,
               int threads);

bool half_here(); // compiled in, and this CPU has the instructions
std::size_t half_size(std::size_t in, std::size_t out); // numbers in a weight that is laid out
void lay_out_half(const float *weight, std::size_t in, std::size_t out, std::uint16_t *laid); // weight [out, in]
void half_product(const HalfProduct &job, int threads);

// out [tokens, heads · width] float16 = attention of each text within itself, qkv [tokens, 3 · heads · width]; text k is
// offsets[k] to offsets[k + 1]. The width of a head is a multiple of 8.
void half_attention(const float *qkv, const std::int64_t *offsets, std::size_t texts, std::size_t heads,
                    std::size_t width, float scale, std::uint16_t *out, int threads);

} // namespace ridgeline
