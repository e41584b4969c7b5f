// Python face of the layers in float16: shapes are checked here, before the GIL is released.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include <stdexcept>
#include <string>
#include <vector>

#include "bind.hpp"
#include "half.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace ridgeline {
namespace {

using Rows = nb::ndarray<float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using ConstRows = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using ConstRow = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Offsets = nb::ndarray<const std::int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

void refuse_other_cpus() {
  if (!half_here()) throw std::runtime_error("this CPU has no instructions for float16");
}

Activation parse_activation(const std::string &word) {
  if (word == "relu") return Activation::relu;
  if (word == "gelu") return Activation::gelu;
  if (word == "tanh") return Activation::tanh;
  throw std::invalid_argument("no activation '" + word + "'; there are: relu, gelu, tanh");
}

HalfLinear linear(ConstRows weight, ConstRow bias, std::size_t in, std::size_t out) {
  const auto shape = [](std::size_t a, std::size_t b) { return "[" + std::to_string(a) + ", " + std::to_string(b) + "]"; };
  if (weight.shape(0) != out || weight.shape(1) != in)
    throw std::invalid_argument("a weight is " + shape(weight.shape(0), weight.shape(1)) + ", not " + shape(out, in));
  if (bias.shape(0) != out) throw std::invalid_argument("there must be one bias per row of the weight");
  return HalfLinear(weight.data(), bias.data(), in, out);
}

HalfNorm norm_of(ConstRow weight, ConstRow bias, std::size_t width) {
  if (weight.shape(0) != width || bias.shape(0) != width)
    throw std::invalid_argument("weight and bias must be as wide as the rows");
  return {{weight.data(), weight.data() + width}, {bias.data(), bias.data() + width}};
}

void make(HalfStack *at, std::size_t hidden, std::size_t heads, std::size_t width, float scale, float epsilon,
          const std::string &activation) {
  refuse_other_cpus();
  if (!hidden || !heads || !width || width % 16)
    throw std::invalid_argument("the width of a head must be a multiple of 16");
  new (at) HalfStack{hidden, heads, width, scale, epsilon, parse_activation(activation), {}};
}

void add(HalfStack &to, ConstRows qkv, ConstRow qkv_bias, ConstRows out, ConstRow out_bias, ConstRow out_norm,
         ConstRow out_norm_bias, ConstRows up, ConstRow up_bias, ConstRows down, ConstRow down_bias, ConstRow down_norm,
         ConstRow down_norm_bias) {
  const std::size_t hidden = to.hidden, mixed = to.heads * to.width, inner = up.shape(0);
  to.layers.push_back({linear(qkv, qkv_bias, hidden, 3 * mixed), linear(out, out_bias, mixed, hidden),
                       norm_of(out_norm, out_norm_bias, hidden), linear(up, up_bias, hidden, inner),
                       linear(down, down_bias, inner, hidden), norm_of(down_norm, down_norm_bias, hidden)});
}

void call(const HalfStack &stack, Rows rows, Offsets offsets, int threads) {
  if (rows.shape(1) != stack.hidden)
    throw std::invalid_argument("rows must be [tokens, " + std::to_string(stack.hidden) + "]");
  const std::size_t tokens = rows.shape(0), texts = offsets.shape(0) - 1;
  if (!offsets.shape(0) || offsets.data()[0] != 0 || std::size_t(offsets.data()[texts]) != tokens)
    throw std::invalid_argument("offsets must run from 0 to the number of tokens");
  for (std::size_t k = 0; k < texts; ++k)
    if (offsets.data()[k] > offsets.data()[k + 1]) throw std::invalid_argument("offsets must not fall");
  nb::gil_scoped_release free;
  through_layers(stack, rows.data(), offsets.data(), texts, threads);
}

void norm(Rows values, ConstRow weight, ConstRow bias, float epsilon, int threads) {
  refuse_other_cpus();
  const HalfNorm by = norm_of(weight, bias, values.shape(1));
  nb::gil_scoped_release free;
  norm_rows(values.data(), values.shape(0), values.shape(1), by.weight.data(), by.bias.data(), epsilon, threads);
}

} // namespace

void bind_half(nb::module_ &m) {
  m.def("half_here", half_here, "Whether this CPU multiplies float16, and this build knows how.");
  nb::class_<HalfStack>(m, "HalfStack", "Layers of an encoder whose factors are float16; sums of many terms are float32.")
      .def("__init__", make, "hidden"_a, "heads"_a, "width"_a, "scale"_a, "epsilon"_a, "activation"_a,
           "width: of a head, a multiple of 16; scale: of its scores; activation: relu, gelu, or tanh (gelu by it).")
      .def("add", add, "qkv"_a.noconvert(), "qkv_bias"_a.noconvert(), "out"_a.noconvert(), "out_bias"_a.noconvert(),
           "out_norm"_a.noconvert(), "out_norm_bias"_a.noconvert(), "up"_a.noconvert(), "up_bias"_a.noconvert(),
           "down"_a.noconvert(), "down_bias"_a.noconvert(), "down_norm"_a.noconvert(), "down_norm_bias"_a.noconvert(),
           "One more layer; weights are [out, in], and rounded here.")
      .def("__call__", call, "rows"_a.noconvert(), "offsets"_a.noconvert(), "threads"_a = 1,
           "rows [tokens, hidden] through all layers, in place; text k is offsets[k] to offsets[k + 1].");
  m.def("norm_rows", norm, "values"_a.noconvert(), "weight"_a.noconvert(), "bias"_a.noconvert(), "epsilon"_a,
        "threads"_a = 1, "Rows of values [n, width] with mean 0 and variance 1, times weight plus bias, in place.");
}

} // namespace ridgeline
