// Python face of the layers in float16: shapes are checked here, before the GIL is released.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <stdexcept>
#include <string>
#include <vector>

#include "bind.hpp"
#include "encoder/encoder.hpp"
#include "encoder/embedding.hpp"
#include "encoder/rows.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace ridgeline {
namespace {

using Rows = nb::ndarray<float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using ConstRows = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using ConstRow = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Ids = nb::ndarray<const std::int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
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

void fit(ConstRows weight, ConstRow bias, std::size_t in, std::size_t out) {
  const auto shape = [](std::size_t a, std::size_t b) { return "[" + std::to_string(a) + ", " + std::to_string(b) + "]"; };
  if (weight.shape(0) != out || weight.shape(1) != in)
    throw std::invalid_argument("a weight is " + shape(weight.shape(0), weight.shape(1)) + ", not " + shape(out, in));
  if (bias.shape(0) != out) throw std::invalid_argument("there must be one bias per row of the weight");
}

HalfLinear linear(ConstRows weight, ConstRow bias, std::size_t in, std::size_t out) {
  fit(weight, bias, in, out);
  return HalfLinear(weight.data(), bias.data(), in, out);
}

// Rows of queries, keys and values, the queries scaled: the first third. Zeros up to so much room for a row.
std::vector<float> scaled(const float *from, std::size_t rows, std::size_t width, float scale, std::size_t room) {
  std::vector<float> to(rows * room);
  for (std::size_t r = 0; r < rows; ++r, from += width)
    for (std::size_t k = 0; k < width; ++k) to[r * room + k] = k < width / 3 ? from[k] * scale : from[k];
  return to;
}

HalfLinear linear_scaled(ConstRows weight, ConstRow bias, std::size_t in, std::size_t out, float scale) {
  fit(weight, bias, in, out);
  return HalfLinear(scaled(weight.data(), 1, out * in, scale, out * in).data(),
                    scaled(bias.data(), 1, out, scale, out).data(), in, out);
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
  constexpr float kLog2 = 1.44269504f; // of e
  new (at) HalfStack{hidden, heads, width, scale * kLog2, epsilon, parse_activation(activation), {}, {}};
}

void add(HalfStack &to, ConstRows qkv, ConstRow qkv_bias, ConstRows out, ConstRow out_bias, ConstRow out_norm,
         ConstRow out_norm_bias, ConstRows up, ConstRow up_bias, ConstRows down, ConstRow down_bias, ConstRow down_norm,
         ConstRow down_norm_bias) {
  const std::size_t hidden = to.hidden, mixed = to.heads * to.width, inner = up.shape(0);
  to.layers.push_back({linear_scaled(qkv, qkv_bias, hidden, 3 * mixed, to.scale), linear(out, out_bias, mixed, hidden),
                       norm_of(out_norm, out_norm_bias, hidden), linear(up, up_bias, hidden, inner),
                       linear(down, down_bias, inner, hidden), norm_of(down_norm, down_norm_bias, hidden)});
}

HalfTable table(ConstRows of, std::size_t width) {
  if (of.shape(1) != width || !of.shape(0))
    throw std::invalid_argument("a table must be [rows, " + std::to_string(width) + "]");
  return {of.data(), of.shape(0), width};
}

void begin(HalfStack &stack, ConstRows words, ConstRows places, ConstRow weight, ConstRow bias, std::int64_t padding) {
  if (padding < -1 || padding >= std::int64_t(places.shape(0))) throw std::invalid_argument("padding is no place");
  stack.words = std::make_shared<HalfWords>(table(words, stack.hidden), table(places, stack.hidden),
                                            norm_of(weight, bias, stack.hidden), padding);
}

void keep(HalfStack &stack, ConstRows factors, ConstRows by_places, ConstRow by_ones, ConstRow rest) {
  const std::size_t out = 3 * stack.heads * stack.width, count = by_places.shape(0);
  if (!stack.words) throw std::invalid_argument("there are no tables yet; begin with them");
  if (count != stack.words->places.count || by_places.shape(1) != out || by_ones.shape(0) != out)
    throw std::invalid_argument("products must be as wide as the factors have rows, one for each place");
  HalfLinear by_words = linear_scaled(factors, rest, stack.hidden, out, stack.scale);
  std::fill(by_words.bias.begin(), by_words.bias.end(), 0);
  const auto all = [&](const float *from, std::size_t rows) { return scaled(from, rows, out, stack.scale, by_words.out); };
  auto places = all(by_places.data(), count), ones = all(by_ones.data(), 1), others = all(rest.data(), 1);
  stack.words->products = std::make_unique<HalfProducts>(std::move(by_words), std::move(places), std::move(ones),
                                                         std::move(others), stack.words->words);
}

void fit(const HalfStack &stack, Ids ids, Offsets offsets, Rows rows, std::size_t count) {
  if (!stack.words) throw std::invalid_argument("there are no tables yet; begin with them");
  const std::size_t tokens = ids.shape(0), texts = offsets.shape(0) - 1;
  if (rows.shape(0) != count || rows.shape(1) != stack.hidden)
    throw std::invalid_argument("rows must be [" + std::to_string(count) + ", " + std::to_string(stack.hidden) + "]");
  if (!offsets.shape(0) || offsets.data()[0] != 0 || std::size_t(offsets.data()[texts]) != tokens)
    throw std::invalid_argument("offsets must run from 0 to the number of tokens");
  const std::int64_t most = std::int64_t(stack.words->places.count) - stack.words->padding - 1;
  for (std::size_t k = 0; k < texts; ++k) {
    const std::int64_t length = offsets.data()[k + 1] - offsets.data()[k];
    if (length < 0) throw std::invalid_argument("offsets must not fall");
    if (length > most) throw std::invalid_argument("text " + std::to_string(k) + " has more tokens than there are places");
  }
  for (std::size_t k = 0; k < tokens; ++k)
    if (ids.data()[k] < 0 || std::size_t(ids.data()[k]) >= stack.words->words.count)
      throw std::invalid_argument("token " + std::to_string(ids.data()[k]) + " is no row of the words");
}

void call(const HalfStack &stack, Ids ids, Offsets offsets, Rows rows, int threads) {
  fit(stack, ids, offsets, rows, ids.shape(0));
  nb::gil_scoped_release release;
  through_layers(stack, ids.data(), offsets.data(), offsets.shape(0) - 1, threads, rows.data());
}

void means(const HalfStack &stack, Ids ids, Offsets offsets, Rows to, bool unit, int threads) {
  const std::size_t texts = offsets.shape(0) - 1;
  fit(stack, ids, offsets, to, texts);
  nb::gil_scoped_release release;
  std::vector<float> rows(ids.shape(0) * stack.hidden);
  through_layers(stack, ids.data(), offsets.data(), texts, threads, rows.data());
  mean_rows(rows.data(), offsets.data(), texts, stack.hidden, unit, to.data(), threads);
}

} // namespace

