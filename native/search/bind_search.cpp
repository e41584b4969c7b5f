// Python face of the sieve and of the loops that score rows.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include "bind.hpp"
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

template <class A> auto data_of(const std::optional<A> &given, std::size_t wanted, const char *what) {
  if (given && given->shape(0) != wanted) throw std::invalid_argument(std::string(what) + " has the wrong length");
  return given ? given->data() : nullptr;
}

// What a probe's arrays say, checked; `places`: rows of codes.
Probe probe_of(const Sieve &sieve, const Rows &lists, const Rows &offsets, const Rows &rows, std::size_t places,
               const std::optional<Floats> &added, const std::optional<Floats> &biases, const std::optional<Flags> &allowed) {
  if (sieve.queries() != 1) throw std::invalid_argument("a probe is for one query");
  if (offsets.shape(0) < 1 || rows.shape(0) != places) throw std::invalid_argument("rows and codes differ in length");
  const std::int64_t count = std::int64_t(offsets.shape(0)) - 1, *ends = offsets.data();
  for (std::size_t k = 0; k < lists.shape(0); ++k) {
    const std::int64_t list = lists.data()[k];
    if (list < 0 || list >= count) throw std::invalid_argument("there is no such list");
    if (ends[list] < 0 || ends[list] > ends[list + 1] || ends[list + 1] > std::int64_t(places))
      throw std::invalid_argument("a list lies outside the codes");
    if (allowed)
      for (std::int64_t p = ends[list]; p < ends[list + 1]; ++p)
        if (rows.data()[p] < 0 || rows.data()[p] >= std::int64_t(allowed->shape(0)))
          throw std::invalid_argument("allowed is shorter than the rows");
  }
  return {lists.data(), std::int64_t(lists.shape(0)), data_of(added, lists.shape(0), "added"), ends, rows.data(),
          data_of(biases, places, "biases"), allowed ? allowed->data() : nullptr};
}

void inside(const Rows &rows, std::int64_t count) {
  for (std::size_t i = 0; i < rows.shape(0); ++i)
    if (rows.data()[i] < 0 || rows.data()[i] >= count) throw std::invalid_argument("a row lies outside the vectors");
}

} // namespace

