// Python names of search/: TopCandidates, SingleQuery and the loops that score rows.
#include <atomic>

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include "bind.hpp"
#include "released_gil.hpp"
#include "search/single_query.hpp"
#include "search/top_candidates.hpp"
#include "threads/pool.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace ridgeline {
namespace {

template <class T, int N> using Array = nb::ndarray<T, nb::ndim<N>, nb::c_contig, nb::device::cpu>;
using Floats = Array<const float, 1>;
using Scores = Array<const float, 2>;
using Rows = Array<const std::int64_t, 1>;
using Flags = Array<const std::uint8_t, 1>;
using Codes = Array<const std::uint8_t, 2>;

template <class A> auto check_length(const std::optional<A> &array, std::size_t length, const char *what) {
  if (array && array->shape(0) != length) throw std::invalid_argument(std::string(what) + " has the wrong length");
  return array ? array->data() : nullptr;
}

// Checks the arrays of a probe; `positions`: the number of rows of codes.
Probe check_probe(const TopCandidates &best, const Rows &lists, const Rows &offsets, const Rows &rows, std::size_t positions,
               const std::optional<Floats> &added, const std::optional<Floats> &biases, const std::optional<Flags> &allowed) {
  if (best.queries() != 1) throw std::invalid_argument("a probe needs exactly one query");
  if (offsets.shape(0) < 1 || rows.shape(0) != positions) throw std::invalid_argument("rows and codes differ in length");
  const std::int64_t count = std::int64_t(offsets.shape(0)) - 1, *ends = offsets.data();
  for (std::size_t k = 0; k < lists.shape(0); ++k) {
    const std::int64_t list = lists.data()[k];
    if (list < 0 || list >= count) throw std::invalid_argument("a list index is out of range");
    if (ends[list] < 0 || ends[list] > ends[list + 1] || ends[list + 1] > std::int64_t(positions))
      throw std::invalid_argument("a list lies outside the codes");
    if (allowed)
      for (std::int64_t p = ends[list]; p < ends[list + 1]; ++p)
        if (rows.data()[p] < 0 || rows.data()[p] >= std::int64_t(allowed->shape(0)))
          throw std::invalid_argument("allowed is shorter than the rows");
  }
  return {lists.data(), std::int64_t(lists.shape(0)), check_length(added, lists.shape(0), "added"), ends, rows.data(),
          check_length(biases, positions, "biases"), allowed ? allowed->data() : nullptr};
}

void check_rows(const Rows &rows, std::int64_t count) {
  for (std::size_t i = 0; i < rows.shape(0); ++i)
    if (rows.data()[i] < 0 || rows.data()[i] >= count) throw std::invalid_argument("a row lies outside the vectors");
}

} // namespace

