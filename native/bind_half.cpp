// Python face of the products in float16: shapes and types are checked here, before the GIL is released.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <cmath>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "bind.hpp"
#include "half.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace ridgeline {
namespace {

using Any = nb::ndarray<nb::numpy, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using ConstAny = nb::ndarray<nb::numpy, nb::ro, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Rows = nb::ndarray<float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using ConstRows = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using ConstRow = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

bool is_half(nb::dlpack::dtype type, const char *name) {
  if (type.code != std::uint8_t(nb::dlpack::dtype_code::Float) || type.lanes != 1 || (type.bits != 16 && type.bits != 32))
    throw std::invalid_argument(std::string(name) + " must be float32 or float16");
  return type.bits == 16;
}

Activation parse_activation(const std::string &word) {
  if (word == "none") return Activation::none;
  if (word == "relu") return Activation::relu;
  if (word == "gelu") return Activation::gelu;
  throw std::invalid_argument("no activation '" + word + "'; there are: none, relu, gelu");
}

// A linear layer; its weight is rounded and laid out once.
class HalfLinear {
public:
  HalfLinear(ConstRows weight, ConstRow bias) : out_(weight.shape(0)), in_(weight.shape(1)) {
    if (!half_here()) throw std::runtime_error("this CPU has no instructions for float16");
    if (bias.shape(0) != out_) throw std::invalid_argument("there must be one bias per row of the weight");
    bias_.assign(bias.data(), bias.data() + out_);
    laid_.resize(half_size(in_, out_));
    lay_out_half(weight.data(), in_, out_, laid_.data());
  }

  void call(ConstAny x, Any y, std::optional<ConstRows> residual, const std::string &activation, int threads) const {
    const std::size_t rows = x.shape(0);
    if (x.shape(1) != in_ || y.shape(0) != rows || y.shape(1) != out_)
      throw std::invalid_argument("x must be [rows, in], y [rows, out]");
    if (residual && (residual->shape(0) != rows || residual->shape(1) != out_))
      throw std::invalid_argument("the residual must have the shape of y");
    const HalfProduct job{x.data(), is_half(x.dtype(), "x"), rows, in_, out_, laid_.data(), bias_.data(),
                          residual ? residual->data() : nullptr, parse_activation(activation),
                          y.data(), is_half(y.dtype(), "y")};
    nb::gil_scoped_release free;
    half_product(job, threads);
  }

  std::size_t out() const { return out_; }

private:
  std::size_t out_, in_;
  std::vector<float> bias_;
  std::vector<std::uint16_t> laid_;
};

using Offsets = nb::ndarray<const std::int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

void norm(Rows values, ConstRow weight, ConstRow bias, float epsilon, int threads) {
  if (!half_here()) throw std::runtime_error("this CPU has no instructions for float16");
  const std::size_t width = values.shape(1);
  if (weight.shape(0) != width || bias.shape(0) != width)
    throw std::invalid_argument("weight and bias must be as wide as the rows");
  nb::gil_scoped_release free;
  norm_rows(values.data(), values.shape(0), width, weight.data(), bias.data(), epsilon, threads);
}

void attention(ConstRows qkv, Offsets offsets, Any out, std::size_t heads, int threads) {
  const std::size_t tokens = qkv.shape(0), hidden = out.shape(1);
  if (!half_here()) throw std::runtime_error("this CPU has no instructions for float16");
  if (!is_half(out.dtype(), "out")) throw std::invalid_argument("out must be float16");
  if (out.shape(0) != tokens || qkv.shape(1) != 3 * hidden)
    throw std::invalid_argument("qkv must be [tokens, 3 · hidden], out [tokens, hidden]");
  if (!heads || !hidden || hidden % heads || hidden / heads % 8)
    throw std::invalid_argument("the width of a head must be a multiple of 8");
  const std::size_t texts = offsets.shape(0) - 1;
  if (!offsets.shape(0) || offsets.data()[0] != 0 || std::size_t(offsets.data()[texts]) != tokens)
    throw std::invalid_argument("offsets must run from 0 to the number of tokens");
  for (std::size_t k = 0; k < texts; ++k)
    if (offsets.data()[k] > offsets.data()[k + 1]) throw std::invalid_argument("offsets must not fall");
  const std::size_t width = hidden / heads;
  nb::gil_scoped_release free;
  half_attention(qkv.data(), offsets.data(), texts, heads, width, 1 / std::sqrt(float(width)),
                 static_cast<std::uint16_t *>(out.data()), threads);
}

} // namespace

void bind_half(nb::module_ &m) {
  m.def("half_here", half_here, "Whether this CPU multiplies float16, and this build knows how.");
  nb::class_<HalfLinear>(m, "HalfLinear", "A linear layer whose factors are float16; sums of many terms are float32.")
      .def(nb::init<ConstRows, ConstRow>(), "weight"_a.noconvert(), "bias"_a.noconvert())
      .def("__call__", &HalfLinear::call, "x"_a.noconvert(), "y"_a.noconvert(), "residual"_a.noconvert() = nb::none(),
           "activation"_a = "none", "threads"_a = 1,
           "y [rows, out] = activation(x [rows, in] · weightᵀ + bias) + residual; x and y are float32 or float16.")
      .def_prop_ro("out", &HalfLinear::out, "Columns of y.");
  m.def("norm_rows", norm, "values"_a.noconvert(), "weight"_a.noconvert(), "bias"_a.noconvert(), "epsilon"_a,
        "threads"_a = 1, "Rows of values [n, width] with mean 0 and variance 1, times weight plus bias, in place.");
  m.def("half_attention", attention, "qkv"_a.noconvert(), "offsets"_a.noconvert(), "out"_a.noconvert(), "heads"_a,
        "threads"_a = 1,
        "out [tokens, hidden] float16: attention of each text within itself, from qkv [tokens, 3 · hidden] float32; "
        "text k is offsets[k] to offsets[k + 1].");
}

} // namespace ridgeline
