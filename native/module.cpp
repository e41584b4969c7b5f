// The Python face of native/: arguments are checked here, the GIL is released, the loops do the work.
#include <atomic>

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "bandwidth.hpp"
#include "bind.hpp"
#include "isa.hpp"
#include "lender.hpp"
#include "spin.hpp"

namespace nb = nanobind;
using namespace nb::literals;
using namespace ridgeline;

// Arrays are taken as they are (noconvert): a silent copy of a strided or int32 array would be written, not the array.
using Bytes = nb::ndarray<std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using ConstBytes = nb::ndarray<const std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Doubles = nb::ndarray<double, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using ConstDoubles = nb::ndarray<const double, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

static void need_equal(std::size_t a, std::size_t b) {
  if (a != b) throw std::invalid_argument("lengths differ: " + std::to_string(a) + " and " + std::to_string(b));
}

NB_MODULE(native, m) {
  m.doc() = "The CPU's hot loops, chosen for this CPU's instruction set at run time.";

  m.def("instruction_sets", [] {
    std::vector<std::string> names;
    for (Isa isa : supported()) names.emplace_back(name(isa));
    return names;
  }, "Instruction sets compiled in and usable on this CPU, weakest first.");
  m.def("chosen_instruction_set", [] { return std::string(name(chosen())); },
        "The one in use: the strongest, or what RIDGELINE_ISA says.");

  m.def("read", [](ConstBytes from, const std::string &isa) {
    auto loops = bandwidth_loops(parse(isa));
    nb::gil_scoped_release free;
    return loops.read(from.data(), from.size());
  }, "source"_a.noconvert(), "isa"_a = "", "Exclusive-or of the 64-bit words of `source` [bytes].");
  m.def("write", [](Bytes to, std::uint64_t word, bool streaming, const std::string &isa) {
    auto loops = bandwidth_loops(parse(isa));
    nb::gil_scoped_release free;
    loops.write(to.data(), word, to.size(), streaming);
  }, "target"_a.noconvert(), "word"_a, "streaming"_a = false, "isa"_a = "", "Fill `target` [bytes] with a 64-bit word.");
  m.def("copy", [](Bytes to, ConstBytes from, bool streaming, const std::string &isa) {
    need_equal(to.size(), from.size());
    auto loops = bandwidth_loops(parse(isa));
    nb::gil_scoped_release free;
    loops.copy(to.data(), from.data(), to.size(), streaming);
  }, "target"_a.noconvert(), "source"_a.noconvert(), "streaming"_a = false, "isa"_a = "", "Copy `source` [bytes] to `target`; they must not overlap.");
  m.def("triad", [](Doubles to, ConstDoubles a, ConstDoubles b, double scale, bool streaming, const std::string &isa) {
    need_equal(to.size(), a.size());
    need_equal(to.size(), b.size());
    auto loops = bandwidth_loops(parse(isa));
    nb::gil_scoped_release free;
    loops.triad(to.data(), a.data(), b.data(), scale, to.size(), streaming);
  }, "target"_a.noconvert(), "a"_a.noconvert(), "b"_a.noconvert(), "scale"_a, "streaming"_a = false, "isa"_a = "", "target = a + scale * b [n].");

  m.def("time_mix", [](const std::string &mix, std::size_t bytes, const std::vector<int> &cpus, int passes,
                       int repeats, bool streaming, const std::string &isa) {
    Mix parsed = parse_mix(mix);
    Isa set = parse(isa);
    if (passes < 1 || repeats < 1) throw std::invalid_argument("passes and repeats must be 1 or more");
    nb::gil_scoped_release free;
    return time_mix(parsed, set, bytes, cpus, passes, repeats, streaming);
  }, "mix"_a, "bytes"_a, "cpus"_a, "passes"_a = 1, "repeats"_a = 1, "streaming"_a = false, "isa"_a = "",
        "Nanoseconds per round of read | write | copy | triad, one pinned thread per CPU (-1: not pinned), "
        "`bytes` of its own memory each.");

  m.def("spin", [](std::uint64_t steps, std::uint64_t seed) {
    nb::gil_scoped_release free;
    return spin(steps, seed);
  }, "steps"_a, "seed"_a = 1, "A busy loop of `steps` dependent steps with a known answer.");

  m.def("lent_threads", [] {
    std::atomic<int> count{0};
    nb::gil_scoped_release free;
    on_lent_threads([&](int) { ++count; });
    return count.load();
  }, "How many of OpenMP's threads would work for the caller, itself among them; 0 if nobody lends.");

  bind_resample(m);
  bind_habit(m);
  bind_door(m);
  bind_launch(m);
  bind_wordpiece(m);
  bind_rows(m);
  bind_half(m);
  bind_sieve(m);
  bind_ledger(m);
  bind_collective(m);
}