void bind_search(nb::module_ &m) {
  nb::class_<TopCandidates>(m, "TopCandidates", "The k best rows of each query, and the rows that rounding could have swapped with them.")
      .def("__init__", [](TopCandidates *self, std::int64_t k, Array<const double, 1> slack) {
        if (k < 1) throw std::invalid_argument("k must be 1 or more");
        new (self) TopCandidates(std::int64_t(slack.shape(0)), k, slack.data());
      }, "k"_a, "slack"_a.noconvert(), "slack [queries]: twice the largest error of a score.")
      .def("add_scores", [](TopCandidates &self, Scores scores, std::optional<Rows> which, std::optional<Floats> offsets,
                      std::optional<Floats> biases, std::int64_t first, std::optional<Rows> rows,
                      std::optional<Flags> allowed, int threads, const std::string &isa) {
        ScoreBlock block{};
        block.scores = scores.data(), block.queries = std::int64_t(scores.shape(0)), block.columns = std::int64_t(scores.shape(1));
        block.which = check_length(which, scores.shape(0), "which");
        block.offsets = check_length(offsets, scores.shape(0), "offsets");
        block.biases = check_length(biases, scores.shape(1), "biases");
        block.first = first;
        block.rows = check_length(rows, scores.shape(1), "rows");
        block.allowed = allowed ? allowed->data() : nullptr;
        if (which) check_rows(*which, self.queries());
        else if (block.queries > self.queries()) throw std::invalid_argument("scores has more rows than there are queries");
        if (allowed) {
          if (rows) check_rows(*rows, std::int64_t(allowed->shape(0)));
          else if (first < 0 || first + block.columns > std::int64_t(allowed->shape(0)))
            throw std::invalid_argument("allowed is shorter than the rows");
        }
        Isa set = parse_isa(isa);
        ReleasedGil release;
        self.add_scores(block, set, threads);
      }, "scores"_a.noconvert(), "which"_a.none() = nb::none(), "offsets"_a.none() = nb::none(),
         "biases"_a.none() = nb::none(), "first"_a = 0, "rows"_a.none() = nb::none(), "allowed"_a.none() = nb::none(),
         "threads"_a = 1, "isa"_a = "",
         "Add scores [queries, columns]; `which` [queries] must name each query once.")
      .def("probe", [](TopCandidates &self, Floats query, Scores values, Rows lists, Rows offsets, Rows rows,
                       std::optional<Floats> biases, std::optional<Flags> allowed, int threads, const std::string &isa) {
        const std::size_t d = query.shape(0);
        if (values.shape(1) != d) throw std::invalid_argument("query and values differ in dimension");
        const Probe probe = check_probe(self, lists, offsets, rows, values.shape(0), {}, biases, allowed);
        const Isa set = parse_isa(isa);
        auto *dots = search_loops(set).dots;
        ReleasedGil release;
        self.probe(probe, [&](std::int64_t from, std::int64_t to, float *out) {
          dots(query.data(), values.data() + from * d, d, to - from, out);
        }, set, threads);
      }, "query"_a.noconvert(), "values"_a.noconvert(), "lists"_a.noconvert(), "offsets"_a.noconvert(),
         "rows"_a.noconvert(), "biases"_a.none() = nb::none(), "allowed"_a.none() = nb::none(), "threads"_a = 1,
         "isa"_a = "",
         "Add query · values [n, d] for some `lists`; list l is values[offsets[l]:offsets[l + 1]], and `rows` [n] are their rows.")
      .def("probe_bytes", [](TopCandidates &self, Floats query, Codes codes, Rows lists, Rows offsets, Rows rows, Floats added,
                             std::optional<Floats> biases, std::optional<Flags> allowed, int threads, const std::string &isa) {
        const std::size_t d = query.shape(0);
        if (codes.shape(1) != d) throw std::invalid_argument("query and codes differ in dimension");
        const Probe probe = check_probe(self, lists, offsets, rows, codes.shape(0), added, biases, allowed);
        const Isa set = parse_isa(isa);
        auto *dot = search_loops(set).dot_bytes;
        ReleasedGil release;
        self.probe(probe, [&](std::int64_t from, std::int64_t to, float *out) {
          for (std::int64_t r = from; r < to; ++r) out[r - from] = dot(query.data(), codes.data() + r * d, d);
        }, set, threads);
      }, "query"_a.noconvert(), "codes"_a.noconvert(), "lists"_a.noconvert(), "offsets"_a.noconvert(),
         "rows"_a.noconvert(), "added"_a.noconvert(), "biases"_a.none() = nb::none(), "allowed"_a.none() = nb::none(),
         "threads"_a = 1, "isa"_a = "", "The same for bytes [n, d]; `added` [lists] is added to the scores of each list.")
      .def("probe_parts", [](TopCandidates &self, Scores tables, Codes codes, Rows lists, Rows offsets, Rows rows, Floats added,
                             std::optional<Floats> biases, std::optional<Flags> allowed, int threads, const std::string &isa) {
        const std::size_t parts = codes.shape(1);
        if (tables.shape(0) != parts || tables.shape(1) != 256) throw std::invalid_argument("tables must be [parts, 256]");
        const Probe probe = check_probe(self, lists, offsets, rows, codes.shape(0), added, biases, allowed);
        const Isa set = parse_isa(isa);
        auto *look_up = search_loops(set).look_up;
        ReleasedGil release;
        self.probe(probe, [&](std::int64_t from, std::int64_t to, float *out) {
          look_up(tables.data(), codes.data() + from * parts, parts, to - from, out);
        }, set, threads);
      }, "tables"_a.noconvert(), "codes"_a.noconvert(), "lists"_a.noconvert(), "offsets"_a.noconvert(),
         "rows"_a.noconvert(), "added"_a.noconvert(), "biases"_a.none() = nb::none(), "allowed"_a.none() = nb::none(),
         "threads"_a = 1, "isa"_a = "", "The same for tables [parts, 256] and codes [n, parts]; `added` [lists] is added to the scores of each list.")
      .def("candidates", [](TopCandidates &self) {
        self.finish();
        const std::int64_t queries = self.queries();
        auto *offsets = new std::int64_t[queries + 1];
        nb::capsule offsets_owner(offsets, [](void *p) noexcept { delete[] static_cast<std::int64_t *>(p); });
        offsets[0] = 0;
        for (std::int64_t q = 0; q < queries; ++q) offsets[q + 1] = offsets[q] + std::int64_t(self.rows(q).size());
        auto *rows = new std::int64_t[offsets[queries]];
        nb::capsule rows_owner(rows, [](void *p) noexcept { delete[] static_cast<std::int64_t *>(p); });
        for (std::int64_t q = 0; q < queries; ++q)
          std::copy(self.rows(q).begin(), self.rows(q).end(), rows + offsets[q]);
        using Indices = nb::ndarray<nb::numpy, std::int64_t, nb::ndim<1>>;
        const std::size_t ends[1] = {std::size_t(queries + 1)}, total[1] = {std::size_t(offsets[queries])};
        return nb::make_tuple(Indices(offsets, 1, ends, offsets_owner), Indices(rows, 1, total, rows_owner));
      }, "(offsets [queries + 1], rows): the candidates of query q are rows[offsets[q]:offsets[q + 1]].");

  nb::class_<SingleQuery>(m, "SingleQuery", "One query over lists of float32 vectors, from the query to its ranked rows.")
      .def("__init__", [](SingleQuery *self, Scores centres, std::optional<Floats> halves, Scores values, Rows offsets, Rows rows,
                          std::optional<Floats> biases, bool unit, bool squared, std::int64_t nprobe, std::int64_t k,
                          double longest, double rounding, double underflow, double too_large, std::int64_t more_terms) {
        const std::size_t lists = centres.shape(0), dim = centres.shape(1), positions = values.shape(0);
        if (values.shape(1) != dim || rows.shape(0) != positions || offsets.shape(0) != lists + 1)
          throw std::invalid_argument("centres, values, rows and offsets do not fit");
        const std::int64_t *ends = offsets.data();
        for (std::size_t l = 0; l < lists; ++l)
          if (ends[l] > ends[l + 1]) throw std::invalid_argument("offsets must not decrease");
        if (ends[0] != 0 || ends[lists] != std::int64_t(positions)) throw std::invalid_argument("offsets must run from 0 to the number of rows");
        if (nprobe < 1 || k < 1) throw std::invalid_argument("k and nprobe must be 1 or more");
        new (self) SingleQuery{unit, squared, std::int64_t(dim), std::int64_t(lists), nprobe, k, centres.data(),
                            check_length(halves, lists, "halves"), values.data(), ends, rows.data(),
                            check_length(biases, positions, "biases"), longest, rounding, underflow, too_large, more_terms};
      }, "centres"_a.noconvert(), "halves"_a.none(), "values"_a.noconvert(), "offsets"_a.noconvert(), "rows"_a.noconvert(),
         "biases"_a.none(), "unit"_a, "squared"_a, "nprobe"_a, "k"_a, "longest"_a, "rounding"_a, "underflow"_a,
         "too_large"_a, "more_terms"_a, nb::keep_alive<1, 2>(), nb::keep_alive<1, 3>(), nb::keep_alive<1, 4>(),
         nb::keep_alive<1, 5>(), nb::keep_alive<1, 6>(), nb::keep_alive<1, 7>(),
         "The arrays of an inverted index, and the bounds of float32 sums (rounding, underflow, too_large, more_terms).")
      .def("__call__", [](const SingleQuery &self, Floats query, Array<float, 1> scores, Array<std::int64_t, 1> row_ids,
                          const std::string &isa) {
        const std::size_t k = std::size_t(self.k);
        if (query.shape(0) != std::size_t(self.dim) || scores.shape(0) != k || row_ids.shape(0) != k)
          throw std::invalid_argument("shapes do not fit");
        const Isa set = parse_isa(isa);
        ReleasedGil release;
        return self.search(query.data(), scores.data(), row_ids.data(), set);
      }, "query"_a.noconvert(), "scores"_a.noconvert(), "row_ids"_a.noconvert(), "isa"_a = "",
         "Write the best scores [k] and rows [k] of query [d]; False: the query is not finite or too large for sums in float32.")
      .def("search_few", [](const SingleQuery &self, Scores queries, Array<float, 2> scores, Array<std::int64_t, 2> row_ids, int threads,
                            const std::string &isa) {
        const std::int64_t count = std::int64_t(queries.shape(0));
        if (queries.shape(1) != std::size_t(self.dim) || scores.shape(0) != queries.shape(0) || row_ids.shape(0) != queries.shape(0) ||
            scores.shape(1) != std::size_t(self.k) || row_ids.shape(1) != std::size_t(self.k))
          throw std::invalid_argument("shapes do not fit");
        const Isa set = parse_isa(isa);
        ReleasedGil release;
        std::atomic<bool> good{true};
        parallel_for(count, 1, threads, [&](std::int64_t from, std::int64_t) {
          if (!self.search(queries.data() + from * self.dim, scores.data() + from * self.k, row_ids.data() + from * self.k, set)) good = false;
        });
        return good.load();
      }, "queries"_a.noconvert(), "scores"_a.noconvert(), "row_ids"_a.noconvert(), "threads"_a = 1, "isa"_a = "",
         "The same for queries [q, d].");

  m.def("rescore", [](Scores queries, Scores vectors, Rows offsets, Rows rows, Array<double, 1> out, bool squared,
                      int threads, const std::string &isa) {
    const std::int64_t d = std::int64_t(vectors.shape(1)), count = std::int64_t(queries.shape(0));
    if (queries.shape(1) != vectors.shape(1)) throw std::invalid_argument("queries and vectors differ in dimension");
    if (offsets.shape(0) != std::size_t(count + 1) || out.shape(0) != rows.shape(0))
      throw std::invalid_argument("offsets, rows and out do not fit");
    const std::int64_t *ends = offsets.data();
    for (std::int64_t q = 0; q < count; ++q)
      if (ends[q] > ends[q + 1]) throw std::invalid_argument("offsets must not decrease");
    if (ends[0] != 0 || ends[count] != std::int64_t(rows.shape(0))) throw std::invalid_argument("offsets must run from 0 to the number of rows");
    check_rows(rows, std::int64_t(vectors.shape(0)));
    const SearchLoops loops = search_loops(parse_isa(isa));
    auto *sum = squared ? loops.distance : loops.dot;
    ReleasedGil release;
    parallel_for(count, 1, threads, [&](std::int64_t from, std::int64_t to) {
      for (std::int64_t q = from; q < to; ++q)
        for (std::int64_t i = ends[q]; i < ends[q + 1]; ++i)
          out.data()[i] = sum(queries.data() + q * d, vectors.data() + rows.data()[i] * d, d);
    });
  }, "queries"_a.noconvert(), "vectors"_a.noconvert(), "offsets"_a.noconvert(), "rows"_a.noconvert(),
     "out"_a.noconvert(), "squared"_a = false, "threads"_a = 1, "isa"_a = "",
     "Inner products, or squared distances, of float32 values in float64: out[i] belongs to query q where offsets[q] <= i < offsets[q + 1].");

  m.def("dot_floats", [](Floats query, Scores values, Array<float, 1> out, int threads, const std::string &isa) {
    const std::int64_t d = std::int64_t(values.shape(1)), n = std::int64_t(values.shape(0));
    if (query.shape(0) != values.shape(1) || out.shape(0) != values.shape(0)) throw std::invalid_argument("shapes do not fit");
    const SearchLoops loops = search_loops(parse_isa(isa));
    ReleasedGil release;
    parallel_for(n, 256, threads, [&](std::int64_t from, std::int64_t to) {
      loops.dots(query.data(), values.data() + from * d, d, to - from, out.data() + from);
    });
  }, "query"_a.noconvert(), "values"_a.noconvert(), "out"_a.noconvert(), "threads"_a = 1, "isa"_a = "",
     "out [n] = values [n, d] · query [d], in float32.");

  m.def("dot_few", [](Scores queries, Scores values, Array<float, 2> out, int threads, const std::string &isa) {
    const std::int64_t d = std::int64_t(values.shape(1)), n = std::int64_t(values.shape(0)), count = std::int64_t(queries.shape(0));
    if (queries.shape(1) != values.shape(1) || out.shape(0) != queries.shape(0) || out.shape(1) != values.shape(0))
      throw std::invalid_argument("shapes do not fit");
    const SearchLoops loops = search_loops(parse_isa(isa));
    ReleasedGil release;
    parallel_for(n, 256, threads, [&](std::int64_t from, std::int64_t to) {
      loops.dots_few(queries.data(), count, values.data() + from * d, d, to - from, out.data() + from, n);
    });
  }, "queries"_a.noconvert(), "values"_a.noconvert(), "out"_a.noconvert(), "threads"_a = 1, "isa"_a = "",
     "out [q, n] = queries [q, d] · values [n, d]ᵀ in float32; for a few queries faster than a matrix product.");

  m.def("dot_bytes", [](Floats query, Codes codes, Array<float, 1> out, int threads, const std::string &isa) {
    const std::int64_t d = std::int64_t(codes.shape(1)), n = std::int64_t(codes.shape(0));
    if (query.shape(0) != codes.shape(1) || out.shape(0) != codes.shape(0)) throw std::invalid_argument("shapes do not fit");
    const SearchLoops loops = search_loops(parse_isa(isa));
    ReleasedGil release;
    parallel_for(n, 1024, threads, [&](std::int64_t from, std::int64_t to) {
      for (std::int64_t r = from; r < to; ++r) out.data()[r] = loops.dot_bytes(query.data(), codes.data() + r * d, d);
    });
  }, "query"_a.noconvert(), "codes"_a.noconvert(), "out"_a.noconvert(), "threads"_a = 1, "isa"_a = "",
     "out [n] = codes [n, d] · query [d], in float32.");

  m.def("look_up", [](Scores tables, Codes codes, Array<float, 1> out, int threads, const std::string &isa) {
    const std::int64_t parts = std::int64_t(codes.shape(1)), n = std::int64_t(codes.shape(0));
    if (tables.shape(0) != codes.shape(1) || tables.shape(1) != 256 || out.shape(0) != codes.shape(0))
      throw std::invalid_argument("tables must be [parts, 256], codes [n, parts], out [n]");
    const SearchLoops loops = search_loops(parse_isa(isa));
    ReleasedGil release;
    parallel_for(n, 4096, threads, [&](std::int64_t from, std::int64_t to) {
      loops.look_up(tables.data(), codes.data() + from * parts, parts, to - from, out.data() + from);
    });
  }, "tables"_a.noconvert(), "codes"_a.noconvert(), "out"_a.noconvert(), "threads"_a = 1, "isa"_a = "",
     "out [n] = Σ tables[j, codes[:, j]].");
}

} // namespace ridgeline
