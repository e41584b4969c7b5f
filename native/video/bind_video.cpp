// Python names of video/: squeeze_plane, rgb_to_planes, split_channels and planes_to_channels.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include <cmath>
#include <stdexcept>
#include <string>

#include "bind.hpp"
#include "released_gil.hpp"
#include "video/planes.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace ridgeline {

RIDGELINE_LOOPS(PlaneLoops, compiled_plane_loops)
PlaneLoops plane_loops(Isa isa) { return select_compiled_plane_loops(isa); }

namespace {

using Bytes = nb::ndarray<const std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using OutBytes = nb::ndarray<std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

template <class B> auto check_plane(const B &bytes, std::int64_t stride, std::int64_t row, std::int64_t rows) {
  if (stride < row || row < 0 || rows < 0 || (rows > 0 && (rows - 1) * stride + row > std::int64_t(bytes.size())))
    throw std::invalid_argument("a plane is smaller than its picture");
  return bytes.data();
}

template <class T> using Channels = nb::ndarray<T, nb::shape<3, -1, -1>, nb::c_contig, nb::device::cpu>;

template <class T, class Loop> void split(const Bytes &source, std::int64_t stride, const Channels<T> &out, Loop loop) {
  const std::int64_t height = std::int64_t(out.shape(1)), width = std::int64_t(out.shape(2));
  const Plane from{check_plane(source, stride, width * 3, height), stride};
  ReleasedGil release;
  loop(from, width, height, out.data());
}

void check_fold(int fold) {
  if (fold != 1 && fold != 2) throw std::invalid_argument("a fold is 1 or 2");
}

// BT.709 or BT.601; `full`: y, u and v use all levels, as JPEG's do.
ColorMatrix build_matrix(bool bt709, bool full) {
  const double red = bt709 ? 0.2126 : 0.299, blue = bt709 ? 0.0722 : 0.114, green = 1 - red - blue;
  const double luma = full ? 1 : 255.0 / 219, chroma = full ? 1 : 255.0 / 224;
  const auto fixed = [](double value) { return std::int32_t(std::lround(value * 65536)); };
  return {fixed(luma),
          full ? 0 : 16,
          fixed(2 * (1 - red) * chroma),
          fixed(-2 * (1 - blue) * blue / green * chroma),
          fixed(-2 * (1 - red) * red / green * chroma),
          fixed(2 * (1 - blue) * chroma)};
}

template <class T, class Loop>
void convert_planes(const Bytes &y, std::int64_t y_stride, const Bytes &u, std::int64_t u_stride, const Bytes &v, std::int64_t v_stride,
                    int fold_x, int fold_y, bool bt709, bool full, const Channels<T> &out, Loop loop) {
  check_fold(fold_x);
  check_fold(fold_y);
  const std::int64_t height = std::int64_t(out.shape(1)), width = std::int64_t(out.shape(2));
  const std::int64_t half_width = (width + fold_x - 1) / fold_x, half_height = (height + fold_y - 1) / fold_y;
  const Plane luma{check_plane(y, y_stride, width, height), y_stride};
  const Plane blue{check_plane(u, u_stride, half_width, half_height), u_stride};
  const Plane red{check_plane(v, v_stride, half_width, half_height), v_stride};
  const ColorMatrix matrix = build_matrix(bt709, full);
  ReleasedGil release;
  loop(luma, blue, red, fold_x - 1, fold_y - 1, matrix, width, height, out.data());
}

} // namespace

