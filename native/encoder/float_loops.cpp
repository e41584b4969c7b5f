#include "encoder/float_loops.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "encoder/int8_tiles.hpp"

namespace ridgeline {
namespace RIDGELINE_ISA {
namespace {

#if defined(__AVX512F__)
constexpr std::size_t kWidth = 16;
constexpr int kVectors = 4; // of a tile
#elif defined(__AVX2__)
constexpr std::size_t kWidth = 8;
constexpr int kVectors = 2;
#else
constexpr std::size_t kWidth = 4;
constexpr int kVectors = 2;
#endif
constexpr std::size_t kAhead = 16; // terms between a fetch and its use; the hardware alone fetches too late
constexpr int kRows = 6; // kRows · kVectors sums hide the latency of the products and fit into the registers
using V = float __attribute__((vector_size(4 * kWidth)));
using I = std::int32_t __attribute__((vector_size(4 * kWidth)));

inline V load(const float *at) {
  V v;
  std::memcpy(&v, at, sizeof v);
  return v;
}
inline void store(float *at, V v) { std::memcpy(at, &v, sizeof v); }
inline V all(float x) { return V{} + x; }
inline V choose(I mask, V yes, V no) { return mask ? yes : no; }
inline V maximum(V a, V b) { return choose(b > a, b, a); } // NaN in a stays, as in minimum
inline V minimum(V a, V b) { return choose(b < a, b, a); }
// Combines the numbers of a vector by halves: one after the other, each step would wait for the one before.
template <class Combine> inline float combine(V v, const Combine &combine_two) {
  float parts[kWidth];
  store(parts, v);
  for (std::size_t half = kWidth / 2; half; half /= 2)
    for (std::size_t i = 0; i < half; ++i) parts[i] = combine_two(parts[i], parts[i + half]);
  return parts[0];
}
inline float add_up(V v) {
  return combine(v, [](float a, float b) { return a + b; });
}
inline float find_largest(V v) { // of numbers; which NaN it finds is left open
  return combine(v, [](float a, float b) { return a < b ? b : a; });
}

// 2ˣ for lowest ≤ x ≤ 126, relative error below 1e-7: 2ⁿ · 2^f with |f| ≤ ½. NaN stays NaN.
inline V power_of_two(V power, float lowest = -126) {
  const V x = maximum(minimum(power, all(126)), all(lowest));
  constexpr float kRound = 12582912; // 1.5 · 2^23: adding it rounds to a whole number
  const V n = (x + kRound) - kRound, f = x - n;
  V p = all(1.5353362e-4f);
  for (const float c : {1.3398874e-3f, 9.6184373e-3f, 5.5503324e-2f, 0.24022650f, 0.69314718f, 1.0f}) p = p * f + c;
  return choose(power == power, V(I(p) + (__builtin_convertvector(n, I) << 23)), power);
}

constexpr float kLog2 = 1.44269504f; // of e

// 1 / x by an estimate and one step of Newton, which the CPU does beside other products, unlike a division.
inline V invert(V x) {
  V guess;
#if defined(__AVX512F__)
  asm("vrcp14ps %1, %0" : "=v"(guess) : "v"(x)); // GCC 12 warns about its own header of intrinsics
#elif defined(__AVX2__)
  asm("vrcpps %1, %0" : "=x"(guess) : "x"(x));
#else
  guess = 1.0f / x;
#endif
  return guess * (2.0f - x * guess);
}

// x · Φ(x), absolute error below 5e-7 for |x| ≤ 8; the error function by Abramowitz and Stegun 7.1.26. The lowest power keeps
// the products away from denormal numbers, which are a hundred times slower.
inline V gelu(V x) {
  const V s = x * 0.70710678f, a = maximum(s, -s), t = invert(a * 0.3275911f + 1.0f);
  V p = all(1.061405429f);
  for (const float c : {-1.453152027f, 1.421413741f, -0.284496736f, 0.254829592f}) p = p * t + c;
  const V tail = p * t * power_of_two(-a * a * kLog2, -100) * 0.5f; // Φ(-|x|)
  return x * choose(x > 0.0f, 1.0f - tail, tail);
}

// x · σ(2u), u = √(2/π) · (x + 0.044715 x³).
inline V gelu_by_tanh(V x) {
  const V u = x * (x * x * 0.044715f + 1.0f) * (2 * 0.79788456f * kLog2);
  return x * invert(power_of_two(-u) + 1.0f);
}

inline V activate(V x, Activation kind) {
  switch (kind) {
  case Activation::relu: return choose(x < 0.0f, all(0), x);
  case Activation::gelu: return gelu(x);
  case Activation::tanh: return gelu_by_tanh(x);
  default: return x;
  }
}

template <int Rows, int Vectors>
inline void float_tile(const FloatPanel &panel, std::size_t column, const float *x, std::size_t x_step, float *y, std::size_t y_step) {
  const float *w = panel.weight + column;
  V sums[Rows][Vectors] = {};
  for (std::size_t k = 0; k < panel.terms; ++k, w += panel.step) {
    V weights[Vectors];
#pragma GCC unroll 8
    for (int v = 0; v < Vectors; ++v) {
      weights[v] = load(w + v * kWidth);
      __builtin_prefetch(w + kAhead * panel.step + v * kWidth);
    }
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r) {
      const float factor = x[r * x_step + k];
#pragma GCC unroll 8
      for (int v = 0; v < Vectors; ++v) sums[r][v] += weights[v] * factor;
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 8
    for (int v = 0; v < Vectors; ++v) {
      const std::size_t at = column + v * kWidth;
      store(y + r * y_step + at, panel.bias ? sums[r][v] + load(panel.bias + at) : sums[r][v]);
    }
}

// Calls tile(rows, vectors, row, column) for tiles of at most kRows × kVectors that cover rows × columns.
template <class Tile> inline void cover(std::size_t rows, std::size_t columns, const Tile &tile) {
  using std::integral_constant;
  for (std::size_t column = 0; column < columns;) {
    const std::size_t vectors = std::min<std::size_t>(kVectors, (columns - column) / kWidth);
    const auto at_rows = [&](auto count, std::size_t row) {
      if (vectors == kVectors) return tile(count, integral_constant<int, kVectors>(), row, column);
      if (vectors == 3) return tile(count, integral_constant<int, 3>(), row, column);
      if (vectors == 2) return tile(count, integral_constant<int, 2>(), row, column);
      tile(count, integral_constant<int, 1>(), row, column);
    };
    std::size_t row = 0;
    for (; row + kRows <= rows; row += kRows) at_rows(integral_constant<int, kRows>(), row);
    if (row + 4 <= rows) at_rows(integral_constant<int, 4>(), row), row += 4;
    if (row + 2 <= rows) at_rows(integral_constant<int, 2>(), row), row += 2;
    if (row < rows) at_rows(integral_constant<int, 1>(), row);
    column += vectors * kWidth;
  }
}

void apply(Activation kind, std::size_t rows, std::size_t columns, float *y, std::size_t y_step) {
  if (kind == Activation::none) return;
  for (std::size_t r = 0; r < rows; ++r)
    for (std::size_t c = 0; c < columns; c += kWidth) store(y + r * y_step + c, activate(load(y + r * y_step + c), kind));
}

void multiply(const FloatPanel &panel, const float *x, std::size_t x_step, std::size_t rows, Activation kind, float *y, std::size_t y_step) {
  cover(rows, panel.columns, [&](auto count, auto vectors, std::size_t row, std::size_t column) {
    float_tile<count(), vectors()>(panel, column, x + row * x_step, x_step, y + row * y_step, y_step);
    apply(kind, count(), vectors() * kWidth, y + row * y_step + column, y_step);
  });
}

#if defined(__AVX2__)
// value = (sum - 128 · weights) · scale of the column · scale of the row + bias
inline void write_sums(const BytePanel &panel, std::size_t column, I sums, float x_scale, float *y) {
  I unsigned_part;
  std::memcpy(&unsigned_part, panel.sums + column, sizeof unsigned_part);
  const V value = __builtin_convertvector(sums - unsigned_part, V);
  store(y + column, value * load(panel.scales + column) * x_scale + load(panel.bias + column));
}

// Adds to each sum the products of four unsigned and four signed bytes; nothing saturates. In assembler, because compilers
// keep the sums of the intrinsic in memory, and because this file is compiled without VNNI.
template <Int8Instructions By> inline void add_products(I &sum, I four, I weights) {
  if constexpr (By == Int8Instructions::avx_vnni) asm("%{vex%} vpdpbusd %2, %1, %0" : "+x"(sum) : "x"(four), "x"(weights));
  else asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(four), "v"(weights));
}

template <Int8Instructions By, int Rows, int Vectors>
inline void byte_tile(const BytePanel &panel, std::size_t column, const std::uint8_t *x, const float *x_scales, std::size_t x_step, float *y,
                      std::size_t y_step) {
  const std::int8_t *w = panel.weight + 4 * column;
  I sums[Rows][Vectors] = {};
  for (std::size_t k = 0; k < panel.terms; k += 4, w += 4 * panel.columns) {
    I weights[Vectors];
#pragma GCC unroll 8
    for (int v = 0; v < Vectors; ++v) {
      std::memcpy(&weights[v], w + 4 * kWidth * v, sizeof(I));
      __builtin_prefetch(w + 4 * kAhead * panel.columns + 4 * kWidth * v);
    }
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r) {
      std::int32_t four;
      std::memcpy(&four, x + r * x_step + k, 4);
      const I factor = I{} + four;
#pragma GCC unroll 8
      for (int v = 0; v < Vectors; ++v) add_products<By>(sums[r][v], factor, weights[v]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 8
    for (int v = 0; v < Vectors; ++v) write_sums(panel, column + v * kWidth, sums[r][v], x_scales[r], y + r * y_step);
}

template <Int8Instructions By>
void multiply_bytes_by_vnni(const BytePanel &panel, const std::uint8_t *x, const float *x_scales, std::size_t x_step, std::size_t rows, Activation kind,
                            float *y, std::size_t y_step) {
  cover(rows, panel.columns, [&](auto count, auto vectors, std::size_t row, std::size_t column) {
    byte_tile<By, count(), vectors()>(panel, column, x + row * x_step, x_scales + row, x_step, y + row * y_step, y_step);
    apply(kind, count(), vectors() * kWidth, y + row * y_step + column, y_step);
  });
}
#endif

#if defined(__AVX512F__)
struct AmxTiles { // in assembler, because this file is compiled without AMX
  static void configure(const TileConfig &config) { asm volatile("ldtilecfg %0" : : "m"(config)); }
  static void release() { asm volatile("tilerelease"); }
  template <int Tile> static void zero() { asm volatile("tilezero %%tmm%c0" : : "i"(Tile)); }
  template <int Tile> static void load(const void *from, std::size_t step) {
    asm volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(from), "r"(step), "i"(Tile) : "memory");
  }
  template <int Sums, int X, int Weights> static void multiply() { // unsigned bytes of X by signed ones
    asm volatile("tdpbusd %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(Sums), "i"(X), "i"(Weights));
  }
  template <int Tile> static void store(void *to, std::size_t step) {
    asm volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(to), "r"(step), "i"(Tile) : "memory");
  }
};

void multiply_bytes_by_amx(const BytePanel &panel, const std::uint8_t *x, const float *x_scales, std::size_t x_step, std::size_t rows, Activation kind,
                           float *y, std::size_t y_step) {
  cover_with_tiles<AmxTiles>(panel, x, x_step, rows, [&](std::size_t row, std::size_t column, std::size_t height, std::size_t width, const std::int32_t *sums) {
    for (std::size_t r = 0; r < height; ++r)
      for (std::size_t c = 0; c < width; c += kWidth) {
        I part;
        std::memcpy(&part, sums + r * width + c, sizeof part);
        write_sums(panel, column + c, part, x_scales[row + r], y + (row + r) * y_step);
      }
    apply(kind, height, width, y + row * y_step + column, y_step);
  });
}
#endif

void multiply_bytes_plainly(const BytePanel &panel, const std::uint8_t *x, const float *x_scales, std::size_t x_step, std::size_t rows, float *y,
                            std::size_t y_step) {
  for (std::size_t r = 0; r < rows; ++r) {
    std::int32_t sums[kPanel];
    for (std::size_t c = 0; c < panel.columns; ++c) sums[c] = -panel.sums[c];
    const std::int8_t *w = panel.weight;
    for (std::size_t k = 0; k < panel.terms; k += 4, w += 4 * panel.columns) {
      const std::uint8_t *four = x + r * x_step + k;
      for (std::size_t c = 0; c < panel.columns; ++c)
        sums[c] += four[0] * w[4 * c] + four[1] * w[4 * c + 1] + four[2] * w[4 * c + 2] + four[3] * w[4 * c + 3];
    }
    for (std::size_t c = 0; c < panel.columns; ++c) y[r * y_step + c] = std::fma(float(sums[c]) * panel.scales[c], x_scales[r], panel.bias[c]);
  }
}

void multiply_bytes(Int8Instructions by, const BytePanel &panel, const std::uint8_t *x, const float *x_scales, std::size_t x_step, std::size_t rows,
                    Activation kind, float *y, std::size_t y_step) {
#if defined(__AVX512F__)
  if (by == Int8Instructions::amx) return multiply_bytes_by_amx(panel, x, x_scales, x_step, rows, kind, y, y_step);
#elif defined(__AVX2__)
  if (by == Int8Instructions::avx_vnni) return multiply_bytes_by_vnni<Int8Instructions::avx_vnni>(panel, x, x_scales, x_step, rows, kind, y, y_step);
#endif
#if defined(__AVX2__)
  if (by == Int8Instructions::vnni) return multiply_bytes_by_vnni<Int8Instructions::vnni>(panel, x, x_scales, x_step, rows, kind, y, y_step);
#endif
#if defined(__aarch64__) && defined(__linux__)
  if (by == Int8Instructions::sdot) multiply_bytes_by_sdot(panel, x, x_scales, x_step, rows, y, y_step);
  else
#endif
    multiply_bytes_plainly(panel, x, x_scales, x_step, rows, y, y_step);
  (void)by;
  apply(kind, rows, panel.columns, y, y_step);
}

float quantize(const float *x, std::size_t count, std::uint8_t *to) {
  V most = all(0), zeros = all(0);
  for (std::size_t i = 0; i < count; i += kWidth) {
    const V v = load(x + i);
    most = maximum(most, maximum(v, -v));
    zeros += v * 0.0f;
  }
  const float largest = find_largest(most);
  if (add_up(zeros) != 0) { // NaN or infinity: the whole row becomes NaN
    std::fill(to, to + count, std::uint8_t(128));
    return NAN;
  }
  const float per_step = largest > 0 ? 127 / largest : 0;
  for (std::size_t i = 0; i < count; i += kWidth) {
    const V scaled = load(x + i) * per_step;
    const I steps = __builtin_convertvector((scaled + 12582912.0f) - 12582912.0f, I) + 128;
    for (std::size_t k = 0; k < kWidth; ++k) to[i + k] = std::uint8_t(steps[k]);
  }
  return largest / 127;
}

void add_norm(const float *sum, const float *weight, const float *bias, std::size_t width, float epsilon, float *x) {
  V total = all(0);
  for (std::size_t f = 0; f < width; f += kWidth) {
    const V v = load(x + f) + load(sum + f);
    store(x + f, v);
    total += v;
  }
  const float mean = add_up(total) / float(width);
  V squares = all(0);
  for (std::size_t f = 0; f < width; f += kWidth) {
    const V v = load(x + f) - mean;
    squares += v * v;
  }
  const float scale = 1 / std::sqrt(add_up(squares) / float(width) + epsilon);
  for (std::size_t f = 0; f < width; f += kWidth)
    store(x + f, (load(x + f) - mean) * scale * load(weight + f) + load(bias + f));
}

void softmax(float *row, std::size_t count, std::size_t padded) {
  for (std::size_t k = count; k < padded; ++k) row[k] = -INFINITY;
  V largest = load(row);
  for (std::size_t k = kWidth; k < padded; k += kWidth) largest = maximum(largest, load(row + k));
  const float most = find_largest(largest);
  V sums = all(0);
  for (std::size_t k = 0; k < padded; k += kWidth) {
    const V v = load(row + k) - most, e = choose(v < -125.0f, all(0), power_of_two(v));
    store(row + k, e);
    sums += e;
  }
  const float scale = 1 / add_up(sums);
  for (std::size_t k = 0; k < padded; k += kWidth) store(row + k, load(row + k) * scale);
}

} // namespace

extern const EncoderLoops encoder_loops{multiply, multiply_bytes, quantize, add_norm, softmax};

} // namespace RIDGELINE_ISA
} // namespace ridgeline
