// Planes of a picture in video's range, for the encoder: luma 16 … 235, chroma 16 … 240 (BT.601, 4:2:0).
//
// What: levels 0 … 255 of JPEG's planes, or RGB, become video's; chroma is the mean of the pixels that share it. Results are
// rounded to the nearest level.
// Why: FFmpeg's swscale goes through 15 bits and a general scaler, and takes the chroma of RGB from fewer pixels. A JPEG
// image of 640 × 480 takes 0.35 ms of CPU time instead of 0.98, an rgb8 one 0.62 instead of 1.53, and chroma of RGB is off by
// 0.29 levels (rms) instead of 3.2 (records/two-xeon-cores-trajectory-cameras.txt).
// The way back, for a loader: planes of a decoded frame become channels in the memory of a batch, in one pass.
#pragma once

#include <cstdint>

#include "threads/instruction_set.hpp"

namespace ridgeline {

struct Plane {
  const std::uint8_t *data;
  std::int64_t stride; // bytes from row to row
};
struct OutPlane {
  std::uint8_t *data;
  std::int64_t stride;
};

// red = luma · (y − offset) + red_v · (v − 128), and so on, in units of 2^-16.
struct ColorMatrix {
  std::int32_t luma, offset, red_v, green_u, green_v, blue_u;
};

struct PlaneLoops {
  // out [height, width]: luma or chroma of JPEG, each the mean of fold_x × fold_y source values (1 or 2 each).
  void (*squeeze)(Plane source, std::int64_t width, std::int64_t height, int fold_x, int fold_y, bool chroma, OutPlane out);
  // Pixels of 3 or 4 bytes, red first or blue first; width and height are even.
  void (*from_rgb)(Plane source, std::int64_t width, std::int64_t height, int bytes, bool red_first, OutPlane y, OutPlane u,
                   OutPlane v);
  // out [3, height, width]: the channels of rgb24 pixels, as they are or times 1 / 255.
  void (*split_bytes)(Plane source, std::int64_t width, std::int64_t height, std::uint8_t *out);
  void (*split_floats)(Plane source, std::int64_t width, std::int64_t height, float *out);
  // out [3, height, width]: red, green and blue of planes y, u, v, as levels 0 … 255 or times 1 / 255. A value of chroma belongs
  // to 2^shift_x × 2^shift_y pixels.
  void (*to_bytes)(Plane y, Plane u, Plane v, int shift_x, int shift_y, ColorMatrix matrix, std::int64_t width, std::int64_t height,
                   std::uint8_t *out);
  void (*to_floats)(Plane y, Plane u, Plane v, int shift_x, int shift_y, ColorMatrix matrix, std::int64_t width, std::int64_t height,
                    float *out);
};

PlaneLoops plane_loops(Isa isa);

} // namespace ridgeline
