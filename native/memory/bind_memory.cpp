// Python functions of memory/: the loops that measure memory bandwidth.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "bind.hpp"
#include "memory/bandwidth.hpp"
#include "released_gil.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace ridgeline {
namespace {

// The arguments use noconvert: nanobind would write to a silent copy of a strided or int32 array, not to the array.
using Bytes = nb::ndarray<std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using ConstBytes = nb::ndarray<const std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Doubles = nb::ndarray<double, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using ConstDoubles = nb::ndarray<const double, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

void check_equal_lengths(std::size_t a, std::size_t b) {
  if (a != b) throw std::invalid_argument("lengths differ: " + std::to_string(a) + " and " + std::to_string(b));
}

} // namespace

void bind_memory(nb::module_ &m) {
  m.def("read", [](ConstBytes source, const std::string &isa) {
    const auto loops = bandwidth_loops(parse_isa(isa));
    ReleasedGil release;
    return loops.read(source.data(), source.size());
  }, "source"_a.noconvert(), "isa"_a = "", "Exclusive-or of the 64-bit words of `source` [bytes].");
  m.def("write", [](Bytes target, std::uint64_t word, bool streaming, const std::string &isa) {
    const auto loops = bandwidth_loops(parse_isa(isa));
    ReleasedGil release;
    loops.write(target.data(), word, target.size(), streaming);
  }, "target"_a.noconvert(), "word"_a, "streaming"_a = false, "isa"_a = "", "Fill `target` [bytes] with a 64-bit word.");
  m.def("copy", [](Bytes target, ConstBytes source, bool streaming, const std::string &isa) {
    check_equal_lengths(target.size(), source.size());
    const auto loops = bandwidth_loops(parse_isa(isa));
    ReleasedGil release;
    loops.copy(target.data(), source.data(), target.size(), streaming);
  }, "target"_a.noconvert(), "source"_a.noconvert(), "streaming"_a = false, "isa"_a = "",
        "Copy `source` [bytes] to `target`; they must not overlap.");
  m.def("triad", [](Doubles target, ConstDoubles a, ConstDoubles b, double scale, bool streaming, const std::string &isa) {
    check_equal_lengths(target.size(), a.size());
    check_equal_lengths(target.size(), b.size());
    const auto loops = bandwidth_loops(parse_isa(isa));
    ReleasedGil release;
    loops.triad(target.data(), a.data(), b.data(), scale, target.size(), streaming);
  }, "target"_a.noconvert(), "a"_a.noconvert(), "b"_a.noconvert(), "scale"_a, "streaming"_a = false, "isa"_a = "",
        "target = a + scale * b [n].");
  m.def("time_mix", [](const std::string &mix, std::size_t bytes, const std::vector<int> &cpus, int passes, int repeats,
                       bool streaming, const std::string &isa) {
    const Mix parsed = parse_mix(mix);
    const Isa set = parse_isa(isa);
    if (passes < 1 || repeats < 1) throw std::invalid_argument("passes and repeats must be 1 or more");
    ReleasedGil release;
    return time_mix(parsed, set, bytes, cpus, passes, repeats, streaming);
  }, "mix"_a, "bytes"_a, "cpus"_a, "passes"_a = 1, "repeats"_a = 1, "streaming"_a = false, "isa"_a = "",
        "Nanoseconds per round of read | write | copy | triad, with one pinned thread per CPU (-1: not pinned) and "
        "`bytes` of memory for each thread.");
}

} // namespace ridgeline