void bind_video(nb::module_ &m) {
  m.def("squeeze_plane", [](Bytes source, std::int64_t stride, int fold_x, int fold_y, bool chroma, OutBytes out,
                            std::int64_t out_stride, std::int64_t width, std::int64_t height, const std::string &isa) {
    check_fold(fold_x);
    check_fold(fold_y);
    if (!chroma && fold_x * fold_y != 1) throw std::invalid_argument("only chroma is folded");
    const Plane from{check_plane(source, stride, width * fold_x, height * fold_y), stride};
    const OutPlane to{check_plane(out, out_stride, width, height), out_stride};
    const PlaneLoops loops = plane_loops(parse_isa(isa));
    ReleasedGil release;
    loops.squeeze(from, width, height, fold_x, fold_y, chroma, to);
  }, "source"_a.noconvert(), "stride"_a, "fold_x"_a, "fold_y"_a, "chroma"_a, "out"_a.noconvert(), "out_stride"_a, "width"_a,
    "height"_a, "isa"_a = "",
    "Write a plane of a JPEG image (levels 0 … 255) in video's range into `out` [height rows of out_stride bytes]: each value the "
    "mean of fold_x × fold_y values of the source.");
  m.def("rgb_to_planes", [](Bytes source, std::int64_t stride, int bytes, bool red_first, OutBytes y, std::int64_t y_stride, OutBytes u,
                            std::int64_t u_stride, OutBytes v, std::int64_t v_stride, std::int64_t width, std::int64_t height,
                            const std::string &isa) {
    if (bytes != 3 && bytes != 4) throw std::invalid_argument("a pixel has 3 or 4 bytes");
    if (width % 2 || height % 2) throw std::invalid_argument("width and height must be even");
    const Plane from{check_plane(source, stride, width * bytes, height), stride};
    const OutPlane luma{check_plane(y, y_stride, width, height), y_stride};
    const OutPlane blue{check_plane(u, u_stride, width / 2, height / 2), u_stride};
    const OutPlane red{check_plane(v, v_stride, width / 2, height / 2), v_stride};
    const PlaneLoops loops = plane_loops(parse_isa(isa));
    ReleasedGil release;
    loops.from_rgb(from, width, height, bytes, red_first, luma, blue, red);
  }, "source"_a.noconvert(), "stride"_a, "bytes"_a, "red_first"_a, "y"_a.noconvert(), "y_stride"_a, "u"_a.noconvert(), "u_stride"_a,
    "v"_a.noconvert(), "v_stride"_a, "width"_a, "height"_a, "isa"_a = "",
    "Write pixels of 3 or 4 bytes, red or blue first, as planes y, u, v of a video: BT.601, 4:2:0, video's range.");
  m.def("split_channels", [](Bytes source, std::int64_t stride, Channels<std::uint8_t> out, const std::string &isa) {
    split(source, stride, out, plane_loops(parse_isa(isa)).split_bytes);
  }, "source"_a.noconvert(), "stride"_a, "out"_a.noconvert(), "isa"_a = "",
    "Write the channels of rgb24 pixels to out [3, height, width]; uint8 as they are, float32 times 1 / 255.");
  m.def("split_channels", [](Bytes source, std::int64_t stride, Channels<float> out, const std::string &isa) {
    split(source, stride, out, plane_loops(parse_isa(isa)).split_floats);
  }, "source"_a.noconvert(), "stride"_a, "out"_a.noconvert(), "isa"_a = "");
  m.def("planes_to_channels", [](Bytes y, std::int64_t y_stride, Bytes u, std::int64_t u_stride, Bytes v, std::int64_t v_stride,
                                 int fold_x, int fold_y, bool bt709, bool full, Channels<std::uint8_t> out, const std::string &isa) {
    convert_planes(y, y_stride, u, u_stride, v, v_stride, fold_x, fold_y, bt709, full, out, plane_loops(parse_isa(isa)).to_bytes);
  }, "y"_a.noconvert(), "y_stride"_a, "u"_a.noconvert(), "u_stride"_a, "v"_a.noconvert(), "v_stride"_a, "fold_x"_a, "fold_y"_a,
    "bt709"_a, "full"_a, "out"_a.noconvert(), "isa"_a = "",
    "Write planes y, u, v as red, green and blue to out [3, height, width]: levels 0 … 255, or float32 times 1 / 255. A value of "
    "chroma belongs to fold_x × fold_y pixels; `full`: the planes use all levels, as JPEG's do.");
  m.def("planes_to_channels", [](Bytes y, std::int64_t y_stride, Bytes u, std::int64_t u_stride, Bytes v, std::int64_t v_stride,
                                 int fold_x, int fold_y, bool bt709, bool full, Channels<float> out, const std::string &isa) {
    convert_planes(y, y_stride, u, u_stride, v, v_stride, fold_x, fold_y, bt709, full, out, plane_loops(parse_isa(isa)).to_floats);
  }, "y"_a.noconvert(), "y_stride"_a, "u"_a.noconvert(), "u_stride"_a, "v"_a.noconvert(), "v_stride"_a, "fold_x"_a, "fold_y"_a,
    "bt709"_a, "full"_a, "out"_a.noconvert(), "isa"_a = "");
}

} // namespace ridgeline
