// Python name of search/graph: Graph.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>

#include "bind.hpp"
#include "released_gil.hpp"
#include "search/graph.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace ridgeline {
namespace {

template <class T, int N> using Array = nb::ndarray<T, nb::ndim<N>, nb::c_contig, nb::device::cpu>;

template <class T> std::vector<T> copy(const nb::ndarray<const T, nb::c_contig, nb::device::cpu> &array) {
  return {array.data(), array.data() + array.size()};
}

template <class T> nb::object give(std::vector<T> values, std::size_t columns) {
  auto *memory = new std::vector<T>(std::move(values));
  nb::capsule owner(memory, [](void *p) noexcept { delete static_cast<std::vector<T> *>(p); });
  if (!columns) return nb::cast(nb::ndarray<nb::numpy, T>(memory->data(), {memory->size()}, owner));
  return nb::cast(nb::ndarray<nb::numpy, T>(memory->data(), {memory->size() / columns, columns}, owner));
}

} // namespace

void bind_graph(nb::module_ &m) {
  nb::class_<Graph>(m, "Graph", "HNSW over codes of one byte per dimension; the caller keeps the vectors.")
      .def("__init__", [](Graph *self, std::int64_t dim, std::int64_t links, std::int64_t effort, bool squared, bool unit) {
        if (dim < 1 || links < 2 || links > 1 << 16 || effort < 1) throw std::invalid_argument("dim and effort must be 1 or more, links 2 to 65536");
        new (self) Graph(dim, links, effort, squared, unit);
      }, "dim"_a, "links"_a, "effort"_a, "squared"_a, "unit"_a,
         "links: of a row (twice as many in the lowest layer); effort: rows that a walk keeps while it builds.")
      .def_prop_ro("count", &Graph::count)
      .def("add", [](Graph &self, Array<const float, 2> values, int threads, const std::string &isa) {
        if (std::int64_t(values.shape(1)) != self.dim()) throw std::invalid_argument("values have another dimension than the graph");
        const Isa set = parse_isa(isa);
        ReleasedGil release;
        self.add(values.data(), std::int64_t(values.shape(0)), threads, set);
      }, "values"_a.noconvert(), "threads"_a = 1, "isa"_a = "", "Insert the rows of values [n, dim] from `count` on.")
      .def("search", [](const Graph &self, Array<const float, 2> queries, Array<const float, 2> values, std::int64_t effort, double longest,
                        double too_large, Array<double, 2> scores, Array<std::int64_t, 2> rows, bool scale_queries,
                        std::optional<Array<const std::uint8_t, 1>> allowed, std::optional<Array<const std::int64_t, 1>> ids,
                        std::optional<Array<const std::int64_t, 1>> skipped, std::int64_t least, int threads, const std::string &isa) {
        const std::size_t n = values.shape(0), q = queries.shape(0), k = rows.shape(1), dim = std::size_t(self.dim());
        if (queries.shape(1) != dim || values.shape(1) != dim) throw std::invalid_argument("queries, values and graph differ in dimension");
        if (scores.shape(0) != q || rows.shape(0) != q || scores.shape(1) != k || (skipped && skipped->shape(0) != q))
          throw std::invalid_argument("queries, scores, rows and skipped do not fit");
        if ((allowed && allowed->shape(0) < n) || (ids && ids->shape(0) < n)) throw std::invalid_argument("allowed and ids must have one value per row");
        if (!n || self.count() < 1 || k < 1) throw std::invalid_argument("there are no rows to search, or k is 0");
        const GraphSearch search{std::int64_t(k), std::max<std::int64_t>(effort, std::int64_t(k)), scale_queries, values.data(), std::int64_t(n),
                                 allowed ? allowed->data() : nullptr, least, ids ? ids->data() : nullptr,
                                 skipped ? skipped->data() : nullptr, longest, too_large};
        const Isa set = parse_isa(isa);
        ReleasedGil release;
        return self.search(queries.data(), std::int64_t(q), search, scores.data(), rows.data(), threads, set);
      }, "queries"_a.noconvert(), "values"_a.noconvert(), "effort"_a, "longest"_a, "too_large"_a, "scores"_a.noconvert(),
         "rows"_a.noconvert(), "scale_queries"_a = false, "allowed"_a.none() = nb::none(), "ids"_a.none() = nb::none(), "skipped"_a.none() = nb::none(), "least"_a = 0,
         "threads"_a = 1, "isa"_a = "",
         "Write the best scores [q, k] and rows [q, k]; values [n, dim] decide among the rows that the walk finds. "
         "A query that finds fewer than `least` allowed rows has no result. "
         "Returns the number of queries with fewer than k rows; -1: a query is not finite or too large for sums in float32.")
      .def("select", [](const Graph &self, Array<const std::int64_t, 1> rows, int threads, const std::string &isa) {
        const Isa set = parse_isa(isa);
        ReleasedGil release;
        return self.select(rows.data(), std::int64_t(rows.shape(0)), threads, set);
      }, "rows"_a.noconvert(), "threads"_a = 1, "isa"_a = "", "A graph of these rows, numbered in this order.")
      .def("arrays", [](const Graph &self) {
        Graph::Arrays arrays = self.arrays();
        nb::dict out;
        const std::size_t links = std::size_t(self.links());
        out["graph_centre"] = give(std::move(arrays.centre), 0);
        out["graph_codes"] = give(std::move(arrays.codes), std::size_t(self.stride()));
        out["graph_links"] = give(std::move(arrays.links), 1 + 2 * links);
        out["graph_levels"] = give(std::move(arrays.levels), 0);
        out["graph_upper"] = give(std::move(arrays.upper), 1 + links);
        out["graph_nodes"] = give(std::move(arrays.nodes), 0);
        out["graph_entry"] = give(std::vector<std::int64_t>{arrays.entry}, 0);
        return out;
      }, "The arrays of the graph, by the names of their files.")
      .def("restore", [](Graph &self, nb::ndarray<const float, nb::c_contig, nb::device::cpu> centre,
                         nb::ndarray<const std::int8_t, nb::c_contig, nb::device::cpu> codes,
                         nb::ndarray<const std::uint32_t, nb::c_contig, nb::device::cpu> links,
                         nb::ndarray<const std::uint8_t, nb::c_contig, nb::device::cpu> levels,
                         nb::ndarray<const std::uint32_t, nb::c_contig, nb::device::cpu> upper,
                         nb::ndarray<const std::uint32_t, nb::c_contig, nb::device::cpu> nodes, std::int64_t entry) {
        self.restore({copy(centre), copy(codes), copy(links), copy(levels), copy(upper), copy(nodes), entry});
      }, "centre"_a.noconvert(), "codes"_a.noconvert(), "links"_a.noconvert(), "levels"_a.noconvert(), "upper"_a.noconvert(), "nodes"_a.noconvert(), "entry"_a);
}

} // namespace ridgeline
