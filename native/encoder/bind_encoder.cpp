// Python classes of encoder/: they check shapes before they release the GIL.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <stdexcept>
#include <string>
#include <vector>

#include "bind.hpp"
#include "encoder/encoder.hpp"
#include "encoder/embedding.hpp"
#include "encoder/float_encoder.hpp"
#include "encoder/rows.hpp"
#include "released_gil.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace ridgeline {
namespace {

using Rows = nb::ndarray<float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using ConstRows = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using ConstRow = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Ids = nb::ndarray<const std::int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Offsets = nb::ndarray<const std::int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

void check_cpu() {
  if (!half_supported()) throw std::runtime_error("this CPU has no instructions for float16");
}

Activation parse_activation(const std::string &word) {
  if (word == "relu") return Activation::relu;
  if (word == "gelu") return Activation::gelu;
  if (word == "tanh") return Activation::tanh;
  throw std::invalid_argument("no activation '" + word + "'; there are: relu, gelu, tanh");
}

void check_shapes(ConstRows weight, ConstRow bias, std::size_t in, std::size_t out) {
  const auto shape = [](std::size_t a, std::size_t b) { return "[" + std::to_string(a) + ", " + std::to_string(b) + "]"; };
  if (weight.shape(0) != out || weight.shape(1) != in)
    throw std::invalid_argument("a weight is " + shape(weight.shape(0), weight.shape(1)) + ", not " + shape(out, in));
  if (bias.shape(0) != out) throw std::invalid_argument("there must be one bias per row of the weight");
}

HalfLinear linear(ConstRows weight, ConstRow bias, std::size_t in, std::size_t out) {
  check_shapes(weight, bias, in, out);
  return HalfLinear(weight.data(), bias.data(), in, out);
}

// Rows of queries, keys and values, with the queries (the first third) scaled. Each row is padded with zeros to `padded`.
std::vector<float> scale_queries(const float *from, std::size_t rows, std::size_t width, float scale, std::size_t padded) {
  std::vector<float> to(rows * padded);
  for (std::size_t r = 0; r < rows; ++r, from += width)
    for (std::size_t k = 0; k < width; ++k) to[r * padded + k] = k < width / 3 ? from[k] * scale : from[k];
  return to;
}

HalfLinear linear_scaled(ConstRows weight, ConstRow bias, std::size_t in, std::size_t out, float scale) {
  check_shapes(weight, bias, in, out);
  return HalfLinear(scale_queries(weight.data(), 1, out * in, scale, out * in).data(),
                    scale_queries(bias.data(), 1, out, scale, out).data(), in, out);
}

HalfNorm make_norm(ConstRow weight, ConstRow bias, std::size_t width) {
  if (weight.shape(0) != width || bias.shape(0) != width)
    throw std::invalid_argument("weight and bias must be as wide as the rows");
  return {{weight.data(), weight.data() + width}, {bias.data(), bias.data() + width}};
}

void construct(HalfEncoder *at, std::size_t hidden, std::size_t heads, std::size_t width, float scale, float epsilon,
          const std::string &activation) {
  check_cpu();
  if (!hidden || !heads || !width || width % 16)
    throw std::invalid_argument("the width of a head must be a multiple of 16");
  constexpr float kLog2 = 1.44269504f; // of e
  new (at) HalfEncoder{hidden, heads, width, scale * kLog2, epsilon, parse_activation(activation), {}, {}};
}

void add(HalfEncoder &to, ConstRows qkv, ConstRow qkv_bias, ConstRows out, ConstRow out_bias, ConstRow out_norm,
         ConstRow out_norm_bias, ConstRows up, ConstRow up_bias, ConstRows down, ConstRow down_bias, ConstRow down_norm,
         ConstRow down_norm_bias) {
  const std::size_t hidden = to.hidden, mixed = to.heads * to.width, inner = up.shape(0);
  to.layers.push_back({linear_scaled(qkv, qkv_bias, hidden, 3 * mixed, to.scale), linear(out, out_bias, mixed, hidden),
                       make_norm(out_norm, out_norm_bias, hidden), linear(up, up_bias, hidden, inner),
                       linear(down, down_bias, inner, hidden), make_norm(down_norm, down_norm_bias, hidden)});
}

HalfTable table(ConstRows rows, std::size_t width) {
  if (rows.shape(1) != width || !rows.shape(0))
    throw std::invalid_argument("a table must be [rows, " + std::to_string(width) + "]");
  return {rows.data(), rows.shape(0), width};
}

void set_embedding(HalfEncoder &stack, ConstRows words, ConstRows positions, ConstRow weight, ConstRow bias, std::int64_t padding) {
  if (padding < -1 || padding >= std::int64_t(positions.shape(0))) throw std::invalid_argument("padding is not a position");
  stack.embedding = std::make_shared<HalfEmbedding>(table(words, stack.hidden), table(positions, stack.hidden),
                                            make_norm(weight, bias, stack.hidden), padding);
}

void cache_products(HalfEncoder &stack, ConstRows factors, ConstRows by_positions, ConstRow by_ones, ConstRow rest) {
  const std::size_t out = 3 * stack.heads * stack.width, count = by_positions.shape(0);
  if (!stack.embedding) throw std::invalid_argument("there are no tables yet; call set_embedding first");
  if (count != stack.embedding->positions.count || by_positions.shape(1) != out || by_ones.shape(0) != out)
    throw std::invalid_argument("products must be as wide as the factors have rows, one for each position");
  HalfLinear by_words = linear_scaled(factors, rest, stack.hidden, out, stack.scale);
  std::fill(by_words.bias.begin(), by_words.bias.end(), 0);
  const auto all = [&](const float *from, std::size_t rows) { return scale_queries(from, rows, out, stack.scale, by_words.out); };
  auto positions = all(by_positions.data(), count), ones = all(by_ones.data(), 1), constants = all(rest.data(), 1);
  stack.embedding->products = std::make_unique<HalfProducts>(std::move(by_words), std::move(positions), std::move(ones),
                                                         std::move(constants), stack.embedding->words);
}

void check_shapes(std::size_t hidden, std::size_t words, std::size_t positions, std::int64_t padding, Ids ids, Offsets offsets, Rows rows, std::size_t count) {
  if (!words) throw std::invalid_argument("there are no tables yet; call set_embedding first");
  if (rows.shape(0) != count || rows.shape(1) != hidden)
    throw std::invalid_argument("rows must be [" + std::to_string(count) + ", " + std::to_string(hidden) + "]");
  const std::size_t tokens = ids.shape(0), texts = offsets.shape(0) - 1;
  if (!offsets.shape(0) || offsets.data()[0] != 0 || std::size_t(offsets.data()[texts]) != tokens)
    throw std::invalid_argument("offsets must run from 0 to the number of tokens");
  const std::int64_t most = std::int64_t(positions) - padding - 1;
  for (std::size_t k = 0; k < texts; ++k) {
    const std::int64_t length = offsets.data()[k + 1] - offsets.data()[k];
    if (length < 0) throw std::invalid_argument("offsets must not decrease");
    if (length > most) throw std::invalid_argument("text " + std::to_string(k) + " has more tokens than there are positions");
  }
  for (std::size_t k = 0; k < tokens; ++k)
    if (ids.data()[k] < 0 || std::size_t(ids.data()[k]) >= words)
      throw std::invalid_argument("token " + std::to_string(ids.data()[k]) + " is not a row of words");
}

void check_shapes(const HalfEncoder &stack, Ids ids, Offsets offsets, Rows rows, std::size_t count) {
  const auto &embedding = stack.embedding;
  check_shapes(stack.hidden, embedding ? embedding->words.count : 0, embedding ? embedding->positions.count : 0, embedding ? embedding->padding : -1,
               ids, offsets, rows, count);
}

void check_shapes(const FloatEncoder &stack, Ids ids, Offsets offsets, Rows rows, std::size_t count) {
  check_shapes(stack.hidden, stack.words.count, stack.positions.count, stack.padding, ids, offsets, rows, count);
}

template <class Encoder> void call(const Encoder &stack, Ids ids, Offsets offsets, Rows rows, int threads) {
  check_shapes(stack, ids, offsets, rows, ids.shape(0));
  ReleasedGil release;
  encode(stack, ids.data(), offsets.data(), offsets.shape(0) - 1, threads, rows.data());
}

template <class Encoder> void encode_means(const Encoder &stack, Ids ids, Offsets offsets, Rows to, bool unit, int threads) {
  const std::size_t texts = offsets.shape(0) - 1;
  check_shapes(stack, ids, offsets, to, texts);
  ReleasedGil release;
  std::vector<float> rows(ids.shape(0) * stack.hidden);
  encode(stack, ids.data(), offsets.data(), texts, threads, rows.data());
  mean_rows(rows.data(), offsets.data(), texts, stack.hidden, unit, to.data(), threads);
}

std::vector<std::string> list_int8(const std::string &isa) {
  std::vector<std::string> names;
  for (const Int8Instructions one : supported_int8(parse_isa(isa))) names.push_back(name(one));
  return names;
}

FloatNorm float_norm(ConstRow weight, ConstRow bias, std::size_t width) {
  HalfNorm norm = make_norm(weight, bias, width);
  return {std::move(norm.weight), std::move(norm.bias)};
}

FloatLinear float_linear(ConstRows weight, ConstRow bias, std::size_t in, std::size_t out, bool in_bytes) {
  check_shapes(weight, bias, in, out);
  return FloatLinear(weight.data(), bias.data(), in, out, in_bytes);
}

void construct_float(FloatEncoder *at, std::size_t hidden, std::size_t heads, std::size_t width, float scale, float epsilon,
                     const std::string &activation, bool in_bytes, const std::string &isa, const std::string &int8) {
  if (!hidden || hidden % kColumns || !heads || !width || width % kColumns)
    throw std::invalid_argument("hidden and the width of a head must be multiples of 16");
  const Isa set = parse_isa(isa);
  new (at) FloatEncoder{hidden, heads, width, scale, epsilon, parse_activation(activation), in_bytes, set, parse_int8(int8, set), {}, {}, {}, -1, {}};
}

void add_float(FloatEncoder &to, ConstRows qkv, ConstRow qkv_bias, ConstRows out, ConstRow out_bias, ConstRow out_norm, ConstRow out_norm_bias,
               ConstRows up, ConstRow up_bias, ConstRows down, ConstRow down_bias, ConstRow down_norm, ConstRow down_norm_bias) {
  constexpr float kLog2 = 1.44269504f; // of e
  const std::size_t hidden = to.hidden, mixed = to.heads * to.width, inner = up.shape(0);
  if (inner % kColumns) throw std::invalid_argument("the width of the MLP must be a multiple of 16");
  check_shapes(qkv, qkv_bias, hidden, 3 * mixed);
  const std::vector<float> factors = scale_queries(qkv.data(), 1, 3 * mixed * hidden, to.scale * kLog2, 3 * mixed * hidden);
  const std::vector<float> biases = scale_queries(qkv_bias.data(), 1, 3 * mixed, to.scale * kLog2, 3 * mixed);
  to.layers.push_back({FloatLinear(factors.data(), biases.data(), hidden, 3 * mixed, to.in_bytes), float_linear(out, out_bias, mixed, hidden, to.in_bytes),
                       float_norm(out_norm, out_norm_bias, hidden), float_linear(up, up_bias, hidden, inner, to.in_bytes),
                       float_linear(down, down_bias, inner, hidden, to.in_bytes), float_norm(down_norm, down_norm_bias, hidden)});
}

void set_float_embedding(FloatEncoder &stack, ConstRows words, ConstRows positions, ConstRow weight, ConstRow bias, std::int64_t padding) {
  if (padding < -1 || padding >= std::int64_t(positions.shape(0))) throw std::invalid_argument("padding is not a position");
  table(words, stack.hidden), table(positions, stack.hidden); // their shapes are right
  stack.norm = float_norm(weight, bias, stack.hidden);
  stack.words = {words.data(), words.shape(0)}, stack.positions = {positions.data(), positions.shape(0)}, stack.padding = padding;
}

} // namespace

