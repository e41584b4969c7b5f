// Products of bytes by SDOT: four products of signed bytes for each of four sums. Compiled for ARMv8.2 with dot products
// (CMakeLists.txt); int8_instructions.cpp asks the CPU first.
#include "encoder/float_loops.hpp"

#if defined(__aarch64__) && defined(__linux__)

#include <arm_neon.h>

#include <utility>

namespace ridgeline {
namespace {

template <int Rows> inline void dot_tile(const BytePanel &panel, std::size_t column, const std::uint8_t *x, const float *x_scales, std::size_t x_step, float *y, std::size_t y_step) {
  const std::int8_t *w = panel.weight + 4 * column;
  int32x4_t sums[Rows][4] = {};
  for (std::size_t k = 0; k < panel.terms; k += 16) {
    int8x16_t values[Rows];
    for (int r = 0; r < Rows; ++r) values[r] = vreinterpretq_s8_u8(veorq_u8(vld1q_u8(x + r * x_step + k), vdupq_n_u8(128))); // byte - 128
    const auto add_four = [&](auto lane) {
      int8x16_t weights[4];
      for (int v = 0; v < 4; ++v) weights[v] = vld1q_s8(w + 16 * v);
      for (int r = 0; r < Rows; ++r)
        for (int v = 0; v < 4; ++v) sums[r][v] = vdotq_laneq_s32(sums[r][v], weights[v], values[r], lane());
      w += 4 * panel.columns;
    };
    add_four(std::integral_constant<int, 0>()), add_four(std::integral_constant<int, 1>());
    add_four(std::integral_constant<int, 2>()), add_four(std::integral_constant<int, 3>());
  }
  for (int r = 0; r < Rows; ++r)
    for (int v = 0; v < 4; ++v) {
      const std::size_t at = column + 4 * v;
      const float32x4_t value = vmulq_f32(vcvtq_f32_s32(sums[r][v]), vld1q_f32(panel.scales + at));
      vst1q_f32(y + r * y_step + at, vfmaq_n_f32(vld1q_f32(panel.bias + at), value, x_scales[r]));
    }
}

} // namespace

void multiply_bytes_by_sdot(const BytePanel &panel, const std::uint8_t *x, const float *x_scales, std::size_t x_step, std::size_t rows, float *y, std::size_t y_step) {
  for (std::size_t column = 0; column < panel.columns; column += kColumns) {
    std::size_t row = 0;
    const auto tile = [&](auto count) {
      dot_tile<count()>(panel, column, x + row * x_step, x_scales + row, x_step, y + row * y_step, y_step);
      row += count();
    };
    while (row + 4 <= rows) tile(std::integral_constant<int, 4>());
    if (row + 2 <= rows) tile(std::integral_constant<int, 2>());
    if (row < rows) tile(std::integral_constant<int, 1>());
  }
}

} // namespace ridgeline

#endif
