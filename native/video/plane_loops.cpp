// The loops of planes.hpp that are compiled once per instruction set.
#include <vector>

#include "video/planes.hpp"

namespace ridgeline {
namespace RIDGELINE_ISA {
namespace {

using u8 = std::uint8_t;
using u16 = std::uint16_t;

// (v · scale + offset) / 255, rounded: exact in 16 bits, because all sums stay below 65,281.
inline u8 divide_by_255(u16 sum) {
  const u16 rounded = u16(sum + 128);
  return u8(u16(rounded + (rounded >> 8)) >> 8);
}
inline u8 squeeze_luma(u16 v) { return u8(divide_by_255(u16(v * 219)) + 16); }
inline u8 squeeze_chroma(u16 v) { return divide_by_255(u16(v * 224 + 31 * 128)); }

template <bool chroma, int fold_x, int fold_y>
void squeeze_rows(Plane source, std::int64_t width, std::int64_t height, OutPlane out) {
  for (std::int64_t row = 0; row < height; ++row) {
    const u8 *__restrict a = source.data + row * fold_y * source.stride;
    const u8 *__restrict b = fold_y == 2 ? a + source.stride : a;
    u8 *__restrict to = out.data + row * out.stride;
    for (std::int64_t x = 0; x < width; ++x) {
      u16 v;
      if (fold_x == 2)
        v = fold_y == 2 ? u16((a[2 * x] + a[2 * x + 1] + b[2 * x] + b[2 * x + 1] + 2) >> 2) : u16((a[2 * x] + a[2 * x + 1] + 1) >> 1);
      else
        v = fold_y == 2 ? u16((a[x] + b[x] + 1) >> 1) : u16(a[x]);
      to[x] = chroma ? squeeze_chroma(v) : squeeze_luma(v);
    }
  }
}

void squeeze(Plane source, std::int64_t width, std::int64_t height, int fold_x, int fold_y, bool chroma, OutPlane out) {
  if (!chroma) return squeeze_rows<false, 1, 1>(source, width, height, out);
  if (fold_x == 2) return fold_y == 2 ? squeeze_rows<true, 2, 2>(source, width, height, out) : squeeze_rows<true, 2, 1>(source, width, height, out);
  fold_y == 2 ? squeeze_rows<true, 1, 2>(source, width, height, out) : squeeze_rows<true, 1, 1>(source, width, height, out);
}

// BT.601 in units of 2^-16: luma of 0 … 255 to 16 … 235, chroma to 16 … 240.
constexpr int kRedY = 16829, kGreenY = 33039, kBlueY = 6416;
constexpr int kRedU = -9714, kGreenU = -19070, kBlueU = 28784;
constexpr int kRedV = 28784, kGreenV = -24103, kBlueV = -4681;

template <int bytes> void split_row(const u8 *__restrict from, std::int64_t width, u8 *__restrict a, u8 *__restrict b, u8 *__restrict c) {
  for (std::int64_t x = 0; x < width; ++x) {
    a[x] = from[bytes * x];
    b[x] = from[bytes * x + 1];
    c[x] = from[bytes * x + 2];
  }
}

void luma_row(const u8 *__restrict r, const u8 *__restrict g, const u8 *__restrict b, std::int64_t width, u8 *__restrict y) {
  for (std::int64_t x = 0; x < width; ++x)
    y[x] = u8((kRedY * r[x] + kGreenY * g[x] + kBlueY * b[x] + (16 << 16) + (1 << 15)) >> 16);
}

// The sum of 2 × 2 values for each pixel of chroma.
void fold_rows(const u8 *__restrict above, const u8 *__restrict below, std::int64_t half, u16 *__restrict sums) {
  for (std::int64_t x = 0; x < half; ++x) sums[x] = u16(above[2 * x] + above[2 * x + 1] + below[2 * x] + below[2 * x + 1]);
}

template <int red, int green, int blue>
void chroma_row(const u16 *__restrict r, const u16 *__restrict g, const u16 *__restrict b, std::int64_t half, u8 *__restrict out) {
  for (std::int64_t x = 0; x < half; ++x) out[x] = u8((red * r[x] + green * g[x] + blue * b[x] + (128 << 18) + (1 << 17)) >> 18);
}

void from_rgb(Plane source, std::int64_t width, std::int64_t height, int bytes, bool red_first, OutPlane y, OutPlane u, OutPlane v) {
  const std::int64_t half = width / 2;
  std::vector<u8> rows(std::size_t(6 * width));
  std::vector<u16> sums(std::size_t(3 * half));
  u8 *channel[2][3];
  for (int row = 0; row < 2; ++row)
    for (int k = 0; k < 3; ++k) channel[row][k] = rows.data() + (row * 3 + k) * width;
  const int red = red_first ? 0 : 2, blue = 2 - red;
  for (std::int64_t top = 0; top < height; top += 2) {
    for (int row = 0; row < 2; ++row) {
      const u8 *from = source.data + (top + row) * source.stride;
      u8 **c = channel[row];
      if (bytes == 3) split_row<3>(from, width, c[0], c[1], c[2]);
      else split_row<4>(from, width, c[0], c[1], c[2]);
      luma_row(c[red], c[1], c[blue], width, y.data + (top + row) * y.stride);
    }
    for (int k = 0; k < 3; ++k) fold_rows(channel[0][k], channel[1][k], half, sums.data() + k * half);
    const u16 *r = sums.data() + red * half, *g = sums.data() + half, *b = sums.data() + blue * half;
    chroma_row<kRedU, kGreenU, kBlueU>(r, g, b, half, u.data + top / 2 * u.stride);
    chroma_row<kRedV, kGreenV, kBlueV>(r, g, b, half, v.data + top / 2 * v.stride);
  }
}

void split_bytes(Plane source, std::int64_t width, std::int64_t height, u8 *out) {
  const std::int64_t size = width * height;
  for (std::int64_t row = 0; row < height; ++row, out += width)
    split_row<3>(source.data + row * source.stride, width, out, out + size, out + 2 * size);
}

void split_floats(Plane source, std::int64_t width, std::int64_t height, float *out) {
  const std::int64_t size = width * height;
  std::vector<u8> rows(std::size_t(3 * width));
  for (std::int64_t row = 0; row < height; ++row, out += width) {
    split_row<3>(source.data + row * source.stride, width, rows.data(), rows.data() + width, rows.data() + 2 * width);
    for (int k = 0; k < 3; ++k) {
      const u8 *__restrict from = rows.data() + k * width;
      float *__restrict to = out + k * size;
      for (std::int64_t x = 0; x < width; ++x) to[x] = float(from[x]) * (1.0f / 255);
    }
  }
}

// What chroma adds to red, green and blue, for each value of chroma in a row.
void chroma_parts(const u8 *__restrict u, const u8 *__restrict v, ColorMatrix m, std::int64_t width, std::int32_t *__restrict red,
                  std::int32_t *__restrict green, std::int32_t *__restrict blue) {
  const std::int32_t base = (1 << 15) - m.luma * m.offset;
  for (std::int64_t x = 0; x < width; ++x) {
    const std::int32_t cu = u[x] - 128, cv = v[x] - 128;
    red[x] = base + m.red_v * cv;
    green[x] = base + m.green_u * cu + m.green_v * cv;
    blue[x] = base + m.blue_u * cu;
  }
}

void double_row(const std::int32_t *__restrict from, std::int64_t half, std::int32_t *__restrict to) {
  for (std::int64_t x = 0; x < half; ++x) to[2 * x] = to[2 * x + 1] = from[x];
}

void scale_luma(const u8 *__restrict y, std::int32_t luma, std::int64_t width, std::int32_t *__restrict out) {
  for (std::int64_t x = 0; x < width; ++x) out[x] = luma * y[x];
}

inline std::int32_t to_level(std::int32_t sum) {
  const std::int32_t level = sum >> 16;
  return level < 0 ? 0 : level > 255 ? 255 : level;
}
void finish_row(const std::int32_t *__restrict luma, const std::int32_t *__restrict part, std::int64_t width, u8 *__restrict out) {
  for (std::int64_t x = 0; x < width; ++x) out[x] = u8(to_level(luma[x] + part[x]));
}
void finish_row(const std::int32_t *__restrict luma, const std::int32_t *__restrict part, std::int64_t width, float *__restrict out) {
  for (std::int64_t x = 0; x < width; ++x) out[x] = float(to_level(luma[x] + part[x])) * (1.0f / 255);
}

template <class T>
void to_channels(Plane y, Plane u, Plane v, int shift_x, int shift_y, ColorMatrix m, std::int64_t width, std::int64_t height, T *out) {
  const std::int64_t size = width * height, narrow = (width + shift_x) >> shift_x, wide = narrow << shift_x;
  std::vector<std::int32_t> rows(std::size_t(4 * wide + 3 * narrow));
  std::int32_t *luma = rows.data(), *part[3], *chroma[3];
  for (int k = 0; k < 3; ++k) {
    part[k] = luma + (k + 1) * wide;
    chroma[k] = shift_x ? luma + 4 * wide + k * narrow : part[k];
  }
  for (std::int64_t row = 0; row < height; ++row, out += width) {
    if (!shift_y || !(row & 1)) {
      const std::int64_t at = row >> shift_y;
      chroma_parts(u.data + at * u.stride, v.data + at * v.stride, m, narrow, chroma[0], chroma[1], chroma[2]);
      for (int k = 0; shift_x && k < 3; ++k) double_row(chroma[k], narrow, part[k]);
    }
    scale_luma(y.data + row * y.stride, m.luma, width, luma);
    for (int k = 0; k < 3; ++k) finish_row(luma, part[k], width, out + k * size);
  }
}

} // namespace

extern const PlaneLoops compiled_plane_loops;
const PlaneLoops compiled_plane_loops{squeeze,      from_rgb,       split_bytes,
                                    split_floats, to_channels<u8>, to_channels<float>};

} // namespace RIDGELINE_ISA
} // namespace ridgeline