void bind_search(nb::module_ &m) {
  nb::class_<Sieve>(m, "Sieve", "The best k of each query's scores, and what rounding could have swapped with them.")
      .def("__init__", [](Sieve *self, std::int64_t k, Array<const double, 1> slack) {
        if (k < 1) throw std::invalid_argument("k must be 1 or more");
        new (self) Sieve(std::int64_t(slack.shape(0)), k, slack.data());
      }, "k"_a, "slack"_a.noconvert(), "slack [queries]: twice the largest error of a score.")
      .def("sift", [](Sieve &self, Scores scores, std::optional<Rows> which, std::optional<Floats> offsets,
                      std::optional<Floats> biases, std::int64_t first, std::optional<Rows> rows,
                      std::optional<Flags> allowed, int threads, const std::string &isa) {
        ScoreBlock block{scores.data(), std::int64_t(scores.shape(0)), std::int64_t(scores.shape(1))};
        block.which = data_of(which, scores.shape(0), "which");
        block.offsets = data_of(offsets, scores.shape(0), "offsets");
        block.biases = data_of(biases, scores.shape(1), "biases");
        block.first = first;
        block.rows = data_of(rows, scores.shape(1), "rows");
        block.allowed = allowed ? allowed->data() : nullptr;
        if (which) inside(*which, self.queries());
        else if (block.queries > self.queries()) throw std::invalid_argument("more queries than the sieve has");
        if (allowed) {
          if (rows) inside(*rows, std::int64_t(allowed->shape(0)));
          else if (first < 0 || first + block.columns > std::int64_t(allowed->shape(0)))
            throw std::invalid_argument("allowed is shorter than the rows");
        }
        Isa set = parse_isa(isa);
        nb::gil_scoped_release release;
        self.sift(block, set, threads);
      }, "scores"_a.noconvert(), "which"_a.none() = nb::none(), "offsets"_a.none() = nb::none(),
         "biases"_a.none() = nb::none(), "first"_a = 0, "rows"_a.none() = nb::none(), "allowed"_a.none() = nb::none(),
         "threads"_a = 1, "isa"_a = "",
         "Take in scores [queries, columns]; `which` [queries] must name each query once.")
      .def("probe", [](Sieve &self, Floats query, Scores values, Rows lists, Rows offsets, Rows rows,
                       std::optional<Floats> biases, std::optional<Flags> allowed, int threads, const std::string &isa) {
        const std::size_t d = query.shape(0);
        if (values.shape(1) != d) throw std::invalid_argument("query and values differ in dimension");
        const Probe probe = probe_of(self, lists, offsets, rows, values.shape(0), {}, biases, allowed);
        const Isa set = parse_isa(isa);
        auto *dots = sieve_loops(set).dots;
        nb::gil_scoped_release release;
        self.probe(probe, [&](std::int64_t from, std::int64_t to, float *out) {
          dots(query.data(), values.data() + from * d, d, to - from, out);
        }, set, threads);
      }, "query"_a.noconvert(), "values"_a.noconvert(), "lists"_a.noconvert(), "offsets"_a.noconvert(),
         "rows"_a.noconvert(), "biases"_a.none() = nb::none(), "allowed"_a.none() = nb::none(), "threads"_a = 1,
         "isa"_a = "",
         "Take in query · values [n, d] of some `lists`; list l is values[offsets[l]:offsets[l + 1]], and `rows` their rows.")
      .def("probe_bytes", [](Sieve &self, Floats query, Codes codes, Rows lists, Rows offsets, Rows rows, float added,
                             std::optional<Floats> biases, std::optional<Flags> allowed, int threads, const std::string &isa) {
        const std::size_t d = query.shape(0);
        if (codes.shape(1) != d) throw std::invalid_argument("query and codes differ in dimension");
        Probe probe = probe_of(self, lists, offsets, rows, codes.shape(0), {}, biases, allowed);
        const std::vector<float> all(lists.shape(0), added);
        probe.added = all.data();
        const Isa set = parse_isa(isa);
        auto *dot = sieve_loops(set).dot_bytes;
        nb::gil_scoped_release release;
        self.probe(probe, [&](std::int64_t from, std::int64_t to, float *out) {
          for (std::int64_t r = from; r < to; ++r) out[r - from] = dot(query.data(), codes.data() + r * d, d);
        }, set, threads);
      }, "query"_a.noconvert(), "codes"_a.noconvert(), "lists"_a.noconvert(), "offsets"_a.noconvert(),
         "rows"_a.noconvert(), "added"_a, "biases"_a.none() = nb::none(), "allowed"_a.none() = nb::none(),
         "threads"_a = 1, "isa"_a = "", "The same of bytes [n, d], `added` to every score.")
      .def("probe_parts", [](Sieve &self, Scores tables, Codes codes, Rows lists, Rows offsets, Rows rows, Floats added,
                             std::optional<Floats> biases, std::optional<Flags> allowed, int threads, const std::string &isa) {
        const std::size_t parts = codes.shape(1);
        if (tables.shape(0) != parts || tables.shape(1) != 256) throw std::invalid_argument("tables must be [parts, 256]");
        const Probe probe = probe_of(self, lists, offsets, rows, codes.shape(0), added, biases, allowed);
        const Isa set = parse_isa(isa);
        auto *look_up = sieve_loops(set).look_up;
        nb::gil_scoped_release release;
        self.probe(probe, [&](std::int64_t from, std::int64_t to, float *out) {
          look_up(tables.data(), codes.data() + from * parts, parts, to - from, out);
        }, set, threads);
      }, "tables"_a.noconvert(), "codes"_a.noconvert(), "lists"_a.noconvert(), "offsets"_a.noconvert(),
         "rows"_a.noconvert(), "added"_a.noconvert(), "biases"_a.none() = nb::none(), "allowed"_a.none() = nb::none(),
         "threads"_a = 1, "isa"_a = "", "The same of tables [parts, 256] and codes [n, parts]; `added` [lists] to a list's.")
      .def("candidates", [](Sieve &self) {
        self.settle();
        const std::int64_t queries = self.queries();
        auto *offsets = new std::int64_t[queries + 1];
        nb::capsule own_offsets(offsets, [](void *p) noexcept { delete[] static_cast<std::int64_t *>(p); });
        offsets[0] = 0;
        for (std::int64_t q = 0; q < queries; ++q) offsets[q + 1] = offsets[q] + std::int64_t(self.kept(q).size());
        auto *rows = new std::int64_t[offsets[queries]];
        nb::capsule own_rows(rows, [](void *p) noexcept { delete[] static_cast<std::int64_t *>(p); });
        for (std::int64_t q = 0; q < queries; ++q)
          std::copy(self.kept(q).begin(), self.kept(q).end(), rows + offsets[q]);
        using Given = nb::ndarray<nb::numpy, std::int64_t, nb::ndim<1>>;
        const std::size_t ends[1] = {std::size_t(queries + 1)}, total[1] = {std::size_t(offsets[queries])};
        return nb::make_tuple(Given(offsets, 1, ends, own_offsets), Given(rows, 1, total, own_rows));
      }, "(offsets [queries + 1], rows): the rows kept for query q are rows[offsets[q]:offsets[q + 1]].");

  nb::class_<OneQuery>(m, "OneQuery", "One query over lists of float32 vectors, from the query to its ranked rows.")
      .def("__init__", [](OneQuery *self, Scores centres, std::optional<Floats> halves, Scores values, Rows offsets, Rows rows,
                          std::optional<Floats> biases, bool unit, bool squared, std::int64_t nprobe, std::int64_t k,
                          double longest, double rounding, double underflow, double too_large, std::int64_t more_terms) {
        const std::size_t lists = centres.shape(0), dim = centres.shape(1), places = values.shape(0);
        if (values.shape(1) != dim || rows.shape(0) != places || offsets.shape(0) != lists + 1)
          throw std::invalid_argument("centres, values, rows and offsets do not fit");
        const std::int64_t *ends = offsets.data();
        for (std::size_t l = 0; l < lists; ++l)
          if (ends[l] > ends[l + 1]) throw std::invalid_argument("offsets must not fall");
        if (ends[0] != 0 || ends[lists] != std::int64_t(places)) throw std::invalid_argument("offsets do not end with rows");
        if (nprobe < 1 || k < 1) throw std::invalid_argument("k and nprobe must be 1 or more");
        new (self) OneQuery{unit, squared, std::int64_t(dim), std::int64_t(lists), nprobe, k, centres.data(),
                            data_of(halves, lists, "halves"), values.data(), ends, rows.data(),
                            data_of(biases, places, "biases"), longest, rounding, underflow, too_large, more_terms};
      }, "centres"_a.noconvert(), "halves"_a.none(), "values"_a.noconvert(), "offsets"_a.noconvert(), "rows"_a.noconvert(),
         "biases"_a.none(), "unit"_a, "squared"_a, "nprobe"_a, "k"_a, "longest"_a, "rounding"_a, "underflow"_a,
         "too_large"_a, "more_terms"_a, nb::keep_alive<1, 2>(), nb::keep_alive<1, 3>(), nb::keep_alive<1, 4>(),
         nb::keep_alive<1, 5>(), nb::keep_alive<1, 6>(), nb::keep_alive<1, 7>(),
         "The arrays of search/lists.py, and what search/metric.py knows of float32.")
      .def("__call__", [](const OneQuery &self, Floats query, Array<float, 1> scores, Array<std::int64_t, 1> found,
                          const std::string &isa) {
        const std::size_t k = std::size_t(self.k);
        if (query.shape(0) != std::size_t(self.dim) || scores.shape(0) != k || found.shape(0) != k)
          throw std::invalid_argument("shapes do not fit");
        const Isa set = parse_isa(isa);
        nb::gil_scoped_release release;
        return self.search(query.data(), scores.data(), found.data(), set);
      }, "query"_a.noconvert(), "scores"_a.noconvert(), "found"_a.noconvert(), "isa"_a = "",
         "Best scores [k] and rows [k] of query [d]; False: it is not finite, or too large for sums in float32.");

  m.def("rescore", [](Scores queries, Scores vectors, Rows offsets, Rows rows, Array<double, 1> out, bool squared,
                      int threads, const std::string &isa) {
    const std::int64_t d = std::int64_t(vectors.shape(1)), count = std::int64_t(queries.shape(0));
    if (queries.shape(1) != vectors.shape(1)) throw std::invalid_argument("queries and vectors differ in dimension");
    if (offsets.shape(0) != std::size_t(count + 1) || out.shape(0) != rows.shape(0))
      throw std::invalid_argument("offsets, rows and out do not fit");
    const std::int64_t *ends = offsets.data();
    for (std::int64_t q = 0; q < count; ++q)
      if (ends[q] > ends[q + 1]) throw std::invalid_argument("offsets must not fall");
    if (ends[0] != 0 || ends[count] != std::int64_t(rows.shape(0))) throw std::invalid_argument("offsets do not end with rows");
    inside(rows, std::int64_t(vectors.shape(0)));
    const SieveLoops loops = sieve_loops(parse_isa(isa));
    auto *sum = squared ? loops.distance : loops.dot;
    nb::gil_scoped_release release;
    parallel_for(count, 1, threads, [&](std::int64_t from, std::int64_t to) {
      for (std::int64_t q = from; q < to; ++q)
        for (std::int64_t i = ends[q]; i < ends[q + 1]; ++i)
          out.data()[i] = sum(queries.data() + q * d, vectors.data() + rows.data()[i] * d, d);
    });
  }, "queries"_a.noconvert(), "vectors"_a.noconvert(), "offsets"_a.noconvert(), "rows"_a.noconvert(),
     "out"_a.noconvert(), "squared"_a = false, "threads"_a = 1, "isa"_a = "",
     "Inner products, or squared distances, of float32 values in float64: out[i] for the query whose offsets hold i.");

  m.def("dot_floats", [](Floats query, Scores values, Array<float, 1> out, int threads, const std::string &isa) {
    const std::int64_t d = std::int64_t(values.shape(1)), n = std::int64_t(values.shape(0));
    if (query.shape(0) != values.shape(1) || out.shape(0) != values.shape(0)) throw std::invalid_argument("shapes do not fit");
    const SieveLoops loops = sieve_loops(parse_isa(isa));
    nb::gil_scoped_release release;
    parallel_for(n, 256, threads, [&](std::int64_t from, std::int64_t to) {
      loops.dots(query.data(), values.data() + from * d, d, to - from, out.data() + from);
    });
  }, "query"_a.noconvert(), "values"_a.noconvert(), "out"_a.noconvert(), "threads"_a = 1, "isa"_a = "",
     "out [n] = values [n, d] · query [d], in float32.");

  m.def("dot_bytes", [](Floats query, Codes codes, Array<float, 1> out, int threads, const std::string &isa) {
    const std::int64_t d = std::int64_t(codes.shape(1)), n = std::int64_t(codes.shape(0));
    if (query.shape(0) != codes.shape(1) || out.shape(0) != codes.shape(0)) throw std::invalid_argument("shapes do not fit");
    const SieveLoops loops = sieve_loops(parse_isa(isa));
    nb::gil_scoped_release release;
    parallel_for(n, 1024, threads, [&](std::int64_t from, std::int64_t to) {
      for (std::int64_t r = from; r < to; ++r) out.data()[r] = loops.dot_bytes(query.data(), codes.data() + r * d, d);
    });
  }, "query"_a.noconvert(), "codes"_a.noconvert(), "out"_a.noconvert(), "threads"_a = 1, "isa"_a = "",
     "out [n] = codes [n, d] · query [d], in float32.");

  m.def("look_up", [](Scores tables, Codes codes, Array<float, 1> out, int threads, const std::string &isa) {
    const std::int64_t parts = std::int64_t(codes.shape(1)), n = std::int64_t(codes.shape(0));
    if (tables.shape(0) != codes.shape(1) || tables.shape(1) != 256 || out.shape(0) != codes.shape(0))
      throw std::invalid_argument("tables must be [parts, 256], codes [n, parts], out [n]");
    const SieveLoops loops = sieve_loops(parse_isa(isa));
    nb::gil_scoped_release release;
    parallel_for(n, 4096, threads, [&](std::int64_t from, std::int64_t to) {
      loops.look_up(tables.data(), codes.data() + from * parts, parts, to - from, out.data() + from);
    });
  }, "tables"_a.noconvert(), "codes"_a.noconvert(), "out"_a.noconvert(), "threads"_a = 1, "isa"_a = "",
     "out [n] = Σ tables[j, codes[:, j]].");
}

} // namespace ridgeline
