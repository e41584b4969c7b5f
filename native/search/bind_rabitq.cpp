// Python names of search/rabitq: Rabitq, RabitqSearch.
#include <atomic>

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include "bind.hpp"
#include "released_gil.hpp"
#include "search/rabitq.hpp"
#include "threads/pool.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace ridgeline {
namespace {

template <class T, int N> using Array = nb::ndarray<T, nb::ndim<N>, nb::c_contig, nb::device::cpu>;

template <class Value, class Code> void check_shapes(const Rabitq &codec, const Array<Value, 2> &values, const Array<Code, 2> &codes) {
  if (values.shape(1) != std::size_t(codec.dim()) || codes.shape(1) != std::size_t(codec.stride()) || values.shape(0) != codes.shape(0))
    throw std::invalid_argument("values and codes do not fit");
}

} // namespace

void bind_rabitq(nb::module_ &m) {
  nb::class_<Rabitq>(m, "Rabitq", "RaBitQ codes of one to four bits per dimension.")
      .def("__init__", [](Rabitq *self, Array<const std::uint8_t, 2> signs, int bits) {
        if (bits < 1 || bits > 4) throw std::invalid_argument("bits must be 1 to 4");
        if (signs.shape(0) != kRotationRounds || signs.shape(1) < 1) throw std::invalid_argument("signs must be [4, dim]");
        new (self) Rabitq(std::int64_t(signs.shape(1)), bits, signs.data());
      }, "signs"_a.noconvert(), "bits"_a, "signs uint8 [4, dim]: 1 turns a dimension around, in each round of the rotation.")
      .def_prop_ro("stride", &Rabitq::stride, "Bytes of a row.")
      .def("encode", [](const Rabitq &self, Array<const float, 2> values, Array<std::uint8_t, 2> codes, int threads, const std::string &isa) {
        check_shapes(self, values, codes);
        const Isa set = parse_isa(isa);
        ReleasedGil release;
        self.encode(values.data(), std::int64_t(values.shape(0)), codes.data(), threads, set);
      }, "values"_a.noconvert(), "codes"_a.noconvert(), "threads"_a = 1, "isa"_a = "", "Write the codes [n, stride] of values [n, dim].")
      .def("decode", [](const Rabitq &self, Array<const std::uint8_t, 2> codes, Array<float, 2> values, int threads, const std::string &isa) {
        check_shapes(self, values, codes);
        const Isa set = parse_isa(isa);
        ReleasedGil release;
        self.decode(codes.data(), std::int64_t(codes.shape(0)), values.data(), threads, set);
      }, "codes"_a.noconvert(), "values"_a.noconvert(), "threads"_a = 1, "isa"_a = "", "Write the values [n, dim] of codes [n, stride].")
      .def("estimate", [](const Rabitq &self, Array<const float, 1> query, Array<const std::uint8_t, 2> codes, Array<float, 1> products,
                          Array<float, 1> errors, const std::string &isa) {
        const std::size_t n = codes.shape(0);
        if (query.shape(0) != std::size_t(self.dim()) || codes.shape(1) != std::size_t(self.stride()) || products.shape(0) != n || errors.shape(0) != n)
          throw std::invalid_argument("shapes do not fit");
        const Isa set = parse_isa(isa);
        ReleasedGil release;
        const RabitqLoops loops = rabitq_loops(set);
        self.estimate(self.prepare(query.data(), 2, loops), codes.data(), std::int64_t(n), 1, 0, products.data(), errors.data(), loops);
      }, "query"_a.noconvert(), "codes"_a.noconvert(), "products"_a.noconvert(), "errors"_a.noconvert(), "isa"_a = "",
         "Write the estimated products [n] of query [dim] with the values of codes, and their errors [n] for a query of length 1.");

  nb::class_<RabitqSearch>(m, "RabitqSearch", "Queries over lists of RaBitQ codes, from the queries to their ranked rows.")
      .def("__init__", [](RabitqSearch *self, const Rabitq &codec, Array<const float, 2> centres, std::optional<Array<const float, 1>> halves,
                          std::optional<Array<const float, 2>> values, std::optional<Array<const std::uint8_t, 1>> allowed,
                          std::optional<Array<const std::int64_t, 1>> ids, bool squared, double longest, double too_large,
                          double longest_difference) {
        if (centres.shape(1) != std::size_t(codec.dim()) || (values && values->shape(1) != centres.shape(1)) ||
            (halves && halves->shape(0) != centres.shape(0)))
          throw std::invalid_argument("codec, centres and values differ in dimension");
        new (self) RabitqSearch{&codec, {}, std::int64_t(centres.shape(0)), centres.data(), halves ? halves->data() : nullptr,
                                values ? values->data() : nullptr, allowed ? allowed->data() : nullptr, ids ? ids->data() : nullptr,
                                squared, longest, too_large, longest_difference};
      }, "codec"_a, "centres"_a.noconvert(), "halves"_a.none().noconvert(), "values"_a.none().noconvert(), "allowed"_a.none().noconvert(), "ids"_a.none().noconvert(), "squared"_a,
         "longest"_a, "too_large"_a, "longest_difference"_a, nb::keep_alive<1, 2>(), nb::keep_alive<1, 3>(), nb::keep_alive<1, 4>(), nb::keep_alive<1, 5>(),
         nb::keep_alive<1, 6>(), nb::keep_alive<1, 7>(),
         "values [rows, dim]: the vectors that are read in full; None: the stored values decide.")
      .def("add_segment", [](RabitqSearch &self, Array<const std::uint8_t, 2> codes, Array<const std::int64_t, 1> offsets,
                             Array<const std::int64_t, 1> rows, std::optional<Array<const float, 1>> biases, std::int64_t row_count) {
        const std::size_t n = codes.shape(0);
        if (codes.shape(1) != std::size_t(self.codec->stride()) || rows.shape(0) != n || offsets.shape(0) != std::size_t(self.lists + 1) ||
            (biases && biases->shape(0) != n))
          throw std::invalid_argument("codes, offsets, rows and biases do not fit");
        const std::int64_t *ends = offsets.data();
        for (std::int64_t l = 0; l < self.lists; ++l)
          if (ends[l] > ends[l + 1]) throw std::invalid_argument("offsets must not decrease");
        if (ends[0] != 0 || ends[self.lists] != std::int64_t(n)) throw std::invalid_argument("offsets must run from 0 to the number of rows");
        for (std::size_t i = 0; i < n; ++i)
          if (rows.data()[i] < 0 || rows.data()[i] >= row_count) throw std::invalid_argument("a row lies outside the vectors");
        self.segments.push_back({codes.data(), ends, rows.data(), biases ? biases->data() : nullptr});
      }, "codes"_a.noconvert(), "offsets"_a.noconvert(), "rows"_a.noconvert(), "biases"_a.none().noconvert(), "row_count"_a, nb::keep_alive<1, 2>(),
         nb::keep_alive<1, 3>(), nb::keep_alive<1, 4>(), nb::keep_alive<1, 5>(),
         "Add rows that are sorted by list; `row_count`: the length of values, allowed and ids.")
      .def("__call__", [](const RabitqSearch &self, Array<const float, 2> queries, std::int64_t nprobe, Array<double, 2> scores,
                          Array<std::int64_t, 2> rows, int threads, const std::string &isa) {
        const std::int64_t count = std::int64_t(queries.shape(0)), k = std::int64_t(rows.shape(1)), dim = self.codec->dim();
        if (queries.shape(1) != std::size_t(dim) || scores.shape(0) != queries.shape(0) || rows.shape(0) != queries.shape(0) ||
            scores.shape(1) != rows.shape(1) || k < 1 || nprobe < 1)
          throw std::invalid_argument("queries, scores and rows do not fit");
        const Isa set = parse_isa(isa);
        ReleasedGil release;
        std::atomic<std::int64_t> read{0};
        std::atomic<bool> good{true};
        const auto search = [&](std::int64_t q, int query_threads) {
          const std::int64_t n = self.search(queries.data() + q * dim, k, nprobe, scores.data() + q * k, rows.data() + q * k, set, query_threads);
          if (n < 0) good = false;
          else read += n;
        };
        if (count == 1) search(0, threads);
        else parallel_for(count, 1, threads, [&](std::int64_t from, std::int64_t to) { for (std::int64_t q = from; q < to; ++q) search(q, 1); });
        return good ? read.load() : std::int64_t(-1);
      }, "queries"_a.noconvert(), "nprobe"_a, "scores"_a.noconvert(), "rows"_a.noconvert(), "threads"_a = 1, "isa"_a = "",
         "Write the best scores and rows [q, k]; return how many rows were read in full, or −1 if a query is too large for float32.");
}

} // namespace ridgeline