void bind_encoder(nb::module_ &m) {
  m.def("half_supported", half_supported, "Whether this CPU and this build can compute in float16.");
  nb::class_<HalfEncoder>(m, "HalfEncoder", "Layers of an encoder with factors in float16 and long sums in float32.")
      .def("__init__", construct, "hidden"_a, "heads"_a, "width"_a, "scale"_a, "epsilon"_a, "activation"_a,
           "width: of a head, a multiple of 16; scale: of the scores; activation: relu, gelu or tanh (gelu by its tanh formula).")
      .def("add", add, "qkv"_a.noconvert(), "qkv_bias"_a.noconvert(), "out"_a.noconvert(), "out_bias"_a.noconvert(),
           "out_norm"_a.noconvert(), "out_norm_bias"_a.noconvert(), "up"_a.noconvert(), "up_bias"_a.noconvert(),
           "down"_a.noconvert(), "down_bias"_a.noconvert(), "down_norm"_a.noconvert(), "down_norm_bias"_a.noconvert(),
           "Add a layer; weights are [out, in] and are rounded to float16.")
      .def("set_embedding", set_embedding, "words"_a.noconvert(), "positions"_a.noconvert(), "norm"_a.noconvert(), "norm_bias"_a.noconvert(),
           "padding"_a = -1, nb::keep_alive<1, 2>(), nb::keep_alive<1, 3>(),
           "Set the tables: a token is a row of words plus a row of positions, normalized. padding: a word that is not counted, as in RoBERTa.")
      .def("cache_products", cache_products, "factors"_a.noconvert(), "by_positions"_a.noconvert(), "by_ones"_a.noconvert(), "rest"_a.noconvert(),
           "Cache the product of each word with the factors of the first layer (including the weight of the norm). by_positions:\n"
           "the products of the positions; by_ones: of a row of ones; rest: the part that does not depend on the token.")
      .def("__call__", call<HalfEncoder>, "ids"_a.noconvert(), "offsets"_a.noconvert(), "rows"_a.noconvert(), "threads"_a = 1,
           "Write rows [tokens, hidden] for ids [tokens], after all layers; text k is offsets[k] to offsets[k + 1].")
      .def("means", encode_means<HalfEncoder>, "ids"_a.noconvert(), "offsets"_a.noconvert(), "to"_a.noconvert(), "unit"_a, "threads"_a = 1,
           "Write the mean row of each text to [texts, hidden], scaled to length 1 with `unit`.");
  m.def("int8_instructions", list_int8, "isa"_a = "",
        "Instructions for products of bytes that loops of this instruction set can use on this CPU, slowest first; 'plain' is C++.\n"
        "The last is the default; RIDGELINE_INT8 chooses another one.");
  m.def("chosen_int8", [] { return name(parse_int8("", chosen_isa())); }, "The instructions for products of bytes that encoders use.");
  nb::class_<FloatEncoder>(m, "FloatEncoder", "Layers of an encoder in float32, or with products in 8 bits; the same bits in any batch.")
      .def("__init__", construct_float, "hidden"_a, "heads"_a, "width"_a, "scale"_a, "epsilon"_a, "activation"_a, "in_bytes"_a = false, "isa"_a = "", "int8"_a = "",
           "width: of a head; scale: of the scores; activation: relu, gelu or tanh (gelu by its tanh formula); widths are multiples of 16.")
      .def("add", add_float, "qkv"_a.noconvert(), "qkv_bias"_a.noconvert(), "out"_a.noconvert(), "out_bias"_a.noconvert(),
           "out_norm"_a.noconvert(), "out_norm_bias"_a.noconvert(), "up"_a.noconvert(), "up_bias"_a.noconvert(),
           "down"_a.noconvert(), "down_bias"_a.noconvert(), "down_norm"_a.noconvert(), "down_norm_bias"_a.noconvert(),
           "Add a layer; weights are [out, in].")
      .def("set_embedding", set_float_embedding, "words"_a.noconvert(), "positions"_a.noconvert(), "norm"_a.noconvert(), "norm_bias"_a.noconvert(),
           "padding"_a = -1, nb::keep_alive<1, 2>(), nb::keep_alive<1, 3>(),
           "Set the tables: a token is a row of words plus a row of positions, normalized. padding: a word that is not counted, as in RoBERTa.")
      .def("__call__", call<FloatEncoder>, "ids"_a.noconvert(), "offsets"_a.noconvert(), "rows"_a.noconvert(), "threads"_a = 1,
           "Write rows [tokens, hidden] for ids [tokens], after all layers; text k is offsets[k] to offsets[k + 1].")
      .def("means", encode_means<FloatEncoder>, "ids"_a.noconvert(), "offsets"_a.noconvert(), "to"_a.noconvert(), "unit"_a, "threads"_a = 1,
           "Write the mean row of each text to [texts, hidden], scaled to length 1 with `unit`.");
}

} // namespace ridgeline