void bind_encoder(nb::module_ &m) {
  m.def("half_here", half_here, "Whether this CPU multiplies float16, and this build knows how.");
  nb::class_<HalfStack>(m, "HalfStack", "Layers of an encoder whose factors are float16; sums of many terms are float32.")
      .def("__init__", make, "hidden"_a, "heads"_a, "width"_a, "scale"_a, "epsilon"_a, "activation"_a,
           "width: of a head, a multiple of 16; scale: of its scores; activation: relu, gelu, or tanh (gelu by it).")
      .def("add", add, "qkv"_a.noconvert(), "qkv_bias"_a.noconvert(), "out"_a.noconvert(), "out_bias"_a.noconvert(),
           "out_norm"_a.noconvert(), "out_norm_bias"_a.noconvert(), "up"_a.noconvert(), "up_bias"_a.noconvert(),
           "down"_a.noconvert(), "down_bias"_a.noconvert(), "down_norm"_a.noconvert(), "down_norm_bias"_a.noconvert(),
           "One more layer; weights are [out, in], and rounded here.")
      .def("begin", begin, "words"_a.noconvert(), "places"_a.noconvert(), "norm"_a.noconvert(), "norm_bias"_a.noconvert(),
           "padding"_a = -1, nb::keep_alive<1, 2>(), nb::keep_alive<1, 3>(),
           "What a token is: a row of words plus one of places, normed. padding: a word that is not counted, as in RoBERTa.")
      .def("keep", keep, "factors"_a.noconvert(), "by_places"_a.noconvert(), "by_ones"_a.noconvert(), "rest"_a.noconvert(),
           "Keep each word's product with the first layer's factors (the norm's weight within). by_places: the places' own,\n"
           "by_ones: those of a row of ones; rest: what does not depend on the token.")
      .def("__call__", call, "ids"_a.noconvert(), "offsets"_a.noconvert(), "rows"_a.noconvert(), "threads"_a = 1,
           "ids [tokens] → rows [tokens, hidden], after all layers; text k is offsets[k] to offsets[k + 1].")
      .def("means", means, "ids"_a.noconvert(), "offsets"_a.noconvert(), "to"_a.noconvert(), "unit"_a, "threads"_a = 1,
           "ids [tokens] → the mean of each text's rows [texts, hidden], of unit length if asked.");
}

} // namespace ridgeline
