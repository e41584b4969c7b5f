// Python functions for rows.hpp: they check bounds before they release the GIL.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <stdexcept>
#include <string>

#include "bind.hpp"
#include "encoder/rows.hpp"
#include "released_gil.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace ridgeline {
namespace {

using Floats = nb::ndarray<float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using ConstFloats = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using ConstNumbers = nb::ndarray<const std::int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Numbers = nb::ndarray<std::int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using ConstTokens = nb::ndarray<const std::int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Tokens = nb::ndarray<std::int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

void scatter(Floats to, ConstNumbers rows, ConstFloats from, int threads) {
  if (rows.shape(0) != from.shape(0)) throw std::invalid_argument("rows must hold one index per row of source");
  if (to.shape(1) != from.shape(1)) throw std::invalid_argument("rows have different widths");
  for (std::size_t k = 0; k < rows.shape(0); ++k)
    if (rows.data()[k] < 0 || std::size_t(rows.data()[k]) >= to.shape(0))
      throw nb::index_error(("row " + std::to_string(rows.data()[k]) + " of " + std::to_string(to.shape(0))).c_str());
  ReleasedGil release;
  scatter_rows(reinterpret_cast<std::byte *>(to.data()), rows.data(), rows.shape(0),
               reinterpret_cast<const std::byte *>(from.data()), to.shape(1) * sizeof(float), threads);
}

void mean(ConstFloats rows, ConstNumbers offsets, Floats to, bool unit, int threads) {
  const std::size_t texts = to.shape(0);
  if (offsets.shape(0) != texts + 1 || to.shape(1) != rows.shape(1))
    throw std::invalid_argument("offsets must be [texts + 1], and means as wide as the rows");
  if (offsets.data()[0] != 0 || std::size_t(offsets.data()[texts]) != rows.shape(0))
    throw std::invalid_argument("offsets must run from 0 to the number of rows");
  for (std::size_t k = 0; k < texts; ++k)
    if (offsets.data()[k] > offsets.data()[k + 1]) throw std::invalid_argument("offsets must not decrease");
  ReleasedGil release;
  mean_rows(rows.data(), offsets.data(), texts, rows.shape(1), unit, to.data(), threads);
}

void sort_texts(ConstTokens ids, ConstNumbers offsets, Tokens packed, Numbers starts, Numbers order) {
  const std::size_t texts = order.shape(0);
  if (offsets.shape(0) != texts + 1 || starts.shape(0) != texts + 1 || packed.shape(0) != ids.shape(0))
    throw std::invalid_argument("offsets and starts must be [texts + 1], packed as long as ids");
  if (offsets.data()[0] != 0 || std::size_t(offsets.data()[texts]) != ids.shape(0))
    throw std::invalid_argument("offsets must run from 0 to the number of ids");
  for (std::size_t k = 0; k < texts; ++k)
    if (offsets.data()[k] > offsets.data()[k + 1]) throw std::invalid_argument("offsets must not decrease");
  ReleasedGil release;
  sort_by_length(ids.data(), offsets.data(), texts, packed.data(), starts.data(), order.data());
}

} // namespace

void bind_rows(nb::module_ &m) {
  m.def("scatter_rows", scatter, "to"_a.noconvert(), "rows"_a.noconvert(), "source"_a.noconvert(), "threads"_a = 1,
        "to[rows] = source, float32 [n, width]; a row that occurs twice holds either value.");
  m.def("mean_rows", mean, "rows"_a.noconvert(), "offsets"_a.noconvert(), "to"_a.noconvert(), "unit"_a = false,
        "threads"_a = 1, "to[k] = the mean of rows[offsets[k]:offsets[k + 1]], float32, scaled to length 1 with `unit`; NaN for a text without rows.");
  m.def("touch_pages", [](Floats memory) {
    ReleasedGil release;
    touch_pages(reinterpret_cast<std::byte *>(memory.data()), memory.size() * sizeof(float));
  }, "memory"_a.noconvert(), "Make the kernel map the pages of new memory now, not at the first write; the values stay.");
  m.def("sort_by_length", sort_texts, "ids"_a.noconvert(), "offsets"_a.noconvert(), "packed"_a.noconvert(),
        "starts"_a.noconvert(), "order"_a.noconvert(),
        "Sort the texts of ids [T] by length, stably: fills packed [T], starts [texts + 1] and order [texts].");
}

} // namespace ridgeline
